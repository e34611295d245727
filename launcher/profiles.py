"""Brings the profiles of one attempt's ranks into the job's record, as they come."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError

from launcher.job_record import JobRecord
from launcher.outputs import collect_outputs
from launcher.rank_process import Message, keep

FETCH_TIMEOUT_S = 120.0  # a profile may have hundreds of megabytes


class Profiles:
    """The profiles of an attempt.

    Args:
        record: of the job.
        agents: Ray handles of the hosts' agents, in the order of ranks.
        attempt_id: whose profiles.
    """

    def __init__(self, record: JobRecord, agents: Sequence[Any], attempt_id: str):
        self._record = record
        self._agents = agents
        self._attempt_id = attempt_id
        self._num_asked = 0
        self._fetching: list[asyncio.Task[None]] = []
        self._come: dict[str, set[int]] = {}  # {session: ranks}

    async def ask(self, steps: int) -> str:
        """Tells every rank to take a profile of its next steps; returns the name of the session."""
        self._num_asked += 1
        session = f"attempt-{self._record.attempt}-asked-{self._num_asked}"
        request = {"type": "profile", "session": session, "steps": str(steps)}
        with contextlib.suppress(RayError):  # a host is lost, and with it this attempt
            await asyncio.gather(*(agent.tell.remote(self._attempt_id, request) for agent in self._agents))
        return session

    def fetch(self, rank: int, event: Message) -> None:
        """Begins to fetch what a rank has told to be there; it is on record when it is here."""
        self._fetching.append(keep(self._fetch(rank, event)))

    async def settle(self) -> None:
        """Returns when all that was begun is here, or lost."""
        if self._fetching:
            await asyncio.wait(self._fetching)

    async def _fetch(self, rank: int, event: Message) -> None:
        folder, session = self._record.folder.path, event["session"]
        try:
            fetched = collect_outputs(self._agents[rank], self._attempt_id, folder, only=event["files"])
            await asyncio.wait_for(fetched, FETCH_TIMEOUT_S)
        except (RayError, OSError, TimeoutError) as error:
            why = f"it could not be fetched: {type(error).__name__}: {error}"
            self._record.hear(rank, {"type": "profile-failed", "session": session, "why": why})
            return
        self._record.hear(rank, event)
        self._come.setdefault(session, set()).add(rank)
        if len(self._come[session]) == len(self._agents):
            self._record.note(f"profile of steps {event['first']} to {event['last']}: {folder}, session {session}")
