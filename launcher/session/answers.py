"""What the ranks' answers to one call mean for its caller: pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.error_text import fold, named, traceback_text
from launcher.session.errors import GangError

Answer = Mapping[str, Any]  # as `launcher.interactive_talk` sends it
NUM_NAMED = 5


def raise_if_raised(answers: Sequence[Answer], name: str) -> None:
    """Tells what ranks have raised, equal tracebacks once.

    Raises:
        GangError: one has.
    """
    raised = {rank: traceback_text(a["error"]["parts"]) for rank, a in enumerate(answers) if a["outcome"] == "raised"}
    if not raised:
        return
    who = "all ranks" if len(raised) == len(answers) > 1 else named(list(raised))
    others = [rank for rank in range(len(answers)) if rank not in raised]
    returned = f", while {named(others)} returned" if others else ""
    raise GangError(f"{name}: {who} raised{returned}; the gang can be used\n\n{fold(raised)}", raised)


def raise_if_different(answers: Sequence[Answer], name: str) -> None:
    """Compares what all ranks have returned; arrays over several hosts by shape, dtype and sharding.

    Raises:
        GangError: naming the leaves and ranks that differ.
    """
    first = answers[0]["leaves"]
    leaves = [answer.get("leaves", first) for answer in answers]
    if all(told == first for told in leaves):
        return
    by_path = [{path: (digest, text) for path, digest, text in told} for told in leaves]
    paths = list(dict.fromkeys(path for told in by_path for path in told))
    differing = [path for path in paths if len({told.get(path, ("", ""))[0] for told in by_path}) > 1]
    lines = [f"  {_place(path)}: {_values(path, by_path)}" for path in differing[:NUM_NAMED]]
    more = f"\n  and {len(differing) - NUM_NAMED} more" if len(differing) > NUM_NAMED else ""
    raise GangError(
        f"{name} returned different values on different ranks, and gang.run gives one for all:\n"
        + "\n".join(lines) + f"{more}\ngang.run_each gives each rank's; the gang can be used"
    )  # fmt: skip


def _place(path: str | None) -> str:
    return "structure" if path is None else f"value{path}"


def _values(path: str | None, by_path: Sequence[Mapping[str | None, tuple[str, str]]]) -> str:
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, told in enumerate(by_path):
        groups.setdefault(told.get(path, ("", "absent")), []).append(rank)
    texts = {text for _, text in groups}
    hint = "" if len(texts) == len(groups) else " (equal as text, but not bit for bit)"
    return ", ".join(f"{named(ranks)} {text}" for (_, text), ranks in groups.items()) + hint
