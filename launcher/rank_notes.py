"""What a person who follows a job should read of all that its ranks, and the watchdog, say; the rest is on record."""

from collections.abc import Hashable, Sequence

from launcher.job import JobSpec
from launcher.rank_process import Message
from launcher.words import number_of_bytes

CHECKPOINT_FAILED = "checkpoint-failed"  # what such a note is about, until a checkpoint is committed again


def note_of(rank: int, event: Message, hosts: Sequence[str], spec: JobSpec) -> tuple[Hashable, str] | None:
    """What to tell of an event, in a line.

    Args:
        rank: which has said it.
        event: as it was heard.
        hosts: of the attempt, in the order of ranks.
        spec: of the job.

    Returns:
        What the note is about, for whoever tells a thing once an attempt, and its text; None: nothing to tell.
    """
    about: Hashable = None
    text = ""
    match event["type"]:
        case "checkpoint-fetched":
            about, text = (rank, event["step"]), f"{_who(rank, hosts)} fetched {_fetched(event)}"
        case "checkpoint-skipped" if not event["why"].startswith("half-written"):  # as the end of an attempt leaves it
            about, text = ("skipped", event["step"]), f"checkpoint of step {event['step']} is left out: {event['why']}"
        case "checkpoint-failed":
            good = event["last_good"]
            text = f"checkpoint of step {event['step']} failed: {event['why']}; the last good one: "
            about, text = CHECKPOINT_FAILED, text + ("none" if good is None else f"step {good}")
        case "flipped":
            about, text = ("flipped", event["step"]), f"{_who(rank, hosts)}: {_flipped(event)}"
        case "barrier-off" if spec.program_barrier:
            about, text = event["why"], f"programs are not compared before they run: {event['why']}"
        case "profile-failed" if rank == 0:
            about, text = ("profile", event["session"]), f"{_who(rank, hosts)} took no profile: {event['why']}"
        case "watchdog" if not event["fatal"] and not _always_found(event, spec):  # a fatal one is the attempt's end
            about, text = (event["finding"], *event["ranks"]), _found(event, hosts)
    return (about, text) if text else None


def _fetched(event: Message) -> str:
    size, damaged = number_of_bytes(event["bytes"]), event["damaged"]
    why = f"; its own copy was damaged: {', '.join(damaged[:3])}" + (" and more" if len(damaged) > 3 else "")
    return f"{size} of the checkpoint of step {event['step']} from the head" + (why if damaged else "")


def _flipped(event: Message) -> str:
    where = "in the host's memory, as it was gathered," if event["in_memory"] else f"on device {event['device']}"
    element = event["element"] or ""
    return f"--inject flipped bit {event['bit']} of {event['leaf']}{element} {where} at step {event['step']}"


def _always_found(event: Message, spec: JobSpec) -> bool:
    """A script whose launches nobody counts seems to stand still, whatever it does."""
    return event["finding"] == "together" and spec.command is not None and not spec.watch_launches


def _found(event: Message, hosts: Sequence[str]) -> str:
    first, *others = event["ranks"]
    if event["finding"] == "host-silent":
        return f"host {hosts[first]}: {event['text']}"
    return f"{_who(first, hosts)}{f' and {len(others)} more' if others else ''} {event['text']}"


def _who(rank: int, hosts: Sequence[str]) -> str:
    return f"rank {rank} on host {hosts[rank]}"
