"""The hosts of a cluster: their agents, which of them are alive, and which job holds which."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import RayError

from cluster.record import write_json
from launcher.notices import Notice

PING_TIMEOUT_S = 3.0
PING_PERIOD_S = 0.1


class HostPool:
    """Lives in the supervisor.

    Args:
        agents, units: see below.
        memory: file of the cluster in which suspects outlive a supervisor; None: they do not.

    Attributes:
        agents: Ray handles by host, in the order of ranks; spares come last.
        units: the same hosts, in groups that a job gets as a whole (`cluster.slices.rank_units`).
        held: `{host: job that holds it}`.
        lost: hosts whose agents did not answer when last asked.
        suspects: `{host: why}`: hosts that a vote of copies, or a replay, has named; they are given out last.
        leaving: `{host: notice}`: hosts that their cloud will end; no job is started on them.
        waiting: hosts that the first job of the queue needs; 0: none is queued.
        coming: hosts that a client brings back; lost until they are taken in (`launcher.host_return`).
        coming_until: how long the client's word for that is good, by the monotonic clock.
    """

    def __init__(
        self, agents: Mapping[str, Any], units: Sequence[tuple[str, ...]] | None = None, memory: Path | None = None
    ):
        self.units = [(host,) for host in agents] if units is None else list(units)
        self.agents = {host: agents[host] for unit in self.units for host in unit}
        self.held: dict[str, str] = {}
        self.lost: set[str] = set()
        self._memory = memory
        self.suspects: dict[str, str] = _remembered(memory) if memory is not None else {}
        self.leaving: dict[str, Notice] = {}
        self.waiting = 0
        self.coming: frozenset[str] = frozenset()
        self.coming_until = -math.inf
        self._free_since: dict[str, float] = {}

    def order(self) -> list[tuple[str, ...]]:
        """Units that jobs may be given, best first; one that has lost a host, or will lose one, is none."""
        whole = [unit for unit in self.units if (self.lost | self.leaving.keys()).isdisjoint(unit)]
        return sorted(whole, key=lambda unit: not self.suspects.keys().isdisjoint(unit))

    def num_alive(self) -> int:
        """Hosts that are not lost, with all of their unit, whoever holds them."""
        return sum(len(unit) for unit in self.units if self.lost.isdisjoint(unit))

    def with_units(self, hosts: Iterable[str]) -> tuple[str, ...]:
        """These hosts and those that cannot be used without them."""
        named = set(hosts)
        return tuple(host for unit in self.units if named.intersection(unit) for host in unit)

    def in_rank_order(self, hosts: Iterable[str]) -> list[str]:
        """These hosts as ranks count them: always alike, whichever are suspected."""
        wanted = set(hosts)
        return [host for host in self.agents if host in wanted]

    def take(self, job: str, hosts: Sequence[str]) -> None:
        """Gives these hosts to a job, instead of those that it holds."""
        self.release(job)
        self.held |= dict.fromkeys(hosts, job)

    def release(self, job: str) -> None:
        self.held = {host: holder for host, holder in self.held.items() if holder != job}

    def suspect(self, hosts: Iterable[str], why: str) -> None:
        """Remembers these hosts as named by a vote of copies, or a replay."""
        named = dict.fromkeys(hosts, why)
        self.suspects |= named
        if named and self._memory is not None:
            with contextlib.suppress(OSError):  # a full disk: this supervisor knows it all the same
                write_json(self._memory, self.suspects)

    def set_leaving(self, host: str, notice: Notice | None) -> None:
        """A host's cloud will end it; None: it will not."""
        self.leaving.pop(host, None)
        if notice is not None:
            self.leaving[host] = notice

    def look(self) -> None:
        """Notes which hosts are free now; called every few seconds, so that `free` knows since when they are."""
        now = time.monotonic()
        free = {host for unit in self.order() for host in unit if host not in self.held and host not in self.suspects}
        self._free_since = {host: self._free_since.get(host, now) for host in free}

    def free(self) -> dict[str, float]:
        """Seconds for which hosts have been free, with all of their unit; in the order of ranks."""
        self.look()
        now = time.monotonic()
        units = [unit for unit in self.units if self._free_since.keys() >= set(unit)]
        since = {host: max(self._free_since[other] for other in unit) for unit in units for host in unit}
        return {host: now - at for host, at in since.items()}

    def others_could_start(self, job: str) -> bool:
        """Whether the first job of the queue could be given its hosts while this one holds its own."""
        not_its_own = [host for unit in self.order() for host in unit if self.held.get(host) != job]
        return 0 < self.waiting <= len(not_its_own)

    async def all_answer(self, hosts: Iterable[str]) -> bool:
        """Whether all of these are alive now."""
        return not await self.silent(hosts, 0.0)

    async def available(self, job: str, expected: Iterable[str], patience_s: float) -> list[str]:
        """Hosts that are alive, with all of their unit, and that no other job holds, in the order of ranks.

        Args:
            job: which asks.
            expected: hosts for whose agents to wait: Ray starts an agent again that was killed.
            patience_s: how long.
        """
        mine = [host for host in self.agents if self.held.get(host, job) == job]
        patient = set(expected)
        waits = {host: patience_s if host in patient else 0.0 for host in mine}
        alive = await asyncio.gather(*(self._answers(host, waits[host]) for host in mine))
        found = {host for host, answers in zip(mine, alive, strict=True) if answers} - self.on_the_way()
        self.lost = (self.lost - set(mine)) | (set(mine) - found)
        found = {host for host in found if self.held.get(host, job) == job}  # some may have been given away meanwhile
        return [host for unit in self.units if found.issuperset(unit) for host in unit]

    def on_the_way(self) -> frozenset[str]:
        """Hosts that are being brought back: there, maybe, but not compared with the others yet."""
        return self.coming if time.monotonic() < self.coming_until else frozenset()

    async def silent(self, hosts: Iterable[str], patience_s: float) -> list[str]:
        """Those of these that do not answer for so long."""
        asked = list(hosts)
        answers = await asyncio.gather(*(self._answers(host, patience_s) for host in asked))
        return [host for host, answered in zip(asked, answers, strict=True) if not answered]

    async def look_for_lost(self) -> bool:
        """Asks the lost hosts once more, as one that was cut off joins again; returns whether one is back."""
        lost = sorted(self.lost - self.on_the_way())
        answers = await asyncio.gather(*(self._answers(host, 0.0) for host in lost))
        back = {host for host, answered in zip(lost, answers, strict=True) if answered}
        self.lost -= back
        for host in back:  # its agent was started again, and has imported nothing
            self.agents[host].fill_standby.remote()
        return bool(back)

    async def _answers(self, host: str, patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                await asyncio.wait_for(self.agents[host].clock.remote(), PING_TIMEOUT_S)
            except (RayError, TimeoutError):
                if time.monotonic() >= deadline:
                    return False
                await asyncio.sleep(PING_PERIOD_S)
            else:
                return True


def _remembered(memory: Path) -> dict[str, str]:
    """Suspects that an earlier supervisor has written down; a damaged file must not keep the next from starting."""
    try:
        return {str(host): str(why) for host, why in json.loads(memory.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}
