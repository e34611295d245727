"""Who is stuck, silent or slow: a pure function of where all ranks are. It decides; `launcher.gang_watch` acts."""

import bisect
import dataclasses
from collections.abc import Sequence

from launcher.command import PHASE
from launcher.environment import LEASE_S
from launcher.interactive import CALL, IDLE
from launcher.timeline import RankProgress

MEETING = "rendezvous"
WORK = ("start", "import", "load", "compile")  # phases in which a rank may stand for long without waiting for others
ANSWERS_S = 3.0  # a host that has not answered for so long may hold news: its rank is not judged by old ones


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """How long is too long, in seconds.

    Attributes:
        stuck_s: from when a rank stands between two steps, or its process is stopped, until that is told;
        usual_factor: and at least so many times the usual (median) time between two reports.
        naming_s: of these, for noticing it and for reading all stacks: so much earlier the rank counts as stuck.
        longest_factor: and so many times the longest of the last ones: a step that validates takes longer than most.
        start_s: in start, import, rendezvous, load, and up to the first step.
        script_s: in a user's script that tells nothing, while others wait for it in the rendezvous.
        script_told_s: in a user's script whose launches are watched, while others wait for its next one: it is told of.
        compile_s: in a compilation; after `late_compile_s` with others ahead, a warning.
        checkpoint_s: in a checkpoint or a restore.
        gather_s: in a gather or a replica check.
        other_s: in a phase of the workload's own, and after the last step (results, plots).
        together_s, together_factor: before all ranks are ended that stand at one place with nobody ahead: at least
            `together_s`, and so many times the bound of the place.
        slow_ratio: of a rank's own seconds a step to the median of the others, from which it is called slow,
        slow_share: if that costs at least this part of the time.
        host_suspected_s, host_lost_s: without an answer of the agent.
    """

    stuck_s: float = 10.0
    usual_factor: float = 5.0
    naming_s: float = 2.5
    longest_factor: float = 2.0
    start_s: float = 120.0
    script_s: float = 300.0
    script_told_s: float = 30.0
    compile_s: float = 1800.0
    late_compile_s: float = 60.0
    checkpoint_s: float = 600.0
    gather_s: float = 60.0
    other_s: float = 600.0
    together_s: float = 120.0
    together_factor: float = 5.0
    slow_ratio: float = 1.5
    slow_share: float = 0.1
    host_suspected_s: float = 9.0
    host_lost_s: float = LEASE_S + 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that the user should know.

    Attributes:
        kind: `host-silent`, `silent`, `stuck`, `together`, `late-compile` or `slow`.
        ranks: whom it is about.
        text: for a message that names the ranks already.
        fatal: the attempt cannot go on.
    """

    kind: str
    ranks: tuple[int, ...]
    text: str
    fatal: bool


def judge(ranks: Sequence[RankProgress], bounds: Bounds | None = None) -> list[Finding]:
    """Looks at all ranks of an attempt at one moment.

    Of a rank whose host is silent the place is old, and at least that far it has come. So others may be held against
    it; it is itself held against them as it was when its host last answered.
    """
    bounds = bounds or Bounds()
    silent_hosts = [_silent_host(rank, bounds) for rank in ranks if not rank.ended]
    found = [finding for finding in silent_hosts if finding is not None]
    found += [_stopped(rank, ranks) for rank in ranks if _is_stopped(rank, bounds)]
    if not any(finding.fatal for finding in found):
        found += _silent(ranks, bounds) + _stuck(ranks, bounds) + _slow(ranks, bounds)
    return found


def behind_all(ranks: Sequence[RankProgress]) -> list[RankProgress]:
    """Those that are behind all others, and that others may wait for; all, if none is ahead."""
    least = min(_place(rank) for rank in ranks)
    return [rank for rank in ranks if _place(rank) == least]


def bound_s(rank: RankProgress, bounds: Bounds) -> float:
    """How long this rank may stand where it is while others wait for it."""
    kind = rank.phase.partition(" ")[0]
    if kind == "run" and rank.step >= rank.total > 0:
        return bounds.other_s
    if kind == "run" and rank.usual_s is not None:
        told_s = max(bounds.stuck_s, bounds.usual_factor * rank.usual_s)
        return max(told_s - bounds.naming_s, bounds.longest_factor * rank.longest_s)
    of_phase = {
        "compile": bounds.compile_s,
        "checkpoint": bounds.checkpoint_s,
        "restore": bounds.checkpoint_s,
        "gather": bounds.gather_s,
        "replica": bounds.gather_s,
        PHASE: bounds.script_s,
        **dict.fromkeys(("start", "import", MEETING, "load", "run"), bounds.start_s),
    }
    return of_phase.get(kind, bounds.other_s)


def _silent_host(rank: RankProgress, bounds: Bounds) -> Finding | None:
    if rank.host_silent_s < bounds.host_suspected_s:
        return None
    fatal = rank.host_silent_s >= bounds.host_lost_s
    text = f"its agent has not answered for {rank.host_silent_s:.0f} s"
    text += "" if fatal else f"; the host counts as lost after {bounds.host_lost_s:g} s"
    return Finding(kind="host-silent", ranks=(rank.rank,), text=text, fatal=fatal)


def _is_stopped(rank: RankProgress, bounds: Bounds) -> bool:
    is_stopped = rank.state == "T" and rank.silent_s >= bounds.stuck_s - bounds.naming_s
    return not rank.ended and is_stopped and rank.host_silent_s < ANSWERS_S


def _stopped(rank: RankProgress, ranks: Sequence[RankProgress]) -> Finding:
    text = f"has said nothing for {rank.silent_s:.0f} s: its process is stopped (state T), as by SIGSTOP"
    others = [other for other in ranks if other.state != "T" and _waits_for_stopped(other, rank)]
    text += f"; {_waiting(others, rank)}" if others else ""
    return Finding(kind="silent", ranks=(rank.rank,), text=text, fatal=True)


def _waits_for_stopped(rank: RankProgress, stopped: RankProgress) -> bool:
    """One at its very place waits too: in the collective that it is in.

    One behind may be on its way, unless it has stood as long where ranks ask JAX's coordination service: if rank 0 is
    stopped, so is that.
    """
    works = rank.phase.partition(" ")[0] in WORK
    return _place(rank) >= _place(stopped) or (not works and rank.stood_s >= stopped.silent_s - ANSWERS_S)


def _silent(ranks: Sequence[RankProgress], bounds: Bounds) -> list[Finding]:
    """Ranks that run but say nothing; a warning, because C++ code may rightly hold Python's lock for a while."""
    return [
        Finding(kind="silent", ranks=(rank.rank,), text=f"has said nothing for {_silence(rank)}", fatal=False)
        for rank in ranks
        if not rank.done and rank.phase not in ("start", "import") and rank.silent_s >= bounds.stuck_s
        if rank.host_silent_s < ANSWERS_S
    ]


