"""What a soak has shown: how every fault ended, whether the result is the calm run's, and what it cost."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fault_cases import CASES, Injection
from fault_culprit import SPECIAL
from fault_evidence import Evidence
from fault_verdict import report_problems
from soak_plan import Throw


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hit:
    """What became of one fault.

    Attributes:
        throw: the fault.
        problem: what is not as promised, or nothing.
        computed_over: a bit had flipped, and was gone before anybody compared; a kill ended the attempt instead.
        report_s: from the fault until its report was on record.
        next_s: until the next attempt's first step.
        new_s: until the first step that had not been made before.
    """

    throw: Throw
    problem: str = ""
    computed_over: bool = False
    report_s: float = 0.0
    next_s: float = 0.0
    new_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A job from its submission to its end.

    Attributes:
        job: its record.
        seconds: it took, from submission to end.
        steps_per_s: as `JobWatch.steps_per_s`.
    """

    job: dict[str, Any]
    seconds: float
    steps_per_s: float

    @property
    def digest(self) -> str:
        return str((self.job.get("result") or {}).get("result_digest", "none"))


def wrong(throw: Throw, told: str, events: Sequence[Mapping[str, Any]], report_s: float, slack: float = 1.0) -> str:
    """What is not as `fault_cases` promises of this kind, in `slack` times the seconds, or nothing.

    Args:
        throw: the fault.
        told: its report.
        events: since it was thrown.
        report_s: until that came.
        slack: as above.
    """
    case = next(case for case in CASES if case.kind == throw.kind)
    fault = Injection(case=case, workload="", step=throw.step, place=throw.place)
    # Of a damaged checkpoint it is told when the next attempt has begun.
    special = {} if throw.kind == "corrupt-checkpoint" else SPECIAL
    problems = report_problems(fault, told, Evidence(events=events), special)
    if case.report_s is not None and report_s > case.report_s * slack:
        problems.append(f"reported after {report_s:.1f} s, not {case.report_s * slack:g}")
    return "; ".join(problems)


def not_skipped(damaged: int | None, events: Sequence[Mapping[str, Any]]) -> str:
    """Whether a damaged checkpoint was passed over in words, where no newer one made it needless; or nothing.

    A commit that was under way may count without anybody having told of it: what was resumed from tells.

    Args:
        damaged: its step; None: none was.
        events: of the job since then, the next attempt's first ones among them.
    """
    if damaged is None:
        return ""
    place = next((place for place, event in enumerate(events) if event["type"] == "resumed"), len(events))
    resumed = int(events[place]["step"]) if place < len(events) else None
    skipped = [event["step"] for event in events[:place] if event["type"] == "checkpoint-skipped"]
    if resumed is not None and (resumed > damaged or (resumed < damaged and damaged in skipped)):
        return ""
    return f"checkpoint {damaged} was damaged, {skipped} were skipped, and the next attempt went on from {resumed}"


def computed_over(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The flip of a bit that was gone before anybody compared: a later step is committed, before which all copies are.

    That it has changed nothing is for the result's digest to say.

    Args:
        events: of the job since the fault was due.
    """
    flipped = next((place for place, event in enumerate(events) if event["type"] == "flipped"), len(events))
    commits = [event["step"] for event in events[flipped:] if event["type"] == "checkpoint"]
    return events[flipped] if commits and max(commits) >= events[flipped]["step"] else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Soak:
    """One workload under fire.

    Attributes:
        steps: of both runs.
        calm, soaked: without faults, and with them.
        hits: every fault that was thrown.
        num_planned: how many there were to be.
        left: processes of the job's ranks that still run, in words.
    """

    workload: str
    steps: int
    calm: Run
    soaked: Run
    hits: Sequence[Hit]
    num_planned: int
    left: Sequence[str]

    def problems(self) -> list[str]:
        """What is not as promised."""
        found = [f"{hit.throw.kind} at step {hit.throw.step}: {hit.problem}" for hit in self.hits if hit.problem]
        if len(self.hits) < self.num_planned:
            found.append(f"{len(self.hits)} of {self.num_planned} faults were thrown: the job ended before")
        if self.soaked.job["state"] != "SUCCEEDED":
            found.append(f"{self.soaked.job['state']}, not SUCCEEDED: {self.soaked.job['message'].splitlines()[:2]}")
        elif self.soaked.digest != self.calm.digest:
            found.append(f"result_digest {self.soaked.digest[:16]}, the calm run's is {self.calm.digest[:16]}")
        if self.left:
            found.append(f"ranks left: {self.left}")
        return found

    def row(self) -> str:
        """A row of `table`."""
        kinds = collections.Counter(hit.throw.kind for hit in self.hits)
        kinds.update({"flip-bit computed over": sum(hit.computed_over for hit in self.hits)})
        worst = [max((getattr(hit, key) for hit in self.hits), default=0.0) for key in ("report_s", "next_s", "new_s")]
        return (
            f"| {self.workload} | {self.steps} | {self.calm.seconds:.0f} | {self.soaked.seconds:.0f} | "
            f"{self.calm.seconds / self.soaked.seconds:.2f} | "
            f"{len(self.hits)} ({', '.join(f'{kind} {count}' for kind, count in kinds.items() if count)}) | "
            f"{self.soaked.job['attempt']} | {', '.join(f'{seconds:.1f}' for seconds in worst)} | "
            f"{'equal' if self.soaked.digest == self.calm.digest else 'DIFFERENT'} |"
        )


def table(soaks: Sequence[Soak]) -> str:
    """One row a workload, as in docs/reliability.md."""
    columns = [
        "workload", "steps", "calm, s", "soaked, s", "goodput", "faults", "attempts",
        "worst seconds from a fault to its report, to the next attempt's first step, to the first new step",
        "result_digest",
    ]  # fmt: skip
    return "\n".join([f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *(soak.row() for soak in soaks)])
