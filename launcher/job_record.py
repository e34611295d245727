"""The record of a job that lives: its state and what is told of it, on disk, with a copy in the storage."""

import asyncio
import datetime
import functools
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from launcher.attempt import RankStatus
from launcher.event_file import EventFile
from launcher.first_cause import FirstCause
from launcher.job import JobSpec, JobState, check_transition
from launcher.job_folder import JobFolder
from launcher.mirror import mirror_record
from launcher.missed_faults import missed_faults
from launcher.rank_notes import CHECKPOINT_FAILED, note_of
from launcher.rank_process import Message
from launcher.record_writer import RecordWriter
from launcher.recovery import AttemptEnd, ends_after


class JobRecord:
    """What is known of one job.

    Args:
        spec: what was asked for.
        folder: where it is kept; what is there of earlier attempts is continued.
        storage: where the job's checkpoints go, and the copy of its record.
    """

    def __init__(self, spec: JobSpec, folder: JobFolder, storage: str):
        saved = self._saved = folder.job()
        self.spec = spec
        self.folder = folder
        self.storage = storage
        self.state = JobState.QUEUED
        self.message = ""
        self.attempt: int = saved.get("attempt", 0)
        self.checkpoint_step: int | None = saved.get("checkpoint_step")
        self.hosts: Sequence[str] = ()
        self.ranks: Sequence[RankStatus] = ()
        self.notes: list[str] = []
        self.verdicts: list[Message] = []
        self.result: dict[str, Any] | None = None
        self.ends: tuple[AttemptEnd, ...] = functools.reduce(ends_after, folder.lines("events.jsonl"), ())
        self.changed = asyncio.Event()
        self.writer = RecordWriter(folder, self._tell_of_disk)
        self._failed_at: float | None = None
        self._submitted = time.monotonic() - max((event["at"] for event in folder.lines("events.jsonl")), default=0.0)
        self._times: dict[str, str] = {}
        self._mirroring: asyncio.Task[None] | None = None
        self._mirrored_inputs: set[str] = set()
        self._noted: set[Hashable] = set()  # what this attempt's notes of its ranks are about
        self._stale = False  # the copy in the storage
        self._curves: EventFile | None = None  # of this attempt, once rank 0 has reported a metric

    def adopt(self, state: JobState) -> None:
        """Goes on in that state with the record of a supervisor that has ended; its notes have been read."""
        for event in self.folder.lines("events.jsonl"):
            if event["type"] in ("resumed-by-hand", "cluster-lost"):
                self.notes.clear()
            elif event["type"] == "note":
                self.notes.append(event["message"])
        self.event("adopted", state=state)
        self.state = state

    def snapshot(self) -> dict[str, Any]:
        """The job as `status JOB --json` gives it."""
        return self._told() | {"hosts": list(self.hosts), "ranks": [_rank(rank) for rank in self.ranks]}

    def _told(self) -> dict[str, Any]:
        return {
            "name": self.spec.name,
            "job_id": self.spec.job_id,
            "workload": self.spec.workload,
            "state": self.state,
            "attempt": self.attempt,
            "message": self.message,
            "notes": self.notes,
            "checkpoint_step": self.checkpoint_step,
            "seconds": round(time.monotonic() - self._submitted, 3),
        }

    def glance(self) -> dict[str, Any]:
        """What a live display shows of `snapshot`: the first rank and, if it is another, the one that is behind.

        It is sent many times a second, so it does not grow with the number of ranks.
        """
        shown = sorted({0, min(range(len(self.ranks)), key=lambda k: self.ranks[k].step)}) if self.ranks else []
        return self._told() | {"ranks": [_rank(self.ranks[k]) for k in shown]}

    # -- its life

    def enqueue(self) -> None:
        """Puts a job on record as waiting for hosts: a new one, or one that has ended and is resumed by hand."""
        self.event("state", state=JobState.QUEUED, message="")
        self.save()

    def move(self, state: JobState) -> None:
        """Takes one step of the state machine; it is on disk before anybody hears of it, if that can be written."""
        if state == self.state:
            return
        check_transition(self.state, state)
        self.state = state
        self._times[state.lower()] = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
        self.event("state", state=state, message=self.message)
        self.save()
        self.changed.set()

    def end(self, state: JobState, message: str) -> None:
        if self.spec.profile and not self.has_profile():
            reported = max((rank.step for rank in self.ranks), default=0)
            self.note(f"--profile {self.spec.profile}: no profile was taken; the last step reported is {reported}")
        if state is not JobState.CANCELLED:
            for text in missed_faults(self.spec.faults, self.folder.lines("events.jsonl"), self.ranks):
                self.note(text)
        self.message = message
        self._close_curves()
        self.move(state)
        self.close()
        self.mirror()

    def close(self) -> None:
        """Closes its files, which the next event or report opens again."""
        self._close_curves()
        self.folder.close()

    def has_profile(self) -> bool:
        """Whether a rank's profile is there."""
        return any(event["type"] == "profile" for event in self.folder.lines("events.jsonl"))

    def save(self) -> None:
        self.writer.save(
            self._saved | self.snapshot() | {"times": self._times, "storage": self.storage, "result": self.result}
        )

    def mirror(self) -> None:
        """Copies the record to the storage in the background; what changes while it is copied is copied after that."""
        self._stale = True
        if self._mirroring is None or self._mirroring.done():
            self._mirroring = asyncio.get_running_loop().create_task(self._mirror())

    async def mirrored(self) -> None:
        """Returns when the storage has the record as it is now, or has refused it."""
        self.mirror()
        assert self._mirroring is not None
        await self._mirroring

    async def _mirror(self) -> None:
        while self._stale:
            self._stale = False
            try:
                await asyncio.to_thread(mirror_record, self.folder, self.storage, self._mirrored_inputs)
            except Exception as error:  # noqa: BLE001 - each object store's client has its own; the job needs no copy
                self._fail_to_mirror(f"{type(error).__name__}: {error}")

    def _fail_to_mirror(self, why: str) -> None:
        self.event("mirror-failed", why=why)
        self._note_once("mirror", f"its record could not be copied to {self.storage}: {why}; without the head, "
                        f"only what was copied before would be left of it")  # fmt: skip

    def begin_attempt(self, attempt_id: str, hosts: Sequence[str], ranks: Sequence[RankStatus]) -> None:
        """Puts an attempt on record, before any rank of it starts."""
        self._close_curves()
        self.hosts, self.ranks = hosts, ranks
        self._noted.clear()
        self.verdicts = []  # what an attempt that failed found is on record; the result is judged by its own
        self.event("attempt", attempt=self.attempt, attempt_id=attempt_id, hosts=list(hosts))
        self.save()
        self.mirror()

    def fail_attempt(self, cause: FirstCause) -> None:
        """Puts the bad end of an attempt on record; the job looks for a way to go on."""
        step = min((rank.step for rank in self.ranks), default=0)
        self._failed_at = time.monotonic()
        self.event(
            "attempt-failed", attempt=self.attempt, cause=cause.cause, step=step, message=cause.sentence,
            details=cause.details, suspects=list(cause.suspects),
        )  # fmt: skip
        self.message = str(cause)
        self.move(JobState.RECOVERING)

    def move_attempt(self, hosts: Sequence[str], why: str) -> None:
        """Puts on record that an attempt was ended at a commit for one on other hosts; it touches no budget."""
        self._failed_at = time.monotonic()
        self.event("moved", attempt=self.attempt, step=self.checkpoint_step, hosts=list(hosts), message=why)
        self.note(why)
        self.move(JobState.RECOVERING)

    # -- what is written

    def event(self, kind: str, **details: Any) -> None:
        """Books what happened, and what follows from it for `ends`."""
        event = {"at": self._now(), "type": kind, **details}
        self.writer.append("events.jsonl", event)
        self.ends = ends_after(self.ends, event)

    def note(self, text: str) -> None:
        """Something that a person who watches the job should read; one line for the live display."""
        self.notes.append(text)
        self.event("note", message=text)
        self.changed.set()

    def _now(self) -> float:
        return round(time.monotonic() - self._submitted, 4)

    def hear(self, rank: int, event: Message) -> None:
        """Keeps what a rank said."""
        kind = event["type"]
        self._warn(event)
        if kind == "log":
            self.writer.append_text(f"logs/attempt-{self.attempt}.rank-{rank}.log", event["text"])
        elif kind == "report":
            if self._failed_at is not None:
                self.event("recovered", attempt=self.attempt, seconds=round(time.monotonic() - self._failed_at, 3))
                self._failed_at = None
            where = {"at": self._now(), "rank": rank, "step": event["step"], "total": event["total"]}
            self.writer.append("metrics.jsonl", where | event["metrics"])
            if rank == 0 and event["metrics"]:
                self._draw(event["step"], event["metrics"])
        else:
            details = {key: value for key, value in event.items() if key not in ("type", "at")}
            if kind == "result":
                details.pop("diagnostics", None)  # they are in results/summary.json
            if kind == "checkpoint" and rank == 0:
                self.checkpoint_step = event["step"]
                self._noted.discard(CHECKPOINT_FAILED)
                self.save()
                self.mirror()
            if kind == "checkpoint":
                details["path"] = f"{self.storage}/{details['path'].rpartition('/')[2]}"  # a host's own is not for long
            if kind == "resumed" and rank == 0:
                self._go_on_from(event["step"], event["path"])
            self._tell(rank, event)
            if kind == "verdict":
                self.verdicts.append({"rank": rank, **details})
            self.event(kind, rank=rank, **details)
        self.changed.set()

    def _warn(self, event: Message) -> None:
        """Notes a rank's warning once: what is the same on all ranks all of them tell."""
        if event["type"] == "warning" and event["text"] not in self.notes:
            self.note(event["text"])

    def _go_on_from(self, step: int, path: str) -> None:
        """An attempt may start elsewhere than was said: a step was damaged, or its commit was not heard of."""
        said, self.checkpoint_step = self.checkpoint_step, step if path else None
        if step != (said or 0):
            self.note(f"attempt {self.attempt} starts from step {step}, not from step {said or 0}")
            self.save()
            self.mirror()

    def _tell(self, rank: int, event: Message) -> None:
        """Notes what is worth reading, once an attempt."""
        found = note_of(rank, event, self.hosts, self.spec)
        if found is not None:
            self._note_once(*found)

    def _note_once(self, about: Hashable, text: str) -> None:
        if about not in self._noted:
            self._noted.add(about)
            self.note(text)

    def _tell_of_disk(self, text: str) -> None:
        self.note(text)
        self.mirror()

    def _draw(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._curves is None:
            what = {
                "workload": self.spec.workload,
                "seed": self.spec.seed,
                "hosts": len(self.hosts),
                **self.spec.config,
            }
            self._curves = EventFile(self.folder.path, self.attempt, what)
        self._curves.add(step, metrics)

    def _close_curves(self) -> None:
        if self._curves is None:
            return
        self._curves.close()
        if self._curves.failure:
            self.event("curves-failed", attempt=self.attempt, why=self._curves.failure)
        self._curves = None


def _rank(rank: RankStatus) -> dict[str, Any]:
    keys = ("rank", "host", "pid", "phase", "step", "total", "metrics")
    return {key: getattr(rank, key) for key in keys}