def _silence(rank: RankProgress) -> str:
    why = {
        "R": "its process runs (state R) in C++ code that holds Python's lock",
        "S": "its process sleeps (state S) in C++ code that holds Python's lock",
        "D": "its process waits for a disk or a network file system (state D)",
        "t": "a debugger holds its process (state t)",
        "Z": "its process has ended and was not collected (state Z)",
    }
    return f"{rank.silent_s:.0f} s: {why.get(rank.state, f'the kernel gives its state as {rank.state!r}')}"


def _stuck(ranks: Sequence[RankProgress], bounds: Bounds) -> list[Finding]:
    """The ranks that are behind all others and do not move; or all, if none is ahead."""
    behind = behind_all(ranks)
    ahead = [rank for rank in ranks if _place(rank) > _place(behind[0])]
    if all(rank.done or _is_interactive(rank) for rank in behind):
        return []
    old_s = max(rank.host_silent_s for rank in behind)
    stood_s = min(rank.stood_s for rank in behind) - (old_s if old_s >= ANSWERS_S else 0.0)
    limit_s = max(bound_s(rank, bounds) for rank in behind)
    numbers = tuple(rank.rank for rank in behind)
    if not ahead:
        return _together(behind, stood_s, limit_s, bounds)
    text = f"{_no_progress(behind[0], stood_s)}; {_waiting(ahead, behind[0])}"
    if behind[0].phase == PHASE and (behind[0].launches or not any(_meets(rank) for rank in ahead)):
        # How long it may take its author knows; and that others have ended tells nothing of it.
        told = stood_s >= bounds.script_told_s and any(rank.launches for rank in ranks)
        return [Finding(kind="stuck", ranks=numbers, text=text, fatal=False)] if told else []
    if stood_s >= limit_s:
        return [Finding(kind="stuck", ranks=numbers, text=text, fatal=True)]
    if behind[0].phase.startswith("compile") and stood_s >= bounds.late_compile_s:
        return [Finding(kind="late-compile", ranks=numbers, text=text, fatal=False)]
    return []


def _meets(rank: RankProgress) -> bool:
    """Whether it waits for all others to come to the rendezvous."""
    return rank.phase == MEETING and not rank.done


