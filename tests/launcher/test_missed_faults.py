"""A fault asked for that has not happened is told at the end of the job, with the reason where it is known."""

from typing import Any

import pytest

from launcher.attempt import RankStatus
from launcher.faults import parse_fault
from launcher.missed_faults import missed_faults

ALONE = "it is for attempt 1 alone (attempt=any is for each), which ended at step 20"
NO_CALL = "the workload did not call context.inject"


def begun(number: int, num_hosts: int = 2) -> list[dict[str, Any]]:
    return [
        {"type": "attempt", "attempt": number, "hosts": [f"h{host}" for host in range(num_hosts)]},
        {"type": "joined", "rank": 0, "num_devices": 2 * num_hosts, "local_devices": 2},
    ]


def failed(step: int, cause: str = "failure") -> dict[str, Any]:
    return {"type": "attempt-failed", "attempt": 1, "step": step, "cause": cause}


def injected(text: str) -> dict[str, Any]:
    return {"type": "injected", "rank": 1, "fault": parse_fault(text).to_json(), "step": 41}


def told(text: str, events: list[dict[str, Any]], reached: int = 200) -> list[str]:
    ranks = [RankStatus(rank, f"h{rank}", step=reached - rank) for rank in range(2)]
    return missed_faults([parse_fault(text).to_json()], events, ranks)


NOT_KNOWN = "it is not known to have happened: what was told of the attempt that was lost may not be on record"


@pytest.mark.parametrize(
    ("text", "events", "why"),
    [
        ("kill rank=1 step=500", begun(1), "the last step reported is 200"),
        ("raise rank=0 step=40", [*begun(1), failed(20), *begun(2)], ALONE),
        ("raise rank=0 step=500 attempt=any", [*begun(1), failed(20), *begun(2)], "the last step reported is 200"),
        ("raise rank=0 step=500 attempt=any", [*begun(1), failed(20)], "the furthest attempt ended at step 20"),
        ("kill rank=1 step=20 attempt=3", [*begun(1), failed(20), *begun(2)], "it is for attempt 3, and there were 2"),
        (
            "kill rank=1 step=40 attempt=2",
            [*begun(1), failed(20), *begun(2, num_hosts=1)],
            "there was no rank 1 in attempt 2, on 1 host(s)",
        ),
        (
            "flip-bit device=2 step=40 attempt=any",
            begun(1, num_hosts=1),
            "there was no device 2 in any attempt, on 1 host(s)",
        ),
        ("freeze rank=1 step=40", begun(1), f"{NO_CALL} at that step or after it"),
        ("flip-bit device=3 step=40", begun(1), f"{NO_CALL} with a state to compare at that step or after it"),
        ("kill-agent host=1 step=40", [*begun(1), failed(20), *begun(2)], ALONE),
        ("kill-supervisor step=500", begun(1), "the last step reported is 200"),
        ("sleep rank=1 step=5 seconds=2", [], "it is for attempt 1, and there were 0"),
        ("raise rank=1 step=40", [*begun(1), failed(30, "preempted"), *begun(2)], NOT_KNOWN),
        ("oom rank=1 step=5", [*begun(1), {"type": "port-lost"}, *begun(2)],
         "it is for attempt 1 alone (attempt=any is for each), which ended at step 0"),
    ],
)  # fmt: skip
def test_a_fault_that_has_not_happened_is_told_with_the_reason(
    text: str, events: list[dict[str, Any]], why: str
) -> None:
    assert told(text, events) == [f"--inject {text!r} did not happen: {why}"]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("kill rank=1 step=40", [*begun(1), injected("kill rank=1 step=40"), failed(40), *begun(2)]),
        ("exit rank=1 step=40 attempt=any", [*begun(1), injected("exit rank=1 step=40 attempt=any")]),
        ("kill-agent host=1 step=40", [*begun(1), failed(30, "preempted"), *begun(2)]),  # its word died with the agent
        ("kill-holder step=40", [*begun(1), {"type": "resumed-by-hand"}, *begun(2)]),
    ],
)
def test_what_has_happened_or_may_have_is_not_told(text: str, events: list[dict[str, Any]]) -> None:
    assert told(text, events) == []


def test_one_that_happened_does_not_hide_another_that_did_not() -> None:
    events = [*begun(1), injected("raise rank=0 step=40"), failed(40), *begun(2)]
    faults = [parse_fault(text).to_json() for text in ("raise rank=0 step=40", "raise rank=0 step=60")]
    (said,) = missed_faults(faults, events, [])
    assert said.startswith("--inject 'raise rank=0 step=60' did not happen: it is for attempt 1 alone")


def test_faults_that_have_the_same_reason_are_one_sentence() -> None:
    faults = [parse_fault(f"sleep rank=1 step={step} seconds=2").to_json() for step in (300, 400)]
    (said,) = missed_faults(faults, begun(1), [RankStatus(0, "h0", step=200)])
    first, last = (f"'sleep rank=1 step={step} seconds=2'" for step in (300, 400))
    assert said == f"--inject {first}, {last} did not happen: the last step reported is 200"
