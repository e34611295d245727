"""Hosts that a client brings back into a running cluster: its word that they come, and their taking in.

Lives in the supervisor. A word is good for a minute, and the client gives it again and again: while it is good, jobs
that wait for hosts wait on, and what comes up under the names of these hosts is given to no job before it was compared
with the others, as at `up`.
"""

import asyncio
import dataclasses
import datetime
import time
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError

from cluster.record import Cluster, Host
from launcher.blobs import BlobStore, ship
from launcher.errors import FailureError, UserError
from launcher.host_pool import HostPool
from launcher.parity import compare, gather_facts
from launcher.protocol import Message
from launcher.storage import probe_storage

OPS = ("lost", "mend", "take-in")  # of clients
WORD_S = 60.0
LOST_PATIENCE_S = 8.0  # Ray starts an agent that was killed again in one to two seconds
AGENT_TIMEOUT_S = 60.0  # from a node that has joined to its agent's first answer
FACTS_TIMEOUT_S = 120.0


class HostReturn:
    """Of one cluster.

    Args:
        pool: of its hosts.
        blobs: what its hosts run.
    """

    def __init__(self, pool: HostPool, blobs: BlobStore):
        self._pool = pool
        self._blobs = blobs
        self._by = ""
        self._since = ""
        self._over: set[str] = set()  # whose word counts no more: one may arrive late

    async def lost(self) -> Message:
        """Hosts that do not answer now, in the order of ranks."""
        return {"hosts": await self._pool.silent(self._pool.agents, LOST_PATIENCE_S)}

    def hear(self, by: str, hosts: Sequence[str]) -> Message:
        """A client's word that it brings these hosts back; without hosts, that it does so no longer.

        Args:
            by: whose word: another for each client, and each time.
            hosts: their names.

        Raises:
            UserError: another client brings hosts back now.
        """
        pool, now = self._pool, time.monotonic()
        coming = pool.on_the_way()
        if by in self._over:
            return {}
        if coming and self._by != by:
            raise UserError(
                f"{', '.join(sorted(coming))}: another client brings them back, since {self._since}; if it has ended, "
                "try again in a minute"
            )
        if self._by != by:
            self._by = by
            self._since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        pool.coming, pool.coming_until = frozenset(hosts), now + WORD_S if hosts else now
        pool.lost |= pool.coming
        if not hosts:
            self._over.add(by)
        return {}

    def state(self) -> Message:
        """What `status` tells: the hosts, and since when they are brought back; without hosts, none is."""
        coming = sorted(self._pool.on_the_way())
        return {"hosts": coming, "since": self._since if coming else ""}

    async def take_in(self, cluster: Cluster, by: str, hosts: Sequence[Host]) -> Cluster:
        """Makes hosts that have joined Ray again members of the cluster, if they are like the others.

        Args:
            cluster: as it was.
            by: whose word was given.
            hosts: their new records.

        Returns:
            The cluster as it is from now on.

        Raises:
            UserError: nobody has given a word for them, or it is not good any more.
            FailureError: one does not answer, differs in what matters, or does not reach the storage.
        """
        pool, new = self._pool, {host.name: host for host in hosts}
        if self._by != by or not new.keys() <= pool.on_the_way():
            raise UserError(f"cluster {cluster.name!r}: nobody has said lately that {', '.join(new)} come back")
        if silent := await pool.silent(new, AGENT_TIMEOUT_S):
            what = f"joined Ray, but no agent has answered there within {AGENT_TIMEOUT_S:g} s"
            raise FailureError(f"{', '.join(silent)}: {what}; see {cluster.run_folder} on the head for Ray's logs")
        agents = {host: agent for host, agent in pool.agents.items() if host in new or host not in pool.lost}
        try:
            for host in new:
                await self._bring_code(host)
            await asyncio.wait_for(_require_alike(cluster, agents), FACTS_TIMEOUT_S)
            await asyncio.wait_for(probe_storage(cluster.spec, agents), FACTS_TIMEOUT_S)
        except (RayError, TimeoutError) as error:
            raise FailureError(f"a host was lost while {', '.join(new)} came back: {error!r}") from error
        pool.lost -= new.keys()
        self.hear(by, ())
        for host in new:
            pool.agents[host].fill_standby.remote()
        return dataclasses.replace(cluster, hosts=tuple(new.get(host.name, host) for host in cluster.hosts))

    async def _bring_code(self, host: str) -> None:
        """A machine that is new has an empty disk."""
        agent = self._pool.agents[host]
        code = await asyncio.wait_for(agent.base_code.remote(), FACTS_TIMEOUT_S)
        await ship(self._blobs, {host: agent}, code, [])


async def _require_alike(cluster: Cluster, agents: dict[str, Any]) -> None:
    facts = await gather_facts(list(agents.values()))
    spec = cluster.spec
    serious = [found for found in compare(facts, spec.devices_per_host, spec.jax_hardware) if found.matters]
    if serious:
        differences = "\n".join(f"  {difference}" for difference in serious)
        raise FailureError(f"cluster {cluster.name!r}: its hosts would differ, so none is taken in:\n{differences}")
