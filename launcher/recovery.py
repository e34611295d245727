"""What to do after an attempt has ended badly: a pure decision from the record of all attempts."""

import collections
import dataclasses
import enum
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

MAX_WITHOUT_PROGRESS = 3


class Cause(enum.StrEnum):
    """Why an attempt ended, as far as it matters for what comes next."""

    FAILURE = "failure"  # a rank died, raised or hung: the next attempt may fare better
    PREEMPTED = "preempted"  # a host was lost: nobody's fault, and so on a budget of its own
    DIVERGED = "diverged"  # copies of an array differ: go back to a checkpoint that was verified
    REFUSED = "refused"  # ranks had other programs, code, settings or values, or a wrong parameter: so it would again


class OnDivergence(enum.StrEnum):
    """`--on-divergence`."""

    STOP = "stop"
    RESTORE = "restore"
    REPLAY = "replay"  # as RESTORE, and the step computed again tells which copy was wrong, where no vote does


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """How much a job may be restarted.

    Attributes:
        max_failures: restarts after failures, in all.
        max_preemptions: restarts after lost hosts, in all.
        max_without_progress: attempts in a row that ended by a failure and got no further than those before; None:
            nobody knows how far they come, as of a command, which reports no steps.
        on_divergence: what to do when copies differ.
        wait_for_hosts_s: how long to wait for hosts when too few are there.
    """

    max_failures: int = 3
    max_preemptions: int = 10
    max_without_progress: int | None = MAX_WITHOUT_PROGRESS
    on_divergence: OnDivergence = OnDivergence.RESTORE
    wait_for_hosts_s: float = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """One attempt that ended badly.

    Attributes:
        cause: see `Cause`.
        step: the furthest step that every rank reached; 0 if none was reported.
        suspects: hosts that a vote of copies, or a replay, names.
    """

    cause: Cause
    step: int = 0
    suspects: tuple[str, ...] = ()


def ends_after(ends: tuple[AttemptEnd, ...], event: Mapping[str, Any]) -> tuple[AttemptEnd, ...]:
    """How attempts have ended since the job was submitted or last resumed by hand, oldest first.

    Args:
        ends: before the event.
        event: the next of the job's, as in `events.jsonl`.
    """
    match event["type"]:
        case "attempt-failed":
            end = AttemptEnd(cause=Cause(event["cause"]), step=event["step"], suspects=tuple(event["suspects"]))
            return (*ends, end)
        case "replayed":  # by the attempt after it
            return (*ends[:-1], dataclasses.replace(ends[-1], suspects=tuple(event["suspects"])))
        case "cluster-lost":
            return (*ends, AttemptEnd(cause=Cause.PREEMPTED))
        case "resumed-by-hand":
            return ()
    return ends


def after_lost_cluster(events: Iterable[Mapping[str, Any]], max_preemptions: int) -> str:
    """Why a job whose whole cluster was lost just now is not to go on; '' if it is.

    Args:
        events: on record before.
        max_preemptions: as in `Policy`.
    """
    none: tuple[AttemptEnd, ...] = ()
    ends = functools.reduce(ends_after, events, none)
    return _over_budget((*ends, AttemptEnd(cause=Cause.PREEMPTED)), Policy(max_preemptions=max_preemptions))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retry:
    """Start again on these hosts (in the order of ranks)."""

    hosts: tuple[str, ...]
    why: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wait:
    """Too few hosts: look again, until `wait_for_hosts_s` is over."""

    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stop:
    """No further attempt."""

    why: str


