"""Asks the ranks of a job for profiles, and brings them into its record as they come."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError

from launcher.collect import collect_outputs
from launcher.errors import UserError
from launcher.job import JobState
from launcher.job_record import JobRecord
from launcher.rank_process import Message, keep

FETCH_TIMEOUT_S = 120.0  # a profile may have hundreds of megabytes


class Profiles:
    """The profiles of a job.

    Args:
        record: of the job.
    """

    def __init__(self, record: JobRecord):
        self._record = record
        self._agents: Sequence[Any] = ()
        self._attempt_id = ""
        self._num_asked = 0
        self._fetching: list[asyncio.Task[None]] = []
        self._come: dict[str, set[int]] = {}  # {session: ranks}

    def begin_attempt(self, attempt_id: str, agents: Sequence[Any]) -> None:
        """From now on profiles are of this attempt, whose ranks these Ray handles of agents have, in their order."""
        self._attempt_id, self._agents = attempt_id, agents

    async def ask(self, steps: int) -> Message:
        """Tells every rank to take a profile of its next steps.

        Returns:
            `session`, the profile's name among the job's, and `ranks`, how many were asked.

        Raises:
            UserError: nothing that reports steps runs.
        """
        job = self._record.spec.name
        if self._record.spec.command is not None:
            raise UserError(
                f"job {job!r} runs a command, whose steps cannot be seen from outside: "
                f"take the profile in the script, with jax.profiler.start_trace and stop_trace"
            )
        if self._record.state is not JobState.RUNNING:
            raise UserError(f"job {job!r} is {self._record.state}: only steps of a job that is RUNNING can be profiled")
        self._num_asked += 1
        session = f"attempt-{self._record.attempt}-asked-{self._num_asked}"
        request = {"type": "profile", "session": session, "steps": str(steps)}
        with contextlib.suppress(RayError):  # a host is lost, and with it this attempt
            await asyncio.gather(*(agent.tell.remote(self._attempt_id, request) for agent in self._agents))
        return {"session": session, "ranks": len(self._agents)}

    def fetch(self, rank: int, event: Message) -> None:
        """Begins to fetch what a rank says to be there; when it is here it is on record."""
        self._fetching.append(keep(self._fetch(rank, event)))

    async def settle(self) -> None:
        """Returns when all that was begun is here, or lost."""
        if self._fetching:
            await asyncio.wait(self._fetching)

    async def _fetch(self, rank: int, event: Message) -> None:
        folder, session = self._record.folder.path, event["session"]
        try:
            fetched = collect_outputs(self._agents[rank], self._attempt_id, folder, only=event["files"])
            left = (await asyncio.wait_for(fetched, FETCH_TIMEOUT_S)).left
            why = ", ".join(f"{name}: {reason}" for name, reason in left.items())
        except (RayError, TimeoutError) as error:
            why = f"{type(error).__name__}: {error}"
        if why:
            said = {"type": "profile-failed", "session": session, "why": f"it could not be fetched: {why}"}
            self._record.hear(rank, said)
            return
        self._record.hear(rank, event)
        self._come.setdefault(session, set()).add(rank)
        if len(self._come[session]) == len(self._agents):
            self._record.note(f"profile of steps {event['first']} to {event['last']}: {folder}, session {session}")
