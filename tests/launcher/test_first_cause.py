"""The message of a failed attempt names what happened first, whatever was heard first."""

import dataclasses
import signal
from collections.abc import Mapping

import pytest

from launcher.first_cause import first_cause
from launcher.job import RankEnd
from launcher.recovery import Cause


def _error(kind: str, message: str) -> Mapping[str, str]:
    text = f'Traceback (most recent call last):\n  File "run.py", line 3, in run\n{kind}: {message}\n'
    return {"type": kind, "message": message, "traceback": text}


GLOO = _error("JaxRuntimeError", "Gloo all-reduce failed: Connection closed by peer")
KILLED = RankEnd(rank=1, host="b", signal=signal.SIGKILL, phase="step 120 of 400", order=1)
RAISED = RankEnd(rank=0, host="a", error=_error("ValueError", "no data"), phase="load", order=2)
SURVIVOR = RankEnd(rank=0, host="a", error=GLOO, phase="step 121 of 400", order=0)
ABORTED = RankEnd(rank=2, host="c", signal=signal.SIGABRT, order=1)
ABANDONED = RankEnd(rank=1, host="b", signal=signal.SIGABRT, abandoned=True, order=0)  # by JAX, as its log says
WRAPPED = RankEnd(
    rank=1,
    host="b",
    error={
        "type": "RuntimeError",
        "message": "step 121 failed",
        "traceback": f"{GLOO['traceback']}\nThe above exception was ...:\n\nTraceback ...\nRuntimeError: step 121\n",
    },
    order=0,
)
ABSENT = RankEnd(rank=0, host="a", error=_error("AbsentError", "rank 0 waited 9.0 s for 'digest'") | {"ranks": [1, 7]})
EXITED = RankEnd(rank=3, host="d", exit_code=3, phase="run", order=3)
CAUGHT = RankEnd(rank=5, host="f", exit_code=1, order=-1)  # what a script may do with any error
LOST = RankEnd(rank=4, host="e", lost="its agent cannot be reached (ActorDiedError)", order=9)


@pytest.mark.parametrize(
    ("ends", "first_words"),
    [
        ([KILLED], "rank 1 on host b was killed by signal 9 (SIGKILL) during 'step 120 of 400'"),
        ([SURVIVOR, KILLED], "rank 1 on host b was killed by signal 9"),  # the survivor was heard first
        ([SURVIVOR, KILLED, LOST], "rank 4 on host e was lost: its agent cannot be reached (ActorDiedError)"),
        ([ABORTED, RAISED], "rank 0 on host a raised ValueError: no data during 'load'"),
        ([ABANDONED, RAISED], "rank 0 on host a raised ValueError: no data during 'load'"),  # JAX aborted the other
        ([ABORTED, SURVIVOR], "rank 2 on host c was killed by signal 6 (SIGABRT): an assertion or damaged memory"),
        ([ABORTED, SURVIVOR, RAISED], "rank 0 on host a raised ValueError: no data during 'load'"),
        ([ABORTED, WRAPPED], "rank 2 on host c was killed by signal 6 (SIGABRT)"),  # what came of gloo's error
        ([ABORTED, ABSENT], "rank 2 on host c was killed by signal 6 (SIGABRT)"),
        ([ABANDONED, ABORTED], "rank 2 on host c was killed by signal 6 (SIGABRT): an assertion"),  # the service's host
        ([ABANDONED, SURVIVOR], "rank 0 on host a raised JaxRuntimeError: Gloo"),
        ([ABORTED, EXITED], "rank 3 on host d ended with exit code 3 during 'run', without a Python exception"),
        ([SURVIVOR, EXITED], "rank 3 on host d ended with exit code 3"),
        ([CAUGHT, KILLED], "rank 1 on host b was killed by signal 9"),
        ([CAUGHT, EXITED], "rank 3 on host d ended with exit code 3"),
        ([CAUGHT, RAISED], "rank 0 on host a raised ValueError"),
        ([CAUGHT, SURVIVOR], "rank 5 on host f ended with exit code 1"),
        ([dataclasses.replace(CAUGHT, abandoned=True), SURVIVOR], "rank 0 on host a raised JaxRuntimeError"),
        ([CAUGHT], "rank 5 on host f ended with exit code 1"),
        ([ABANDONED], "rank 1 on host b was killed by signal 6 (SIGABRT): by JAX, which has lost process 0"),
        ([SURVIVOR, RAISED], "rank 0 on host a raised ValueError"),
        ([dataclasses.replace(SURVIVOR, order=2), WRAPPED], "rank 1 on host b raised RuntimeError: step 121 failed"),
        # `order` counts, not the place in the list.
        ([dataclasses.replace(WRAPPED, order=2), SURVIVOR], "rank 0 on host a raised JaxRuntimeError"),
    ],
)
def test_the_first_cause_is_named(ends: list[RankEnd], first_words: str) -> None:
    assert first_cause(ends).sentence.startswith(first_words)


