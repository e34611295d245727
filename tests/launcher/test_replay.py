"""A step computed again tells which of two copies was wrong: the decision, and real ranks."""

from typing import Any

import pytest

from launcher.replay import MOST_BLOCKS, OpenCase, open_case, settle
from tests.ranks import run_ranks

HOSTS = ("h0", "h1")
Event = dict[str, Any]


def attempt(*hosts: str) -> Event:
    return {"type": "attempt", "hosts": list(hosts or HOSTS)}


def divergence(block: str = "w", right: str = "a", wrong: str = "b", culprits: tuple[str, ...] = ()) -> Event:
    groups = [["h0/cpu:0"], ["h1/cpu:2"]]
    return {"leaf": block, "index": "", "groups": groups, "digests": [right, wrong], "culprits": list(culprits)}


def diverged(*divergences: Event) -> Event:
    return {"type": "verdict", "status": "diverged", "step": 30, "divergences": list(divergences or [divergence()])}


def failed(cause: str = "diverged") -> Event:
    return {"type": "attempt-failed", "cause": cause}


RESUMED = {"type": "resumed", "step": 20}
IN_WORDS = {"leaf": "w", "index": "", "groups": [], "digests": [], "culprits": []}  # trees that are built differently


def test_a_divergence_without_a_culprit_leaves_a_case_open() -> None:
    case = open_case([attempt(), diverged(), failed(), attempt(), RESUMED])
    assert case == OpenCase(step=30, hosts=HOSTS, blocks={"w": {"h0/cpu:0": "a", "h1/cpu:2": "b"}}, start=20)


@pytest.mark.parametrize(
    "later",
    [
        [],
        [attempt(), RESUMED, failed("failure")],
        [attempt("h0"), failed("preempted"), attempt("h0", "h2")],
        [attempt(), RESUMED, {"type": "verdict", "status": "ok", "step": 30}],
    ],
)
def test_it_stays_open_until_the_step_was_replayed(later: list[Event]) -> None:
    case = open_case([attempt(), diverged(), failed(), *later])
    assert case is not None and (case.step, case.hosts) == (30, HOSTS)


@pytest.mark.parametrize(
    "events",
    [
        [],
        [attempt(), diverged()],
        [attempt(), diverged(divergence(culprits=("h1/cpu:2",))), failed()],
        [attempt(), diverged(divergence("v"), divergence("w", culprits=("h1/cpu:2",))), failed()],
        [attempt(), diverged(IN_WORDS), failed()],
        [attempt(), failed()],
        [attempt(), diverged(), failed(), {"type": "replayed"}],
        [attempt(), diverged(), failed(), {"type": "resumed-by-hand"}],
        [attempt(), diverged(), failed(), attempt(), failed()],
    ],
)
def test_otherwise_nothing_is_open(events: list[Event]) -> None:
    assert open_case(events) is None


def test_only_attempts_that_make_the_step_again_on_that_layout_are_asked() -> None:
    case = open_case([attempt(), diverged(divergence("v"), divergence("w")), failed()])
    assert case is not None
    assert case.request(num_hosts=2, checkpoint_step=20) == {"step": 30, "blocks": ["v", "w"]}
    assert case.request(num_hosts=1, checkpoint_step=20) is None
    assert case.request(num_hosts=2, checkpoint_step=30) is None


def test_no_more_is_asked_than_a_task_can_carry() -> None:
    case = open_case([attempt(), diverged(*(divergence(f"w{n}") for n in range(1000))), failed()])
    assert case is not None and len(case.blocks) == MOST_BLOCKS


def case_of(*blocks: tuple[str, str, str]) -> OpenCase:
    copies = {block: {"h0/cpu:0": first, "h1/cpu:2": second} for block, first, second in blocks}
    return OpenCase(step=30, hosts=HOSTS, blocks=copies, start=20)


@pytest.mark.parametrize(("replayed", "wrong"), [("a", "cpu:2 (rank 1, host h1)"), ("b", "cpu:0 (rank 0, host h0)")])
def test_the_copy_without_the_bits_of_the_replay_was_wrong(replayed: str, wrong: str) -> None:
    finding = settle(case_of(("w", "a", "b")), {"w": replayed})
    assert finding.sentence == f"replay from step 20 to 30 tells: the copy of w on {wrong} was wrong"
    assert finding.suspects == (wrong[-3:-1],)


@pytest.mark.parametrize("digests", [{"w": "c"}, {}])
def test_where_no_copy_has_them_nobody_is_blamed(digests: dict[str, str]) -> None:
    finding = settle(case_of(("w", "a", "b")), digests)
    assert finding.suspects == ()
    assert "does not tell which copy was wrong: of w none had the bits" in finding.sentence


def test_blocks_that_tell_nothing_do_not_drown_the_others() -> None:
    finding = settle(case_of(("v", "x", "y"), ("w", "a", "b")), {"v": "z", "w": "a"})
    assert "the copy of w on cpu:2 (rank 1, host h1) was wrong" in finding.sentence


def test_copies_of_both_hosts_may_have_been_wrong() -> None:
    finding = settle(case_of(("v", "x", "y"), ("w", "a", "b")), {"v": "y", "w": "a"})
    assert finding.suspects == ("h0", "h1")
    assert "the copies of v, w on cpu:0 (rank 0, host h0) and cpu:2 (rank 1, host h1) were wrong" in finding.sentence


def test_copies_of_one_host_are_told_together() -> None:
    copies = {"h0/cpu:0": "a", "h0/cpu:1": "a", "h1/cpu:2": "b", "h1/cpu:3": "b"}
    finding = settle(OpenCase(step=30, hosts=HOSTS, blocks={"w": copies}), {"w": "a"})
    assert finding.sentence.endswith("the copies of w on cpu:2, cpu:3 (rank 1, host h1) were wrong")
    assert finding.suspects == ("h1",)


def run_attempt(**how: Any) -> list[Event]:
    ranks = run_ranks("tests.workloads.replay_programs:attempt", num_hosts=2, devices_per_host=2, **how)
    replayed = [[event for event in events if event["type"] == "replayed"] for events in ranks]
    assert not replayed[1], "rank 0 tells for all"
    return [attempt("host-0", "host-1"), *ranks[0]]


@pytest.mark.parametrize(("flip_at", "is_told"), [(10, True), (9, False)])
def test_two_real_attempts(flip_at: int, is_told: bool) -> None:
    first = run_attempt(flip_at=flip_at, context={"check_every": 5})
    case = open_case(first)
    assert case is not None and case.step == 10 and list(case.blocks) == ["w[4:8]"]
    second = run_attempt(replay=case.request(num_hosts=2, checkpoint_step=0))
    found = dict.fromkeys((event["status"], event["step"]) for event in second if event["type"] == "verdict")
    assert list(found) == [("ok", 10), ("ok", 12)]
    (replayed,) = [event for event in second if event["type"] == "replayed"]
    finding = settle(case, replayed["digests"])
    assert finding.suspects == (("host-1",) if is_told else ())
    assert ("(rank 1, host host-1) was wrong" in finding.sentence) == is_told
