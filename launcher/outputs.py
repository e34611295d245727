"""The summary of a job's result: of what rank 0 has sent, and of all ranks' verdicts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.record import write_json
from launcher.job_folder import JobFolder


def write_summary(folder: Path, result: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Writes the summary: metrics, digest, integrity and diagnostics; returns the short part.

    Args:
        folder: the job's.
        result: as rank 0 sent it.
        verdicts: of all ranks and steps.

    Raises:
        OSError: it cannot be written.
    """
    short = short_summary(result, verdicts)
    write_json(_summary(folder), {**short, "diagnostics": result["diagnostics"]})
    return short


def short_summary(result: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The part of the summary that the job's record has too; its arguments are as of `write_summary`."""
    return {
        "metrics": result["metrics"],
        "result_digest": result["result_digest"],
        "integrity": summarize_verdicts(verdicts),
    }


def _summary(folder: Path) -> Path:
    """A workload's lies among its results; that of a command beside them, where a `summary.json` is the user's."""
    is_command = JobFolder(folder).job()["spec"].get("command") is not None
    return folder / "summary.json" if is_command else folder / "results" / "summary.json"


def summarize_verdicts(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One verdict for the job: never `ok` if nothing was compared at the end.

    Returns:
        `status`, number of checks, and of the last check the bytes that were compared and those without a second copy.
    """
    if not verdicts:
        return {"status": "nothing-checked", "num_checks": 0, "bytes_checked": 0, "bytes_single_copy": 0}
    last_step = max(verdict["step"] for verdict in verdicts)
    last = next(verdict for verdict in reversed(verdicts) if verdict["step"] == last_step)
    diverged = [verdict for verdict in verdicts if verdict["status"] == "diverged"]
    return {
        "status": "diverged" if diverged else last["status"],
        "num_checks": len({verdict["step"] for verdict in verdicts}),
        "bytes_checked": last["bytes_checked"],
        "bytes_single_copy": last["bytes_single_copy"],
    }


def read_summary(folder: Path) -> dict[str, Any] | None:
    """What `write_summary` wrote, or None if the job left none."""
    path = _summary(folder)
    if not path.exists():
        return None
    summary: dict[str, Any] = json.loads(path.read_text())
    return summary
