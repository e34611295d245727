"""One run of `jax_trainer_job.py` on a Ray cluster of its own, and what a user of it sees after a fault."""

import dataclasses
import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from children import Child
from jax_trainer import PROGRAMS, RayCluster

NUM_HOSTS, DEVICES_PER_HOST = 2, 2
START_TIMEOUT_S = 300.0
REPORT_TIMEOUT_S = 120.0  # without a word for so long after the fault, the run is ended
END_TIMEOUT_S = 120.0  # from the report to the end
PERIOD_S = 0.1
MAX_SEEN = 160

# Only to find the line that a person would take for the report; nothing else hangs on it.
SPEAKS_OF_FAILURE = re.compile(r"error|fail|died|dead|kill|abort|unavailable|exception|lost|unhealthy|terminat", re.I)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
CHANGES = re.compile(r"\x1b\[[0-9;]*m|\d+|[0-9a-f]{8,}")
OF_RANK = re.compile(r"\[Rank (\d+) Error Snippet\]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one run with a fault ended.

    Attributes:
        contender: whose run.
        fault: its kind.
        end: `right`, `WRONG`, or why there was no result.
        seen: the first line of the report, and whom JaxTrainer's own summary then lists; empty if there was none.
        report_s, new_s: from the fault to the report, and to the first step that had not been made before.
    """

    contender: str
    fault: str
    end: str
    seen: str = ""
    report_s: float | None = None
    new_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transcript:
    """What one run has left.

    Attributes:
        fault_at: when the fault happened, on the monotonic clock; None: there was none.
        lines: `(when, text)`, of everything that was printed.
        steps: `(when, step)` of all ranks.
        digests: of the parameters at the end, one a rank that got there.
        exit_code: None: it was ended by us.
    """

    fault_at: float | None
    lines: Sequence[tuple[float, str]]
    steps: Sequence[tuple[float, int]]
    digests: Sequence[str]
    exit_code: int | None

    def reports(self, usual: Collection[str] = ()) -> list[tuple[float, str]]:
        """Lines after the fault that speak of a failure, but for those that are usual (see `without_numbers`)."""
        after = [(when, text) for when, text in self.lines if self.fault_at is None or when > self.fault_at]
        return [(when, text) for when, text in after if speaks_of_failure(text, usual)]

    def outcome(self, fault: str, right: Sequence[str], usual: Collection[str]) -> Outcome:
        """Judged by the digests of a calm run and the lines that it prints, too."""
        assert self.fault_at is not None
        reports = self.reports(usual)
        reached = max((step for when, step in self.steps if when <= self.fault_at), default=0)
        new = [when for when, step in self.steps if when > self.fault_at and step > reached]
        return Outcome(
            contender="JaxTrainer",
            fault=fault,
            end=self._end(right, bool(reports)),
            seen=_first_words([text for _, text in reports]),
            report_s=reports[0][0] - self.fault_at if reports else None,
            new_s=min(new) - self.fault_at if new and fault != "other-program" else None,
        )

    def _end(self, right: Sequence[str], reported: bool) -> str:
        if self.exit_code is None:
            limit_s = END_TIMEOUT_S if reported else REPORT_TIMEOUT_S
            return f"no end within {limit_s:g} s of the {'report' if reported else 'fault'}"
        if self.exit_code:
            return f"no result, exit code {self.exit_code}"
        return "right" if list(self.digests) == list(right) else "WRONG, exit code 0"


def _first_words(reports: Sequence[str]) -> str:
    """The first line, without colours, and the ranks of whose errors JaxTrainer gives a snippet, in its order."""
    if not reports:
        return ""
    listed = dict.fromkeys(rank for text in reports for rank in OF_RANK.findall(text))
    then = f" ... then lists errors of rank {', '.join(listed)}" if listed else ""
    return COLOURS.sub("", reports[0]).strip()[:MAX_SEEN] + then


def speaks_of_failure(text: str, usual: Collection[str]) -> bool:
    """Whether a person would take a line for a report."""
    return bool(SPEAKS_OF_FAILURE.search(text)) and without_numbers(text) not in usual


def without_numbers(text: str) -> str:
    """A line without what differs from run to run: process ids, times, addresses, colours."""
    return CHANGES.sub("", text)


def run_trainer(folder: Path, python: str, job: Mapping[str, Any], usual: Collection[str] = ()) -> Transcript:
    """Runs the job on a new Ray cluster, so that nothing of a fault is left for the next, and bounds it in time.

    Args:
        folder: a temporary one.
        python: an interpreter with `ray[train]`.
        job: as `jax_trainer_job.py` takes it.
        usual: lines that are no report, whatever they say (see `without_numbers`).
    """
    with RayCluster(NUM_HOSTS, DEVICES_PER_HOST, folder, python) as cluster:
        arguments = [cluster.address, str(NUM_HOSTS), str(DEVICES_PER_HOST), str(cluster.folder), json.dumps(job)]
        environment = {**cluster.environment, "RAY_DEDUP_LOGS": "0"}
        program = str(PROGRAMS / "jax_trainer_job.py")
        with Child([program, *arguments], cluster.folder, environment, python) as driver:
            lines = _follow(driver, cluster.folder / "fault.json", usual)
            exit_code = driver.process.poll()
            if exit_code is None:
                driver.process.kill()  # asked to end, it would wait for its workers
        return Transcript(
            fault_at=_fault_at(cluster.folder / "fault.json"),
            lines=lines,
            steps=_steps(cluster.folder),
            digests=[path.read_text() for path in sorted(cluster.folder.glob("digest-*"))],
            exit_code=exit_code,
        )


def _follow(driver: Child, fault: Path, usual: Collection[str]) -> list[tuple[float, str]]:
    """Reads the driver's output as it grows, until it ends or there is no more reason to wait."""
    lines: list[tuple[float, str]] = []
    deadline, reported = time.monotonic() + START_TIMEOUT_S, False
    with driver.errors.open(errors="replace") as output:
        while True:
            ended = driver.process.poll() is not None
            now = time.monotonic()
            lines += [(now, line) for line in output.read().splitlines()]
            at = _fault_at(fault)
            if at is not None and not reported:
                deadline = at + REPORT_TIMEOUT_S
                if any(when > at and speaks_of_failure(line, usual) for when, line in lines):
                    deadline, reported = now + END_TIMEOUT_S, True
            if ended or now > deadline:
                return lines
            time.sleep(PERIOD_S)


def _fault_at(path: Path) -> float | None:
    """When the fault happened; None: not yet, or it is being written."""
    text = path.read_text() if path.exists() else ""
    return float(json.loads(text)["at"]) if text.endswith("}") else None


def _steps(folder: Path) -> list[tuple[float, int]]:
    rows = [json.loads(line) for path in folder.glob("rank-*.jsonl") for line in path.read_text().splitlines()]
    return sorted((row["at"], row["step"]) for row in rows)