def test_who_is_waited_for_in_vain_is_named_before_who_waits() -> None:
    said = "rank 0 on host a raised AbsentError: rank 0 waited 9.0 s for 'digest'"
    assert first_cause([ABSENT], hosts=["a", "b"]).sentence == (
        f"rank 1 on host b did not come where the others waited: {said}"
    )
    assert first_cause([ABSENT]).sentence == said


def test_what_our_own_checks_found_comes_without_their_traceback() -> None:
    refused = dataclasses.replace(RAISED, error={**(RAISED.error or {}), "cause": "refused"})
    assert str(first_cause([refused])) == first_cause([RAISED]).sentence


def test_a_python_error_comes_with_its_traceback() -> None:
    sentence, blank, *traceback = str(first_cause([RAISED])).splitlines()
    assert sentence == "rank 0 on host a raised ValueError: no data during 'load'"
    assert blank == ""
    assert traceback[0] == "Traceback (most recent call last):"
    assert traceback[-1] == "ValueError: no data"


def test_a_killed_process_gets_advice() -> None:
    assert "by somebody's hand" in first_cause([KILLED]).sentence
    starved = RankEnd(rank=1, host="b", signal=signal.SIGKILL, out_of_memory=True)
    assert "memory ran out" in first_cause([starved]).sentence
    bare = first_cause([RankEnd(rank=1, host="b", error=_error("MemoryError", ""))]).sentence
    assert bare.startswith("rank 1 on host b raised MemoryError: memory ran out; use smaller batches")
    memory = {"peak_bytes": 3 * 2**29, "host_bytes": 8 * 2**30}
    used = "memory ran out, with 1.50 GiB used by the process, on a host that has 8.00 GiB; use smaller batches"
    assert used in first_cause([dataclasses.replace(starved, memory=memory)]).sentence
    raised = RankEnd(rank=1, host="b", error=_error("MemoryError", ""), memory=memory)
    smaller = dataclasses.replace(raised, rank=0, host="a", memory=memory | {"peak_bytes": 1})
    assert used in first_cause([smaller, raised]).sentence
    terminated = RankEnd(rank=0, host="a", signal=signal.SIGTERM)
    assert str(first_cause([terminated])) == "rank 0 on host a was killed by signal 15 (SIGTERM)"


def test_a_device_whose_memory_ran_out_is_told_before_what_jax_says_of_it() -> None:
    message = "RESOURCE_EXHAUSTED: Out of memory.\nLargest program allocations: ..."
    memory = {"device": "TPU v5 lite", "peak_bytes": 15 * 2**30, "device_bytes": 31 * 2**29}
    end = RankEnd(rank=1, host="b", error=_error("JaxRuntimeError", message), phase="run", memory=memory)
    advice = "use smaller batches or fewer chains a device, or more hosts"
    used = "(TPU v5 lite), with 15.00 GiB used of the 15.50 GiB that there are for it"
    begins = "rank 1 on host b raised JaxRuntimeError during 'run': memory ran out on a device"
    assert first_cause([end]).sentence == f"{begins} {used}; {advice}: {message}"
    silent = dataclasses.replace(end, memory={"device": "TPU v5 lite", "peak_bytes": 0, "device_bytes": 0})
    assert first_cause([silent]).sentence == f"{begins}; {advice}: {message}"


