"""The decision after a bad end, case by case; no Ray anywhere."""

from collections.abc import Sequence

from launcher.recovery import AttemptEnd, Cause, OnDivergence, Policy, Retry, Stop, Wait, after_lost_cluster, decide

HOSTS = ("a", "b")


def after(
    *ends: AttemptEnd, policy: Policy | None = None, available: Sequence[str] = HOSTS,
    sizes: Sequence[int] = (1, 2), waited_s: float = 0.0,
) -> Retry | Wait | Stop:  # fmt: skip
    return decide(ends, policy=policy or Policy(), hosts=HOSTS, available=available, sizes=sizes, waited_s=waited_s)


def failed(step: int = 0) -> AttemptEnd:
    return AttemptEnd(cause=Cause.FAILURE, step=step)


def lost(step: int = 0) -> AttemptEnd:
    return AttemptEnd(cause=Cause.PREEMPTED, step=step)


def test_a_failure_is_tried_again_on_the_same_hosts() -> None:
    assert after(failed(7)) == Retry(hosts=HOSTS)


def test_failures_with_progress_end_when_the_budget_is_used_up() -> None:
    assert isinstance(after(*map(failed, (10, 20, 30))), Retry)
    end = after(*map(failed, (10, 20, 30, 40)))
    assert isinstance(end, Stop) and "--max-failures 3" in end.why


def test_no_failure_is_forgiven_with_a_budget_of_none() -> None:
    end = after(failed(), policy=Policy(max_failures=0))
    assert isinstance(end, Stop) and "--max-failures 0" in end.why


def test_three_failures_at_the_same_step_are_a_deterministic_bug() -> None:
    policy = Policy(max_failures=100)
    assert isinstance(after(failed(5), failed(5), policy=policy), Retry)
    end = after(failed(5), failed(5), failed(5), policy=policy)
    assert isinstance(end, Stop) and "no further than step 5" in end.why


def test_of_a_command_that_tells_no_steps_nobody_says_that_it_came_no_further() -> None:
    policy = Policy(max_failures=10, max_without_progress=None)
    assert isinstance(after(*[failed(0)] * 10, policy=policy), Retry)
    end = after(*[failed(0)] * 11, policy=policy)
    assert isinstance(end, Stop) and "--max-failures 10" in end.why


def test_progress_starts_the_count_anew() -> None:
    policy = Policy(max_failures=100)
    assert isinstance(after(*map(failed, (5, 5, 6, 6)), policy=policy), Retry)
    assert isinstance(after(*map(failed, (5, 5, 6, 6, 6)), policy=policy), Stop)
    assert isinstance(after(*map(failed, (9, 5, 5)), policy=policy), Stop), "further back is no progress"


def test_only_failures_count_as_such_and_the_furthest_step_is_told() -> None:
    policy = Policy(max_failures=100)
    assert isinstance(after(lost(100), failed(50), failed(60), policy=policy), Retry), "two have failed"
    end = after(lost(100), failed(50), failed(60), failed(60), policy=policy)
    assert isinstance(end, Stop) and "3 attempts in a row failed and got no further than step 100:" in end.why
    end = after(*map(failed, (120, 110, 115)), policy=policy)
    assert isinstance(end, Stop) and "no further than step 120:" in end.why


def test_lost_hosts_have_a_budget_of_their_own() -> None:
    policy = Policy(max_failures=0, max_preemptions=2)
    assert isinstance(after(lost(), lost(), policy=policy), Retry)
    end = after(lost(), lost(), lost(), policy=policy)
    assert isinstance(end, Stop) and "--max-preemptions 2" in end.why
    assert isinstance(after(*[failed(step) for step in (1, 2, 3)], lost(3)), Retry), "failures do not count for it"


def test_a_refusal_is_final() -> None:
    assert isinstance(after(AttemptEnd(cause=Cause.REFUSED)), Stop)


def test_divergence_stops_or_restores_as_asked() -> None:
    end = AttemptEnd(cause=Cause.DIVERGED, step=30)
    assert after(end) == Retry(hosts=HOSTS)
    assert after(end, policy=Policy(on_divergence=OnDivergence.REPLAY)) == Retry(hosts=HOSTS)
    assert isinstance(after(end, policy=Policy(on_divergence=OnDivergence.STOP)), Stop)


