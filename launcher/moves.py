"""Should a running job go to other hosts, now that a checkpoint is committed? A pure decision.

It leaves a host that is to go, if it can run without. It grows back to more hosts if they have been free for a while,
no other job waits for them, and a restart costs less time than more hosts can save.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

GROW_AFTER_S = 5.0  # a host that comes and goes is worth no restart
GROWTH_SHARE = 0.05  # of the run time, for all growths but the first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pace:
    """How the running attempt gets on; None: not known.

    Attributes:
        restart_s: seconds from an attempt's beginning to its first report.
        left_s: seconds that what is left would take as it is now.
        again_s: seconds of work since the checkpoint, which a restart does again.
    """

    restart_s: float | None = None
    left_s: float | None = None
    again_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Free:
    """A host that the job could have.

    Attributes:
        for_s: seconds that it has been free.
        is_back: whether the job had it before.
    """

    for_s: float
    is_back: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Move:
    """End the attempt and go on from the checkpoint on these hosts (in any order)."""

    hosts: tuple[str, ...]
    why: str
    grows: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stay:
    """Go on as it is; where it might have moved: what it does instead, and why."""

    what: str = ""
    why: str = ""


def decide_move(
    *,
    step: int,
    hosts: Sequence[str],
    leaving: Collection[str],
    free: Mapping[str, Free],
    sizes: Collection[int],
    pace: Pace,
    others_wait: bool,
    grown_s: float | None,
) -> Move | Stay:
    """What to do at a commit.

    Args:
        step: of the checkpoint.
        hosts: of the attempt, in the order of ranks.
        leaving: hosts that are to go, with those that are of no use without them.
        free: hosts that no job holds, in the order of ranks and in whole units.
        sizes: numbers of hosts that the job may run on.
        pace: see there.
        others_wait: a queued job could start on free hosts before this one ends, if it gets none of them.
        grown_s: seconds since the job last grew; None: it has not.
    """
    staying = [host for host in hosts if host not in leaving]
    if len(staying) < len(hosts):
        return _leave(step, hosts, staying, list(free), sizes, pace)
    settled = [host for host, state in free.items() if state.for_s >= GROW_AFTER_S]
    size = _largest(sizes, len(hosts) + len(settled))
    if size <= len(hosts):
        return Stay()
    new = settled[: size - len(hosts)]
    named = ", ".join(new)
    if problem := _not_worth_it(pace, len(hosts), size, grown_s):
        return Stay(what=f"does not grow back to {size} hosts", why=problem)
    if others_wait:
        return Stay(what=f"does not grow back to {size} hosts", why=f"a job is queued that may need {named} first")
    is_back = all(free[host].is_back for host in new)
    verb = ("is" if len(new) == 1 else "are") + (" back" if is_back else " free")
    hosts_word = "host" if len(new) == 1 else "hosts"
    return Move(
        hosts=(*hosts, *new), why=f"grows back to {size} hosts at step {step}: {hosts_word} {named} {verb}", grows=True
    )


def _leave(
    step: int, hosts: Sequence[str], staying: Sequence[str], free: Sequence[str], sizes: Collection[int], pace: Pace
) -> Move | Stay:
    named = ", ".join(host for host in hosts if host not in staying)
    size = _largest(sizes, len(staying) + len(free))
    if size == 0:
        left = len(staying) + len(free)
        return Stay(
            what=f"stays on {named} until that is lost", why=f"it needs {min(sizes)} host(s), {left} would be left"
        )
    if pace.restart_s is not None and pace.left_s is not None and pace.left_s < pace.restart_s:
        why = f"it should end in {pace.left_s:.1f} s, and a restart takes {pace.restart_s:.1f} s"
        return Stay(what=f"stays on {named}", why=why)
    chosen = [*staying, *free][:size]
    new = ", ".join(host for host in chosen if host not in hosts)
    how = f"with {new} in its place" if new and size == len(hosts) else f"with {size} of {max(sizes)} hosts"
    return Move(hosts=tuple(chosen), why=f"leaves {named} at step {step}, before it goes: {how}")


def _largest(sizes: Collection[int], num_hosts: int) -> int:
    return max((size for size in sizes if size <= num_hosts), default=0)


def _not_worth_it(pace: Pace, now: int, then: int, grown_s: float | None) -> str:
    """Why growing would cost more than it brings, even if twice the hosts were twice as fast; or ''."""
    if pace.restart_s is None or pace.left_s is None:
        return ""
    cost_s = pace.restart_s + pace.again_s
    if grown_s is not None and grown_s * GROWTH_SHARE < cost_s:
        return (
            f"it grew {grown_s:.0f} s ago, and a restart of {cost_s:.0f} s would take more than "
            f"{GROWTH_SHARE:.0%} of that time"
        )
    saved_s = pace.left_s * (1 - now / then)
    if saved_s <= cost_s:
        return f"a restart costs {cost_s:.1f} s and would save {saved_s:.1f} s at most of the {pace.left_s:.1f} s left"
    return ""