def test_a_host_that_does_not_count_kills_for_want_of_memory_is_not_said_to_have_none() -> None:
    unknown = first_cause([dataclasses.replace(KILLED, out_of_memory=None)]).sentence
    assert unknown.endswith(
        "by somebody's hand, or by the kernel for want of memory, which does not say so on this host"
    )


def test_a_real_time_signal_has_no_name_but_a_number() -> None:
    assert first_cause([RankEnd(rank=0, host="a", signal=37)]).sentence.startswith(
        "rank 0 on host a was killed by signal 37"
    )


def test_equal_errors_are_one_message_with_a_list_in_the_order_of_ranks() -> None:
    ends = [RankEnd(rank=rank, host=f"h{rank}", error=GLOO, order=5 - rank) for rank in (2, 0, 1)]
    assert first_cause(ends).sentence.startswith("ranks 0 on h0, 1 on h1, 2 on h2 each raised JaxRuntimeError")
    many = [RankEnd(rank=rank, host=f"h{rank}", exit_code=1, order=rank) for rank in range(9)]
    assert first_cause(many).sentence.startswith("9 ranks (first: 0 on h0) each ended with exit code 1")


def test_other_errors_are_not_listed_with_the_first() -> None:
    other = RankEnd(rank=1, host="b", error=_error("ValueError", "other data"), order=3)
    assert first_cause([RAISED, other]).sentence.startswith("rank 0 on host a raised ValueError: no data")


def test_what_ranks_found_by_comparing_themselves_comes_first() -> None:
    other_program = RankEnd(rank=0, host="a", error={**_error("ProgramMismatchError", "line 3"), "cause": "refused"})
    found = first_cause([KILLED, LOST, other_program])
    assert found.cause is Cause.REFUSED and "ProgramMismatchError" in found.sentence


def test_the_cause_says_what_comes_next() -> None:
    assert first_cause([KILLED]).cause is Cause.FAILURE
    assert first_cause([LOST]).cause is Cause.PREEMPTED
    diverged = {**_error("ReplicaDivergenceError", "replicas differ\n  w"), "cause": "diverged", "suspects": ["b"]}
    found = first_cause([RankEnd(rank=0, host="a", error=diverged, phase="replica check")])
    assert (found.cause, found.suspects) == (Cause.DIVERGED, ("b",))
    assert found.sentence.splitlines()[0].endswith("during 'replica check': replicas differ")


def test_a_rank_that_was_killed_on_a_host_that_was_to_go_is_lost_with_it() -> None:
    notice = {"b": "its cloud will end it (preemption: TRUE)"}
    found = first_cause([SURVIVOR, dataclasses.replace(KILLED, signal=signal.SIGTERM)], notice)
    assert found.cause is Cause.PREEMPTED
    assert found.sentence == (
        "rank 1 on host b was lost during 'step 120 of 400': its process was killed by signal 15 (SIGTERM); "
        "its cloud will end it (preemption: TRUE)"
    )
    lost = first_cause([dataclasses.replace(LOST, host="b")], notice)
    assert lost.cause is Cause.PREEMPTED and lost.sentence.endswith(
        "(ActorDiedError); its cloud will end it (preemption: TRUE)"
    )


@pytest.mark.parametrize(
    "end",
    [
        KILLED,  # on another host
        dataclasses.replace(KILLED, host="a", out_of_memory=True),
        dataclasses.replace(KILLED, host="a", signal=signal.SIGSEGV),
        RAISED,
    ],
)
def test_what_else_happens_there_is_a_failure_all_the_same(end: RankEnd) -> None:
    assert first_cause([end], {"a": "its cloud will end it"}).cause is Cause.FAILURE
