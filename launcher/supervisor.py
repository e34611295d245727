"""The supervisor: one detached Ray actor a cluster, on the head. It outlives every client.

It owns the queue, runs every job (`launcher.job_run`), writes their records, and answers clients on a Unix socket. A
supervisor that Ray has started again goes on with the jobs of the one before it.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import ray

from cluster.record import NAMESPACE, Cluster, Host
from cluster.slices import rank_units
from launcher import host_report
from launcher.agent_handles import GoneAgent, agent_handles
from launcher.blobs import BlobStore
from launcher.certificates import Authority
from launcher.client_server import ClientServer, Wire
from launcher.cost_guard import CostGuard
from launcher.errors import FailureError, UserError
from launcher.host_pool import HostPool
from launcher.host_return import OPS, HostReturn
from launcher.interactive import WORKLOAD
from launcher.interactive_talk import GangTalk
from launcher.job import JobSpec, JobState
from launcher.job_folder import JobFolder, all_jobs, settle_lost_jobs
from launcher.job_queue import Waiting, next_to_start, num_hosts_to_ask
from launcher.job_record import JobRecord
from launcher.job_run import JobRun
from launcher.job_sizes import job_sizes
from launcher.notice_watch import follow_notices
from launcher.notices import Notice
from launcher.process_watch import end_with_raylet
from launcher.protocol import Message
from launcher.record_copy import news
from launcher.record_names import describe
from launcher.records_on_head import RecordsOnHead, require_written
from launcher.storage import is_on_head, storage_for, storage_root

WATCH_PERIOD_S = 0.1
LOST_PERIOD_S = 2.0
START_PATIENCE_S = 10.0  # of whoever asks for the stacks of processes that are about to start


class Supervisor:
    """Runs on the head as an async Ray actor; Ray starts it again if its process ends.

    Args:
        cluster_name: whose record to read.
    """

    def __init__(self, cluster_name: str):
        cluster = Cluster.load(cluster_name)
        assert cluster is not None
        self.cluster = cluster
        self.blobs = BlobStore(cluster.folder / "blobs")
        self.authority = Authority.open(cluster.folder, cluster.cluster_id)
        self.records = RecordsOnHead(cluster.name)
        self.jobs: dict[str, JobRun] = {}
        self.queue: list[str] = []
        agents = agent_handles(cluster)
        units = rank_units({host.name: host.place for host in cluster.hosts})
        self.pool = HostPool(agents, units, memory=cluster.folder / "suspects.json")
        self.pool.lost = {host for host, agent in agents.items() if isinstance(agent, GoneAgent)}
        self.returning = HostReturn(self.pool, self.blobs)
        self.keeper = None
        if cluster.spec.head_disk_is_private:
            self.keeper = ray.get_actor(cluster.actor_name("keeper"), namespace=NAMESPACE)
        self._tasks: set[asyncio.Task[Any]] = set()
        end_with_raylet(cluster.spec.provider.owns_ray)
        # Here, so that a restarted one serves too.
        streams = {"watch": self._watch, "record": self._record}
        self._server = ClientServer(cluster.socket, self._answer, streams, {"gang": self._gang})
        self._serving = asyncio.get_running_loop().create_task(self._server.start())
        follow_notices(self.pool, self._hear_notice)
        self._looking = asyncio.get_running_loop().create_task(self._look_for_lost_hosts())
        self._adopt_jobs()
        self.guard = CostGuard(cluster, self.pool.agents, self.jobs, self._cancel)
        self._guarding = asyncio.get_running_loop().create_task(self.guard.watch())

    async def ready(self) -> int:
        """Returns this process's pid once it listens on the cluster's socket."""
        await self._serving
        return os.getpid()

    async def begin(self) -> None:
        """All of the cluster is up."""
        self.guard.begin()

    # -- clients

    async def _answer(self, request: Message, data: bytes) -> Message:
        with self.guard.request(request["op"]):
            return await (self._bring_back(request) if request["op"] in OPS else self._do(request, data))

    async def _do(self, request: Message, data: bytes) -> Message:
        answer: Message = {}
        match request["op"]:
            case "submit":
                spec = JobSpec.from_json(request["spec"])
                # A record that is found may get another name: not while the client has yet to send files from it.
                if request["resume"] and not self._missing(spec):
                    await self.records.find(spec, storage_root(self.cluster.spec.storage_path))
                answer = self._submit(spec, request["wait"], request["resume"], request["secrets"], request["lost"])
            case "blob":
                self.blobs.put(request["digest"], data, is_file=request["is_file"])
            case "status":
                answer = await self._status()
            case "job":
                job = self._asked(request)
                answer = job.record.snapshot() | {"waits_for": self._holders(job)}
            case "stacks":
                answer = await self._stacks(self._asked(request))
            case "profile":
                answer = await self._asked(request).profiles.ask(request["steps"])
            case "cancel":
                answer = await self._cancel(self._asked(request).spec.name, "cancelled by hand")
            case "prune":
                self._prune(request["name"], request["job_id"])
            case "facts" | "sockets" | "exec" | "inspect" | "lock":
                answer = await host_report.answer(self.pool, self.blobs, request)
            case "drain":
                answer = await self._drain(request["force"])
            case unknown:
                raise FailureError(
                    f"the supervisor does not know {unknown!r}, because it runs another version of spmd-launch: "
                    f"`spmd-launch down {self.cluster.name} && spmd-launch up FILE`"
                )
        return answer

    def _job(self, name: str) -> JobRun:
        if name not in self.jobs:
            raise UserError(f"no job {name!r} has run on cluster {self.cluster.name!r} since it came up")
        return self.jobs[name]

    def _asked(self, request: Message) -> JobRun:
        """The job that a client means: the last one of that name, if it has the id that was asked for, or none was."""
        job, job_id = self._job(request["name"]), request["job_id"]
        if job_id not in ("", job.spec.job_id):
            raise UserError(
                f"cluster {self.cluster.name!r} has another job {job.spec.name!r} by now: expected id {job_id}, got "
                f"{describe(job.spec)}; `spmd-launch jobs` lists both"
            )
        return job

    def _record_of(self, name: str) -> JobRecord | None:
        """Of a job that has run since the supervisor was started."""
        return self.jobs[name].record if name in self.jobs else None

    async def _record(self, request: Message) -> AsyncIterator[Message]:
        for piece in news(self.cluster.name, request):
            yield piece
        yield {}  # it was all: see `Connection.ask_all`

    async def _watch(self, request: Message) -> AsyncIterator[Message]:
        job = self._asked(request)
        while True:
            job.record.changed.clear()
            yield job.record.glance() | {
                "waits_for": self._holders(job),
                "lost": sorted(self.pool.lost - self.pool.on_the_way()),
            }
            if job.record.state.ended:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(job.record.changed.wait(), 1.0)
            if not job.record.state.ended:
                await asyncio.sleep(WATCH_PERIOD_S)

    async def _gang(self, request: Message, wire: Wire) -> None:
        """An interactive gang: a job that lives as long as this connection."""
        spec = JobSpec.from_json(request["spec"])
        with self.guard.request("gang"):
            answer = self._submit(spec, request["wait"], resume=False, secrets={})
        wire.send(answer)
        if "missing" not in answer:
            await GangTalk(self._job(spec.name), wire, lambda why: self._cancel(spec.name, why)).serve()

    async def _status(self) -> Message:
        return {
            "name": self.cluster.name,
            "hosts": await host_report.states(self.cluster, self.pool),
            "jobs": [job.record.snapshot() for job in self.jobs.values()],
            "queue": self.queue,
            "limits": self.guard.state(),
            "returning": self.returning.state(),
        }

    async def _bring_back(self, request: Message) -> Message:
        if request["op"] == "lost":
            return await self.returning.lost()
        hosts = request["hosts"]
        if request["op"] == "mend":
            return self.returning.hear(request["by"], hosts)
        new = [Host.from_json(host) for host in hosts]
        self.cluster = await self.returning.take_in(self.cluster, request["by"], new)
        self.cluster.save()  # they may be other machines now, which everybody is to know
        for job in self.jobs.values():
            job.cluster = self.cluster
        self._start_next()
        return {"cluster": self.cluster.to_json()}

    async def _stacks(self, job: JobRun) -> Message:
        asked = time.monotonic()
        while not (stacks := await job.gang.take_stacks() if job.gang else {}):
            starts = job.record.state in (JobState.STARTING, JobState.RECOVERING)
            if not starts or time.monotonic() - asked > START_PATIENCE_S:
                raise UserError(f"no process of job {job.spec.name!r} runs now: it is {job.record.state}")
            await asyncio.sleep(WATCH_PERIOD_S)
        ranks = job.record.ranks
        return {"stacks": [{"rank": k, "host": ranks[k].host, "text": text} for k, text in stacks.items()]}

    # -- jobs

    def _missing(self, spec: JobSpec) -> list[str]:
        return self.blobs.missing([spec.code_digest, *(file.sha256 for file in spec.files.values())])

    def _submit(self, spec: JobSpec, wait: bool, resume: bool, secrets: dict[str, str], lost: str = "") -> Message:
        if missing := self._missing(spec):
            return {"missing": missing}
        decision = next_to_start([*self._waiting(), self._asks(spec)], self.pool.order(), self.pool.held)
        if not wait and (decision is None or decision[0] != spec.name):
            holders = self._describe_holders(spec.name)
            raise UserError(f"no free hosts for job {spec.name!r}: {holders}; leave out --no-wait to queue")
        folder = self.records.open(spec, self.blobs, self._record_of(spec.name), resume=resume)
        job = self._add(spec, folder)
        job.secrets = secrets
        if lost:
            job.record.event("cluster-lost", message=lost)
            job.record.note(f"{lost}; it goes on from its newest good checkpoint on new ones")
        else:
            job.record.event("resumed-by-hand" if resume else "submitted")
        job.record.enqueue()
        self._start_next()
        return {
            "name": spec.name,
            "state": job.record.state,
            "waits_for": self._holders(job),
            "limits": self.guard.state(),
        }

    def _add(self, spec: JobSpec, folder: JobFolder) -> JobRun:
        cluster = self.cluster.spec
        storage = folder.job().get("storage") or storage_for(cluster.storage_path, spec)  # where it has its checkpoints
        job = self.jobs[spec.name] = JobRun(
            JobRecord(spec, folder, storage),
            self.cluster,
            self.authority,
            keeper=self.keeper if is_on_head(cluster, storage) else None,
        )
        self.queue.append(spec.name)
        return job

    def _adopt_jobs(self) -> None:
        """Goes on with what the supervisor before this one, which was killed, had queued and running."""
        for folder in all_jobs():
            record = folder.job()
            if record["cluster"] != self.cluster.name or JobState(record["state"]).ended:
                continue
            try:
                self._adopt(folder, record)
            except Exception as error:  # noqa: BLE001 - whatever a damaged record leads to, other jobs must go on
                self._forget(folder.name)
                why = f"the supervisor was started again, and cannot go on with this job: its record is bad: {error!r}"
                with contextlib.suppress(OSError):  # a full disk must not end this supervisor
                    settle_lost_jobs([folder], self.cluster.name, why)
        self._start_next()

    def _adopt(self, folder: JobFolder, record: Message) -> None:
        state = JobState(record["state"])
        job = self._add(folder.spec(), folder)
        job.record.adopt(state)
        if state is JobState.QUEUED and job.spec.workload != WORKLOAD:
            return
        self.queue.remove(job.spec.name)
        if job.spec.workload == WORKLOAD:
            job.record.end(JobState.FAILED, "the supervisor was ended, and with it the connection to its client")
        else:
            self._start(job, record["hosts"], lost="the supervisor was ended and started again")

    def _forget(self, name: str) -> None:
        self.jobs.pop(name, None)
        if name in self.queue:
            self.queue.remove(name)

    async def _look_for_lost_hosts(self) -> None:
        """A queued job may wait for a host that has joined again, and nothing else would tell."""
        while True:
            await asyncio.sleep(LOST_PERIOD_S)
            self.pool.look()
            for job in self.jobs.values():
                if job.moves is not None:
                    job.moves.look()
            if self.pool.lost:
                await self.pool.look_for_lost()
                self._start_next()  # one may be back, or the first job can do without those that are lost

    def _hear_notice(self, host: str, notice: Notice | None) -> None:
        for job in self.jobs.values():
            if job.moves is not None:
                job.moves.told(host, notice)
        if notice is None:
            self._start_next()

    def _waiting(self) -> list[Waiting]:
        return [self._asks(self.jobs[name].spec) for name in self.queue]

    def _asks(self, spec: JobSpec) -> Waiting:
        """A gang gets as many hosts as its program counts on; a job goes on with fewer, where it may, and starts so."""
        num_alive = self.pool.num_alive()
        if spec.num_hosts <= num_alive or spec.workload == WORKLOAD:  # which sizes fit takes long to tell
            return Waiting(spec.name, spec.num_hosts)
        return Waiting(spec.name, num_hosts_to_ask(job_sizes(spec, self.cluster.spec), num_alive))

    def _holders(self, job: JobRun) -> dict[str, str]:
        """Who holds the hosts that a queued job waits for: `{host: job}`, '' for a host that is lost."""
        if job.spec.name not in self.queue:
            return {}
        leaving = dict.fromkeys(self.pool.leaving, "its cloud, which will end it")
        return leaving | dict(self.pool.held) | dict.fromkeys(self.pool.lost, "")

    def _describe_holders(self, name: str) -> str:
        held = ", ".join(f"{host} by {job}" for host, job in self.pool.held.items()) or "none held"
        held += "".join(f", {host} is lost" for host in sorted(self.pool.lost))
        held += "".join(f", {host}: {notice}" for host, notice in self.pool.leaving.items())
        ahead = [job for job in self.queue if job != name]
        return f"{held}" + (f"; queued before it: {', '.join(ahead)}" if ahead else "")

    def _start_next(self) -> None:
        while True:
            queue = self._waiting()
            self.pool.waiting = queue[0].num_hosts if queue else 0
            decision = next_to_start(queue, self.pool.order(), self.pool.held)
            if decision is None:
                return
            name, hosts = decision
            self.queue.remove(name)
            job, lost = self.jobs[name], ", ".join(self.pool.with_units(self.pool.lost))
            if len(hosts) < job.spec.num_hosts:
                job.record.note(f"starts with {len(hosts)} of {job.spec.num_hosts} hosts, without {lost} (lost)")
            self._start(job, self.pool.in_rank_order(hosts))

    def _start(self, job: JobRun, hosts: list[str], lost: str = "") -> None:
        self.pool.take(job.spec.name, hosts)
        task = asyncio.get_running_loop().create_task(self._run(job, hosts, lost))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job: JobRun, hosts: list[str], lost: str) -> None:
        try:
            await job.run(hosts, self.pool, self.blobs, lost)
        except Exception as error:  # a defect of ours or of Ray's must end the job with a message, not leave it hanging
            job.record.event("launcher-error", error=repr(error))
            if not job.record.state.ended:
                job.record.end(JobState.FAILED, f"the launcher failed, not the workload: {error!r}")
            raise
        finally:
            self.pool.release(job.spec.name)
            job.clear_hosts(self.pool)
            self._start_next()

    async def _cancel(self, name: str, reason: str) -> Message:
        job = self._job(name)
        if name in self.queue:
            self.queue.remove(name)
            job.record.end(JobState.CANCELLED, reason)
            self._start_next()
        else:
            job.cancel(reason)
            while not job.record.state.ended:
                job.record.changed.clear()
                await job.record.changed.wait()
        return {"name": name, "state": job.record.state}

    def _prune(self, name: str, job_id: str) -> None:
        if self.records.remove(name, job_id, self._record_of(name)):
            self.jobs.pop(name, None)

    async def _drain(self, force: bool) -> Message:
        """Refuses while jobs run, unless forced; then ends them all as CANCELLED."""
        running = [name for name, job in self.jobs.items() if not job.record.state.ended]
        if running and not force:
            raise UserError(
                f"cluster {self.cluster.name!r} has {len(running)} job(s) that have not ended: {', '.join(running)}; "
                f"wait, cancel them, or use --force, which cancels them"
            )
        if not force:
            require_written([job.record for job in self.jobs.values()], "; or --force: what is not written is lost")
        for name in reversed(running):  # the queued ones first, so that none of them starts meanwhile
            await self._cancel(name, "cancelled by down --force")
        return {"cancelled": running}