def _is_interactive(rank: RankProgress) -> bool:
    """Whether it waits for a call or is in one: no other rank need be in it (see `launcher.call_verdict`)."""
    return rank.phase.partition(" ")[0] in (IDLE, CALL)


def _together(ranks: Sequence[RankProgress], stood_s: float, limit_s: float, bounds: Bounds) -> list[Finding]:
    if stood_s < limit_s:
        return []
    fatal = not _open_ended(ranks[0], bounds) and stood_s >= max(bounds.together_s, bounds.together_factor * limit_s)
    text = f"{_no_progress(ranks[0], stood_s)}; " + (
        "no rank is ahead of another: a deadlock inside a collective, or one long computation"
        if len(ranks) > 1
        else "it is the only rank: a deadlock, or one long computation"
    )
    return [Finding(kind="together", ranks=tuple(rank.rank for rank in ranks), text=text, fatal=fatal)]


def _open_ended(rank: RankProgress, bounds: Bounds) -> bool:
    """Whether nobody but the workload's author knows how long this takes: one program of hours may be meant."""
    of_the_author = rank.phase == PHASE or (rank.phase == "run" and rank.usual_s is None)
    return of_the_author or bound_s(rank, bounds) == bounds.other_s


def _slow(ranks: Sequence[RankProgress], bounds: Bounds) -> list[Finding]:
    """Ranks whose own part of a step takes much longer than the others'."""
    own = {rank.rank: rank.own_step_s for rank in ranks if rank.own_step_s is not None}
    if len(own) < max(2, len(ranks)):
        return []
    found = []
    ordered = sorted(own.values())
    for rank in ranks:
        median_s = _median_of_others(ordered, own[rank.rank])
        ratio = own[rank.rank] / max(median_s, 1e-6)
        lost_share = rank.own_share * (1 - 1 / ratio) if ratio > 1 else 0.0
        if ratio > bounds.slow_ratio and lost_share > bounds.slow_share:
            text = (
                f"is slow: it needs {own[rank.rank]:.2g} s of its own for a step, {ratio:.1f} times the median of the "
                f"others ({median_s:.2g} s), and they wait for it (its own: Python code of the host, processor time, "
                f"and time in which it was not let run)"
            )
            found.append(Finding(kind="slow", ranks=(rank.rank,), text=text, fatal=False))
    return found


def _median_of_others(ordered: Sequence[float], value: float) -> float:
    """Median of sorted values, at least two, without one that is `value`: not sorted again for each of many ranks."""
    left_out = bisect.bisect_left(ordered, value)
    num_others = len(ordered) - 1
    low, high = (
        ordered[place if place < left_out else place + 1] for place in ((num_others - 1) // 2, num_others // 2)
    )
    return (low + high) / 2


def _place(rank: RankProgress) -> tuple[bool, tuple[int, ...]]:
    return (True, ()) if rank.done else (False, rank.place)


def _no_progress(rank: RankProgress, stood_s: float) -> str:
    usual = f" (it usually reports every {rank.usual_s:.2g} s)" if rank.usual_s is not None else ""
    silence = ""
    if rank.state == "T":
        silence = "; its process is stopped (state T), as by SIGSTOP"
    elif rank.silent_s >= ANSWERS_S:  # it speaks twice a second as long as its threads can run
        silence = f"; it has said nothing for {_silence(rank)}"
    return f"made no progress for {stood_s:.0f} s{usual} in {_where(rank)}{silence}"


def _waiting(ahead: Sequence[RankProgress], behind: RankProgress) -> str:
    """What the ranks ahead do, equal ones together: `rank 0 waits in 'run', step 20 of 100, launch 21 ('train')`."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank in ahead:
        groups.setdefault(_does(rank, behind), []).append(rank.rank)
    return "; ".join(
        f"rank {who[0]} {of_one}" if len(who) == 1 else f"ranks {_list(who)} {of_several}"
        for (of_one, of_several), who in groups.items()
    )


def _does(rank: RankProgress, behind: RankProgress) -> tuple[str, str]:
    """What a rank ahead does, said of one and of several."""
    if not rank.done:
        return f"waits in {_where(rank)}", f"wait in {_where(rank)}"
    if behind.phase == MEETING and rank.moves < behind.moves:
        return "has ended without coming there", "have ended without coming there"
    return "is done", "are done"


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]} and {len(ranks) - 1} more"


def _where(rank: RankProgress) -> str:
    parts = [repr(rank.phase)]
    if rank.total:
        parts.append(f"step {rank.step} of {rank.total}")
    if rank.launches:
        parts.append(f"launch {rank.launches}" + (f" ({rank.program!r})" if rank.program else ""))
    return ", ".join(parts)