def decide(
    ends: Sequence[AttemptEnd],
    *,
    policy: Policy,
    hosts: Sequence[str],
    available: Sequence[str],
    sizes: Collection[int],
    leaving: Collection[str] = (),
    waited_s: float = 0.0,
) -> Retry | Wait | Stop:
    """What comes after the last of `ends`.

    Args:
        ends: every attempt that has ended, oldest first; at least one.
        policy: the budgets.
        hosts: of the last attempt, in the order of ranks.
        available: hosts that are alive and that no other job holds, in the order of ranks; the last attempt's among
            them.
        sizes: numbers of hosts that the job may run on, the largest being the number it wants.
        leaving: hosts that will be lost soon, which are taken only if the job cannot run without them.
        waited_s: how long the job has waited for hosts since the last attempt.
    """
    refusal = _over_budget(ends, policy)
    if refusal:
        return Stop(why=refusal)
    good = _trusted(ends, _staying(available, leaving, sizes), sizes)
    old, trusted = set(hosts), set(good)
    missing = ", ".join(host for host in hosts if host not in trusted)
    size = max((size for size in sizes if size <= len(good)), default=0)
    if size == 0:
        needed = f"{len(good)} host(s) are left and it needs {min(sizes)} (missing: {missing})"
        if waited_s < policy.wait_for_hosts_s:
            most = f"for at most {policy.wait_for_hosts_s:g} s, and while `up` brings hosts back"
            return Wait(why=f"waits for hosts: {needed}; {most}")
        return Stop(why=f"{needed}; none came within {policy.wait_for_hosts_s:g} s")
    best = set(sorted(good, key=lambda host: host not in old)[:size])
    chosen = tuple(host for host in available if host in best)
    if size < len(hosts):
        return Retry(hosts=chosen, why=f"with {size} of {max(sizes)} hosts, without {missing}")
    new = ", ".join(host for host in chosen if host not in old)
    return Retry(hosts=chosen, why=f"with {new} in place of {missing}" if new and missing else "")


def _staying(available: Sequence[str], leaving: Collection[str], sizes: Collection[int]) -> Sequence[str]:
    staying = [host for host in available if host not in leaving]
    return staying if len(staying) >= min(sizes) else available


def _trusted(ends: Sequence[AttemptEnd], available: Sequence[str], sizes: Collection[int]) -> list[str]:
    """The available hosts without the suspects, where that is wise.

    A host that a vote has named once is left out if another can take its place: with fewer hosts the answer would have
    other bits, and one flip may have been chance. Named twice, it is left out if the job can run without it at all.
    """
    named = collections.Counter(host for end in ends for host in end.suspects)
    for suspects, enough in ((set(named), max(sizes)), ({h for h, times in named.items() if times > 1}, min(sizes))):
        good = [host for host in available if host not in suspects]
        if suspects and len(good) >= enough:
            return good
    return list(available)


def _over_budget(ends: Sequence[AttemptEnd], policy: Policy) -> str:
    """Why there is no further attempt, or nothing."""
    last = ends[-1]
    preemptions = sum(end.cause is Cause.PREEMPTED for end in ends)
    failures = len(ends) - preemptions
    stuck, best = _without_progress(ends)
    if last.cause is Cause.REFUSED:
        return "not tried again: it would end the same way"
    if last.cause is Cause.DIVERGED and policy.on_divergence is OnDivergence.STOP:
        return "not tried again: --on-divergence stop"
    if last.cause is Cause.PREEMPTED:
        over = preemptions > policy.max_preemptions
        return f"hosts were lost {preemptions} times (--max-preemptions {policy.max_preemptions})" if over else ""
    if failures > policy.max_failures:
        return f"it failed {failures} time(s) (--max-failures {policy.max_failures})"
    if policy.max_without_progress is not None and stuck >= policy.max_without_progress:
        return f"{stuck} attempts in a row failed and got no further than step {best}: the next would too"
    return ""


def _without_progress(ends: Sequence[AttemptEnd]) -> tuple[int, int]:
    """How many of the last attempts failed without getting further than any attempt before them; how far that was."""
    best, stuck = -1, 0
    for end in ends:
        failed = end.cause is not Cause.PREEMPTED
        if end.step > best:
            best, stuck = end.step, int(failed)
        else:
            stuck += failed
    return stuck, best
