"""Which of two copies was wrong? The step at which they differed, computed again from verified state, tells.

Pure functions of a job's record. Steps are deterministic to the bit on one layout: a copy that does not have the
fingerprint that the replay gives was wrong.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.recovery import Cause
from workloads.words import first_of

MOST_BLOCKS = 64  # that a replay is asked for: one fault seldom touches more, and a task stays small


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenCase:
    """Copies that differed in an attempt that failed, where neither a majority nor the past told which were wrong.

    Attributes:
        step: at which a check found them.
        hosts: of that attempt, in the order of ranks.
        blocks: `{block: {holder: fingerprint}}`; a holder is `host/device`.
        start: the step from which the newest attempt began.
    """

    step: int
    hosts: tuple[str, ...]
    blocks: Mapping[str, Mapping[str, str]]
    start: int = 0

    def request(self, *, num_hosts: int, checkpoint_step: int) -> dict[str, Any] | None:
        """What the ranks of a further attempt are asked.

        Args:
            num_hosts: of that attempt; on another layout the bits differ anyhow.
            checkpoint_step: from which it starts; once the job is beyond the step, nothing can be told.

        Returns:
            `RankTask.replay`.
        """
        tells = num_hosts == len(self.hosts) and checkpoint_step < self.step
        return {"step": self.step, "blocks": list(self.blocks)} if tells else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What a replay tells.

    Attributes:
        sentence: for a person.
        suspects: hosts whose copies were wrong.
    """

    sentence: str
    suspects: tuple[str, ...] = ()


def open_case(events: Iterable[Mapping[str, Any]]) -> OpenCase | None:
    """What the next, or the running, attempt is to tell; None if nothing is open.

    A job that is resumed by hand may have other parameters, hence other bits: nothing is open any more.

    Args:
        events: of the job so far, as in `events.jsonl`.
    """
    case = found = None
    hosts: tuple[str, ...] = ()
    start = 0
    for event in events:
        match event["type"]:
            case "attempt":
                hosts, start, found = tuple(event["hosts"]), 0, None
            case "resumed":
                start = event["step"]
            case "verdict" if event["status"] == "diverged":
                found = _unsettled(event, hosts)
            case "attempt-failed" if event["cause"] == Cause.DIVERGED:
                case = found
            case "replayed" | "resumed-by-hand":
                case = None
    return dataclasses.replace(case, start=start) if case else None


def _unsettled(verdict: Mapping[str, Any], hosts: tuple[str, ...]) -> OpenCase | None:
    """The case that a verdict leaves open, if it names no culprit and there are fingerprints to compare."""
    divergences = [divergence for divergence in verdict["divergences"] if divergence["digests"]]
    if not divergences or any(divergence["culprits"] for divergence in divergences):
        return None
    blocks = {
        divergence["leaf"] + divergence["index"]: {
            holder: digest
            for group, digest in zip(divergence["groups"], divergence["digests"], strict=True)
            for holder in group
        }
        for divergence in divergences[:MOST_BLOCKS]
    }
    return OpenCase(step=verdict["step"], hosts=hosts, blocks=blocks)


def settle(case: OpenCase, digests: Mapping[str, str]) -> Finding:
    """Compares what the copies had with what the replay gave.

    A block of which no copy has the replay's bits tells nothing: by the time of the check the damage was in all copies,
    or the computation does not give the same bits twice.

    Args:
        case: as it was left open.
        digests: `{block: fingerprint}` of the replayed step.
    """
    telling = [block for block, copies in case.blocks.items() if digests.get(block) in copies.values()]
    where = f"replay from step {case.start} to {case.step}"
    if not telling:
        return Finding(
            sentence=f"{where} does not tell which copy was wrong: of {first_of(list(case.blocks))} none had the bits "
            "of the replay. Either the damage had reached all copies before it was found (a smaller --check-every "
            "finds it sooner), or these steps do not give the same bits twice"
        )
    wrong = dict.fromkeys(
        holder for block in telling for holder, digest in case.blocks[block].items() if digest != digests[block]
    )
    devices: dict[str, list[str]] = {}
    for host, _, device in (holder.partition("/") for holder in wrong):
        devices.setdefault(host, []).append(device)
    places = [f"{first_of(found)} (rank {case.hosts.index(host)}, host {host})" for host, found in devices.items()]
    copies, were = ("copies", "were") if len(wrong) > 1 else ("copy", "was")
    return Finding(
        sentence=f"{where} tells: the {copies} of {first_of(telling)} on {' and '.join(places)} {were} wrong",
        suspects=tuple(devices),
    )
