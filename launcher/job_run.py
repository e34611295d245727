"""The life of one job from its first host to its end: attempts, and what comes after a bad one."""

import asyncio
import contextlib
import dataclasses
import functools
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.exceptions import RayError

from cluster.record import Cluster
from cluster.slices import rank_variables
from launcher.attempt import tasks_for
from launcher.attempt_fence import StorageError, shut_out_older
from launcher.blobs import BlobStore, ship
from launcher.certificates import Authority
from launcher.collect import bring_results, bring_what_there_is
from launcher.environments import make_environments
from launcher.first_cause import FirstCause, first_cause
from launcher.gang import Gang
from launcher.host_pool import HostPool
from launcher.host_wait import HostError, while_it_answers
from launcher.interactive import WORKLOAD
from launcher.job import JobState
from launcher.job_moves import JobMoves
from launcher.job_record import JobRecord
from launcher.job_sizes import job_sizes
from launcher.keeper import Claim
from launcher.outputs import short_summary, write_summary
from launcher.profiles import Profiles
from launcher.rank_process import Message
from launcher.recovery import MAX_WITHOUT_PROGRESS, Cause, OnDivergence, Policy, Retry, Stop, decide
from launcher.replay import OpenCase, open_case, settle
from launcher.script_saves import describe_saves, unequal_saves

MAX_PORTS_LOST = 5
# How long a job waits for hosts when too few are left.
WAIT_FOR_EMULATED_S = 60.0
WAIT_FOR_MACHINES_S = 300.0  # one that was cut off joins again when the way is open, and that takes half a minute
HOST_RETURN_S = 4.0  # Ray starts a killed agent again in one to two seconds
LOOK_PERIOD_S = 1.0
STORAGE_PAUSE_S = 20.0  # for a storage that refuses: what is full, or away for a moment, is so again at once