def test_a_suspect_host_is_replaced_where_there_is_another() -> None:
    end = AttemptEnd(cause=Cause.DIVERGED, step=30, suspects=("b",))
    assert after(end, available=("a", "b", "c")) == Retry(hosts=("a", "c"), why="with c in place of b")
    assert after(end, failed(40), available=("a", "b", "c")) == Retry(hosts=("a", "c"), why="with c in place of b")


def test_one_flip_is_no_reason_to_go_on_with_fewer_hosts_two_are() -> None:
    first, second = (AttemptEnd(cause=Cause.DIVERGED, step=step, suspects=("b",)) for step in (30, 40))
    assert after(first) == Retry(hosts=HOSTS)
    assert after(first, second) == Retry(hosts=("a",), why="with 1 of 2 hosts, without b")
    assert after(first, second, sizes=(2,)) == Retry(hosts=HOSTS), "with too few others it must do"


def test_a_lost_host_is_replaced_by_a_spare() -> None:
    assert after(lost(), available=("a", "c")) == Retry(hosts=("a", "c"), why="with c in place of b")
    assert after(lost(), available=("b", "c", "d")) == Retry(hosts=("b", "c"), why="with c in place of a")


def test_without_a_spare_it_goes_on_with_fewer_where_allowed() -> None:
    assert after(lost(), available=("a",)) == Retry(hosts=("a",), why="with 1 of 2 hosts, without b")


def test_else_it_waits_and_then_gives_up_saying_what_was_missing() -> None:
    policy = Policy(wait_for_hosts_s=30.0)
    waits = after(lost(), policy=policy, sizes=(2,), available=("a",), waited_s=29.0)
    assert isinstance(waits, Wait) and "missing: b" in waits.why and "for at most 30 s" in waits.why
    end = after(lost(), policy=policy, sizes=(2,), available=("a",), waited_s=30.0)
    assert isinstance(end, Stop) and "missing: b" in end.why and "30 s" in end.why


def test_no_host_at_all_is_never_a_retry() -> None:
    assert isinstance(after(lost(), available=()), Wait)


def test_hosts_keep_the_order_of_ranks() -> None:
    found = after(lost(), available=("c", "b"))
    assert isinstance(found, Retry) and found.hosts == ("c", "b")


def test_a_host_that_came_back_is_used_again() -> None:
    found = decide([lost()], policy=Policy(), hosts=("a",), available=HOSTS, sizes=(1, 2))
    assert found == Retry(hosts=HOSTS)


def test_only_sizes_that_the_job_fits_on_are_used() -> None:
    found = decide([lost()], policy=Policy(), hosts=("a", "b", "c", "d"), available=("a", "b", "c"), sizes=(2, 4))
    assert found == Retry(hosts=("a", "b"), why="with 2 of 4 hosts, without d")


def test_a_host_that_is_to_go_is_left_out_where_the_job_can_run_without() -> None:
    asked = {"policy": Policy(), "hosts": HOSTS, "sizes": (1, 2), "leaving": ("b",)}
    assert decide([failed()], available=("a", "b", "c"), **asked) == Retry(hosts=("a", "c"), why="with c in place of b")
    assert decide([failed()], available=HOSTS, **asked) == Retry(hosts=("a",), why="with 1 of 2 hosts, without b")
    needs_both = {**asked, "sizes": (2,)}
    assert decide([failed()], available=HOSTS, **needs_both) == Retry(hosts=HOSTS), "it may be gone only in an hour"


def test_a_lost_cluster_counts_as_a_lost_host_and_has_its_bounds() -> None:
    lost = {"type": "cluster-lost", "message": "its machines were lost"}
    failed = {"type": "attempt-failed", "cause": "failure", "step": 3, "suspects": []}
    assert after_lost_cluster([], 1) == ""
    assert after_lost_cluster([failed, failed, failed], 1) == ""
    assert after_lost_cluster([lost, failed], 1) == "hosts were lost 2 times (--max-preemptions 1)"
    assert after_lost_cluster([lost, {"type": "resumed-by-hand"}], 1) == ""
    assert after_lost_cluster([], 0) == "hosts were lost 1 times (--max-preemptions 0)"
