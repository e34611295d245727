"""Sentences and events as runs leave them, for the tests of what the fault runs accept."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fault_cases import CASES, Injection
from fault_evidence import Evidence, Said
from fault_verdict import Outcome, judge

CALM = "c" * 64
HINTS = (
    "\nnext:\n  spmd-launch results run-1 --output DIR\n  spmd-launch logs run-1\nrank 0 and rank 1 launched on laptop"
)
STEPS = [(0.9, 6), (2.0, 2), (3.0, 8), (4.0, 40)]
BY_NAME = {case.name: case for case in CASES}

KILLED = "rank 1 on host faults-1 was killed by signal 9 (SIGKILL) during 'run, step 6 of 40': by somebody's hand"
SLEPT = (
    "rank 1 on host faults-1 made no progress for 10 s in 'run', step 6 of 40; rank 0 waits in 'run', step 8 of 40; "
    "rank 1 is at inject.py:90 in Injector.sleep"
)
FROZEN = (
    "rank 1 on host faults-1 has said nothing for 10 s: its process is stopped (state T), as by SIGSTOP; "
    "rank 0 waits in 'run', step 6 of 40"
)
LOST = "rank 1 on host faults-1 was lost during 'run, step 6 of 40': its agent cannot be reached"
SWAPPED = "ranks have launched different programs: launch 18: rank 0 launched 'train' where rank 1 launched 'validate'"
IN_ORDERS = (
    "ranks 0 on faults-0, 1 on faults-1 each raised LaunchOrderError: ranks have launched programs in different "
    "orders: launch 5: rank 0 launched 'validate' where rank 1 launched 'train'; launches at the report of step 8: "
    "rank 0 6, rank 1 5 during 'replica check, step 8 of 40'"
)
SKIPPED = "ranks have launched different programs: launches at the report of step 8: rank 0 10, rank 1 9"
OTHER_PROGRAM = (
    "ranks 0 on faults-0, 1 on faults-1 each raised ProgramMismatchError during 'run, step 6 of 40': program jit_train:"
    " rank 0 and rank 1 differ; nothing has run. First difference, line 19:\n"
    "  rank 0 on faults-0: %cst = dense<0.0>\n  rank 1 on faults-1: %cst = dense<1.0>\nEvery host must build the same"
)
OTHER_ENV = (
    "rank 0 on host faults-0 raised EnvironmentMismatchError during 'environment': the hosts do not run in the same "
    "environment; nothing has run:\n  option jax_default_matmul_precision: rank 0 (faults-0): highest; "
    "rank 1 (faults-1): bfloat16\nGive every host the same packages"
)
FLIPPED = (
    "ranks 0 on faults-0, 1 on faults-1 each raised ReplicaDivergenceError during 'run, step 6 of 40': replicas differ "
    "at step 6, in 1 of 18 leaves:\n  params/head: 3 x (faults-0/cpu:0, faults-0/cpu:1, faults-1/cpu:131072) against "
    "1 x (faults-1/cpu:131073); culprit: faults-1/cpu:131073 (majority)\n    first at [2, 3]: 0x1 (1) on "
    "faults-0/cpu:0, 0x9 (9) on faults-1/cpu:131073, bit 3; 1 of 8 elements differ"
)


def injection(name: str, place: int = 1) -> Injection:
    return Injection(case=BY_NAME[name], workload="transformer", step=6, place=place)


RAISED = "rank 1 on host faults-1 raised RuntimeError: raised by --inject at step 6 during 'run, step 6 of 40'"
TRACEBACK = "Traceback (most recent call last):\n  File ...\nRuntimeError: raised by --inject at step 6"
OUT_OF_MEMORY = (
    "rank 1 on host faults-1 raised MemoryError: memory ran out, with 0.63 GiB used by the process; use smaller "
    "batches during 'run, step 6 of 40'"
)


def failed(message: str, at: float = 1.2) -> dict[str, Any]:
    return {"type": "attempt-failed", "at": at, "attempt": 1, "message": message, "details": TRACEBACK}


def injected(fault: Injection, step: int = 6) -> dict[str, Any]:
    told = {"kind": fault.case.kind, "place": fault.place}
    return {"type": "injected", "at": 1.0, "rank": fault.rank, "fault": told, "step": step}


def committed(step: int) -> dict[str, Any]:
    return {"type": "checkpoint", "at": 0.5, "rank": 0, "step": step}


def note(text: str) -> dict[str, Any]:
    return {"type": "note", "at": 1.2, "message": text}


def restart(*said: str, step: int, number: int = 2) -> list[dict[str, Any]]:
    """What an attempt that goes on from `step` leaves, where so much was said of it."""
    return [
        *map(note, said[:1]),
        {"type": "attempt", "at": 1.2, "attempt": number},
        *map(note, said[1:]),
        {"type": "resumed", "at": 1.9, "rank": 0, "step": step},
    ]


def look(
    fault: Injection,
    message: str,
    more: Sequence[Mapping[str, Any]] = (),
    after: Sequence[Mapping[str, Any]] | None = None,
    **changed: Any,
) -> Outcome:
    """The verdict on a run that ended as it should, but for what is changed.

    Args:
        fault: what was injected.
        message: that was told of it.
        more: events of the first attempt, besides.
        after: events of the second attempt; by default it starts from step 0, as is said.
        changed: of the evidence; `events` are those of the first attempt.
    """
    refused, by_hand = fault.case.ends == "refused", fault.case.ends == "resumed-by-hand"
    result = None if refused else {"result_digest": CALM}
    state, attempt = ("FAILED", 1) if refused else ("SUCCEEDED", 2)
    job = changed.pop("job", {"state": state, "attempt": attempt, "message": message, "result": result})
    where_from = "attempt 2 starts from step 0: no checkpoint"
    if after is None:
        after = restart(*([] if by_hand else [where_from]), step=0)
    first = changed.pop("events", [injected(fault), *more, failed(message)])
    steps = [{"at": at, "rank": rank, "step": step} for at, step in STEPS for rank in (0, 1)]
    evidence = Evidence(
        commands=[Said(exit_code=int(refused), printed=f"! {message}; {where_from}{HINTS}")],
        job=job,
        events=[{"type": "attempt", "at": 0.1, "attempt": 1}, *first, *(after if job["attempt"] == 2 else [])],
        reports=steps,
        stacks={fault.rank: "File context.py, line 222, in inject"},
    )
    return judge(5, fault, dataclasses.replace(evidence, **changed), CALM, 1.0)


FLIP = {
    "type": "flipped",
    "at": 1.0,
    "rank": 1,
    "leaf": "params/head",
    "device": 3,
    "index": 11,
    "element": [2, 3],
    "bit": 3,
}
RIGHT = [
    ("kill", 1, KILLED, ()),
    ("kill while it saves", 1, KILLED, ()),
    ("raise", 1, RAISED, ()),
    ("exit", 1, "rank 1 on host faults-1 ended with exit code 3 during 'run, step 6 of 40', without a", ()),
    ("oom", 1, OUT_OF_MEMORY, ()),
    ("freeze", 1, FROZEN, ()),
    ("sleep", 1, SLEPT, ()),
    ("kill-agent", 1, LOST, ()),
    ("kill-supervisor", 0, "the supervisor was ended and started again", ()),
    ("skip-collective", 1, SKIPPED, ()),
    ("swap-programs", 1, SWAPPED, ()),
    ("swap-programs", 0, IN_ORDERS, ()),
    ("other-program", 1, OTHER_PROGRAM, ()),
    ("other-env", 1, OTHER_ENV, ()),
    ("flip-bit", 3, FLIPPED, (FLIP,)),
]  # fmt: skip