class JobRun:
    """The live side of one job, in the supervisor.

    Args:
        record: what was asked for, and where to put what comes of it.
        cluster: that it runs on.
        authority: the cluster's.
        keeper: Ray handle of the head's keeper, where its checkpoints lie on the head's disk; else None.

    Attributes:
        secrets: values of its command's secret variables, which are on no record.
        profiles: of its ranks.
        moves: to other hosts; None: it has not been given any yet.
    """

    def __init__(self, record: JobRecord, cluster: Cluster, authority: Authority, keeper: Any | None = None):
        spec = record.spec
        self.record = record
        self.spec = spec
        self.cluster = cluster
        self.devices_per_host = cluster.spec.devices_per_host
        self.policy = Policy(
            max_failures=spec.max_failures,
            max_preemptions=spec.max_preemptions,
            max_without_progress=None if spec.command is not None else MAX_WITHOUT_PROGRESS,
            on_divergence=OnDivergence(spec.on_divergence),
            wait_for_hosts_s=WAIT_FOR_EMULATED_S if cluster.spec.provider.shares_disk else WAIT_FOR_MACHINES_S,
        )
        self.keeper = keeper
        self.secrets: dict[str, str] = {}
        self.authority = authority
        self.gang: Gang | None = None
        self.profiles = Profiles(record)
        self._pool: HostPool | None = None  # the cluster's, once the job runs
        self.moves: JobMoves | None = None
        self.listener: Callable[[int, Message], None] = lambda rank, event: None  # hears what is recorded of the ranks
        self.cancelled = asyncio.Event()
        self.cancel_reason = ""

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Numbers of hosts that it may run on, the one that it wants first."""
        return job_sizes(self.spec, self.cluster.spec)

    def cancel(self, reason: str) -> None:
        """Asks for the end; the state becomes CANCELLED when every process is gone."""
        self.cancel_reason = reason
        self.cancelled.set()

    async def run(self, hosts: Sequence[str], pool: HostPool, blobs: BlobStore, lost: str = "") -> None:
        """Runs the job on these hosts to its end. Never raises for what a workload or a host did.

        Args:
            hosts: that the job holds, in the order of ranks.
            pool: where other hosts come from if one of these is lost.
            blobs: code and files to ship.
            lost: why the attempt that was running is gone, where a supervisor before this one had started it.
        """
        if missing := self._missing_secrets():
            self.record.end(JobState.FAILED, missing)
            return
        self._pool = pool
        self.moves = moves = JobMoves(self.record, pool, self.sizes)
        ports_lost = 0
        following: Sequence[str] | None = hosts
        if lost:
            self.record.hosts = hosts
            following = await self._recover(FirstCause(sentence=lost, cause=Cause.PREEMPTED), pool)
        while following is not None:
            self.record.hosts = following
            agents = [pool.agents[host] for host in following]
            self.record.move(JobState.STARTING)
            pause_s = 0.0
            try:
                cause = await self._run_attempt(following, agents, moves, blobs)
            except RayError as error:
                cause = FirstCause(sentence=f"a host was lost before the attempt began: {error}", cause=Cause.PREEMPTED)
            except StorageError as error:
                cause, pause_s = FirstCause(sentence=str(error)), STORAGE_PAUSE_S
            if self.record.state.ended:
                return
            if cause is not None:
                ports_lost = 0
                following = await self._recover(cause, pool, pause_s)
            elif moved := moves.go():
                following = moved
            elif (ports_lost := ports_lost + 1) == MAX_PORTS_LOST:
                message = f"rank 0 lost the race for its coordinator's port {MAX_PORTS_LOST} times in a row"
                self.record.end(JobState.FAILED, message)
                return

    async def _recover(self, cause: FirstCause, pool: HostPool, pause_s: float = 0.0) -> Sequence[str] | None:
        """Decides what comes after a bad end; returns the hosts of the next attempt, or None if there is none.

        Args:
            cause: of the end.
            pool: where hosts come from.
            pause_s: before the next attempt, whose hosts the job holds meanwhile.
        """
        failed_at = time.monotonic()
        self.record.fail_attempt(cause)
        self._suspect(cause.suspects, cause.sentence)
        if self.spec.workload == WORKLOAD:  # its arrays are gone, and whoever used them must know
            self.record.end(JobState.FAILED, str(cause))
            return None
        waits = ""
        while not self.cancelled.is_set():
            available = await pool.available(self.spec.name, () if waits else self.record.hosts, HOST_RETURN_S)
            decision = decide(
                [dataclasses.replace(end, suspects=pool.with_units(end.suspects)) for end in self.record.ends],
                policy=self.policy,
                hosts=self.record.hosts,
                available=available,
                sizes=self.sizes,
                leaving=pool.with_units(pool.leaving),
                waited_s=time.monotonic() - max(failed_at, pool.coming_until),  # of hosts that come nobody despairs
            )
            if isinstance(decision, Retry):
                where = self._where_from(len(decision.hosts))
                self.record.note(f"{cause.sentence}; {where}{f', {decision.why}' if decision.why else ''}")
                pool.take(self.spec.name, decision.hosts)
                await self._cancelled_within(pause_s)
                return decision.hosts
            if isinstance(decision, Stop):
                self.record.end(
                    JobState.FAILED,
                    str(FirstCause(sentence=f"{cause.sentence}\n{decision.why}", details=cause.details)),
                )
                return None
            if decision.why != waits:
                waits = decision.why
                self.record.note(f"{cause.sentence}; {waits}")
            await self._cancelled_within(LOOK_PERIOD_S)
        self.record.end(JobState.CANCELLED, self.cancel_reason)
        return None

    async def _cancelled_within(self, seconds: float) -> None:
        """Waits for so long, or until the job is cancelled."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.cancelled.wait(), seconds)

    def _where_from(self, num_hosts: int) -> str:
        number = f"attempt {self.record.attempt + 1}"
        if self.spec.command is not None:
            return f"{number} runs the command again"  # how far it comes, and from where, only the script knows
        replay = self._replay(num_hosts)
        goal = f"; it replays to step {replay['step']}, to tell which copy was wrong" if replay else ""
        if self.record.checkpoint_step is None:
            return f"{number} starts from step 0: no checkpoint{goal}"
        return f"{number} restarts from step {self.record.checkpoint_step}{goal}"

    def _replay(self, num_hosts: int) -> dict[str, Any] | None:
        """What the next attempt is asked to tell of a step that it computes again."""
        if self.policy.on_divergence is not OnDivergence.REPLAY:
            return None
        case = open_case(self.record.folder.lines("events.jsonl"))
        return case.request(num_hosts=num_hosts, checkpoint_step=self.record.checkpoint_step or 0) if case else None

    def _hear(self, rank: int, event: Message) -> None:
        if event["type"] == "profile":
            self.profiles.fetch(rank, event)  # it is on record when it is here
            return
        if event["type"] == "replayed":
            case = open_case(self.record.folder.lines("events.jsonl"))
            if case is None:  # an earlier check of the step has told
                return
            event = {**event, **self._settle(case, event["digests"])}
        self.record.hear(rank, event)
        if event["type"] == "injected" and event["fault"]["kind"] == "kill-supervisor":
            os.kill(os.getpid(), signal.SIGKILL)  # here and not by the rank, which may be on another machine
        if self.moves is not None:
            self.moves.hear(rank, event)
        self.listener(rank, event)

    def _settle(self, case: OpenCase, digests: Mapping[str, str]) -> dict[str, Any]:
        """Tells what the replayed step shows of the copies that differed; returns it for the record."""
        finding = settle(case, digests)
        self._suspect(finding.suspects, finding.sentence)
        self.record.note(finding.sentence)
        return {"suspects": list(finding.suspects), "message": finding.sentence}

    def _suspect(self, hosts: Sequence[str], why: str) -> None:
        if self._pool is not None:
            self._pool.suspect(hosts, f"job {self.spec.name}: {why.splitlines()[0]}")

    def _missing_secrets(self) -> str:
        command = self.spec.command
        missing = [name for name in command.secrets if name not in self.secrets] if command else []
        return (
            f"the supervisor was started again, and the values of {', '.join(missing)} are on no record: "
            f"set them where you are, and `spmd-launch submit --resume {self.spec.name}`"
            if missing
            else ""
        )

    def _environments(self, hosts: Sequence[str]) -> list[dict[str, str]]:
        """What tells each rank of its place among several slices."""
        known = {host.name: host for host in self.cluster.hosts}
        return rank_variables([known[host].place for host in hosts], [known[host].address for host in hosts])

    async def _run_attempt(
        self, hosts: Sequence[str], agents: Sequence[Any], moves: JobMoves, blobs: BlobStore
    ) -> FirstCause | None:
        """One attempt; returns why it ended badly, or None: it did not, or the job moves, or only the port was lost."""
        self.record.attempt += 1
        storage = self.record.storage
        tasks = tasks_for(
            self.spec,
            self.record.attempt,
            storage,
            environments=self._environments(hosts),
            devices_per_host=self.devices_per_host,
            own_disk=self.keeper is not None,
            replay=self._replay(len(hosts)),
            secrets=self.secrets,
            profile=self.spec.profile if self.spec.profile and not self.record.has_profile() else None,
        )
        attempt_id = tasks[0].attempt_id
        claim = Claim(storage=storage, attempt=self.record.attempt, attempt_id=attempt_id)
        if not await self._shut_out_older(claim):
            self.record.end(JobState.CANCELLED, self.cancel_reason)
            return None
        gang = self.gang = Gang(hosts, agents, tasks, self.authority, self._hear)
        self.profiles.begin_attempt(attempt_id, agents)
        self.record.begin_attempt(attempt_id, hosts, gang.ranks)
        moves.begin_attempt(gang)
        running = asyncio.ensure_future(self._equip_and_run(gang, blobs))
        cancelled = asyncio.ensure_future(self.cancelled.wait())
        moved = asyncio.ensure_future(moves.due.wait())
        joined = asyncio.ensure_future(self._when_joined(gang, agents, moves))
        try:
            await asyncio.wait([running, cancelled, moved], return_when=asyncio.FIRST_COMPLETED)
        finally:
            moves.end_attempt()
            if not running.done():
                running.cancel()
            await asyncio.wait([running])
            for waiting in (joined, cancelled, moved):
                waiting.cancel()
        await self.profiles.settle()
        refused = None if running.cancelled() else running.result()
        cause = await self._conclude(gang, agents, attempt_id, refused, moves)
        for agent in agents:  # not waited for: a host that is gone has nothing left to remove
            agent.forget.remote(attempt_id)
            agent.fill_standby.remote()
        return cause

    async def _shut_out_older(self, claim: Claim) -> bool:
        """Whether older attempts are shut out; not, if the job is cancelled before its storage has answered."""
        shutting_out = asyncio.ensure_future(shut_out_older(claim, self.keeper, self.record.checkpoint_step))
        cancelled = asyncio.ensure_future(self.cancelled.wait())
        await asyncio.wait([shutting_out, cancelled], return_when=asyncio.FIRST_COMPLETED)
        cancelled.cancel()
        if not shutting_out.done():
            shutting_out.cancel()
            return False
        shutting_out.result()
        return True

    async def _equip_and_run(self, gang: Gang, blobs: BlobStore) -> FirstCause | None:
        """Runs the attempt, once its hosts have what it needs; returns why they do not get it."""
        files = [(file.sha256, file.name) for file in self.spec.files.values()]
        hosts = {rank.host: agent for rank, agent in zip(gang.ranks, gang.agents, strict=True)}
        try:
            await ship(blobs, hosts, self.spec.code_digest, files)
            refused = await make_environments(gang.agents, gang.tasks, gang.ranks, self._hear)
            if refused is None and self.keeper is not None and self.spec.command is not None:
                await self._tell_of_saves(hosts)
        except HostError as error:
            cause = Cause.PREEMPTED if error.lost else Cause.FAILURE
            return FirstCause(sentence=f"before the ranks could start, {error}", cause=cause)
        if refused is None:
            await gang.run()
        return refused

    async def _tell_of_saves(self, hosts: Mapping[str, Any]) -> None:
        """Puts on record what a script can go on from on each host, before any rank of it starts.

        Args:
            hosts: their agents' Ray handles, in the order of ranks.

        Raises:
            HostError: a host was lost, or cannot read its disk.
        """
        storage = self.record.storage
        asked = (while_it_answers(host, agent, agent.saves.remote(storage)) for host, agent in hosts.items())
        found = dict(zip(hosts, await asyncio.gather(*asked), strict=True))
        listed = [{"host": host, **dataclasses.asdict(saves)} for host, saves in found.items()]
        self.record.event("saves", attempt=self.record.attempt, hosts=listed)
        if self.record.attempt > 1:  # the first one has nothing to go on from
            self.record.note(describe_saves(self.record.attempt, found))
        if warning := unequal_saves(found):
            self.record.note(warning)

    def clear_hosts(self, pool: HostPool) -> None:
        """Removes the hosts' own copies of checkpoints, once the job has ended: the head has all that counts.

        What a command has saved lies elsewhere (`launcher.script_saves`): it may be resumed.
        """
        if self.keeper is not None:
            for agent in pool.agents.values():
                agent.forget_steps.remote(self.record.storage)

    async def _when_joined(self, gang: Gang, agents: Sequence[Any], moves: JobMoves) -> None:
        await gang.joined.wait()
        self.record.message = ""
        self.record.move(JobState.RUNNING)
        moves.joined()
        for agent in agents:
            agent.fill_standby.remote()

    async def _conclude(
        self, gang: Gang, agents: Sequence[Any], attempt_id: str, refused: FirstCause | None, moves: JobMoves
    ) -> FirstCause | None:
        rank_0_lost = any(end.rank == 0 and end.lost is not None for end in gang.bad_ends)
        has_files = gang.ranks[0].pid is not None and not rank_0_lost
        if self.spec.command is not None and not gang.succeeded and has_files:
            await bring_what_there_is(self.record, agents[0], attempt_id)
        if self.cancelled.is_set():
            self.record.end(JobState.CANCELLED, self.cancel_reason)
        elif refused is not None:
            return refused
        elif gang.port_lost and not gang.bad_ends:
            self.record.move(JobState.RECOVERING)
        elif gang.succeeded:
            return await self._accept(gang, agents, attempt_id)
        elif gang.bad_ends or not moves.due.is_set():
            return first_cause(gang.bad_ends, moves.leaving(), [rank.host for rank in gang.ranks])
        return None

    async def _accept(self, gang: Gang, agents: Sequence[Any], attempt_id: str) -> FirstCause | None:
        """Accepts the result, if all ranks have the same one; returns why it cannot be had."""
        results = [rank.result or {} for rank in gang.ranks]
        digests = {rank.rank: result["result_digest"] for rank, result in zip(gang.ranks, results, strict=True)}
        if len(set(digests.values())) > 1:
            listed = ", ".join(f"rank {rank} on {gang.ranks[rank].host}: {d[:16]}" for rank, d in digests.items())
            self.record.end(JobState.FAILED, f"the ranks do not have the same result, so none is accepted ({listed})")
            return None
        try:
            await bring_results(self.record, agents[0], attempt_id)
            self.record.result = write_summary(self.record.folder.path, results[0], self.record.verdicts)
        except (RayError, TimeoutError) as error:
            where = f"rank 0 on host {gang.ranks[0].host} was lost after its end, before its results were fetched"
            return FirstCause(sentence=f"{where}: {error}", cause=Cause.PREEMPTED)
        except OSError as error:
            if self.spec.command is None:
                return FirstCause(sentence=f"the results cannot be written on the head: {error}; make room there")
            self.record.result = short_summary(results[0], self.record.verdicts)  # a command's has nothing else
        self.record.end(JobState.SUCCEEDED, "")
        return None
