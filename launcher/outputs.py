"""Brings the files that a rank left into the job's folder, through its agent."""

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.record import write_json
from launcher.job_folder import JobFolder

PIECE_BYTES = 16 * 2**20
PIECE_TIMEOUT_S = 60.0


async def collect_outputs(agent: Any, attempt_id: str, folder: Path, only: Collection[str] | None = None) -> None:
    """Copies files below the rank's output folder, piece by piece.

    Args:
        agent: Ray handle of the rank's agent.
        attempt_id: whose outputs.
        folder: the job's.
        only: their paths below the output folder; None: all.

    Raises:
        RayError: the agent is lost, or cannot read them.
        TimeoutError: it does not answer: it stands still, or its disk does.
        OSError: they cannot be written here.
    """
    found: dict[str, int] = await _answer(agent.collect.remote(attempt_id), "the list of its files")
    for name, size in found.items():
        if only is not None and name not in only:
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for offset in range(0, size, PIECE_BYTES):
                piece = agent.read.remote(attempt_id, name, offset, min(PIECE_BYTES, size - offset))
                file.write(await _answer(piece, f"{name} from byte {offset} on"))


async def _answer(asked: Any, what: str) -> Any:
    try:
        return await asyncio.wait_for(asked, PIECE_TIMEOUT_S)
    except TimeoutError:
        raise TimeoutError(f"its agent did not send {what} within {PIECE_TIMEOUT_S:g} s") from None


def write_summary(folder: Path, result: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Writes the summary: metrics, digest, integrity and diagnostics; returns the short part.

    Args:
        folder: the job's.
        result: as rank 0 sent it.
        verdicts: of all ranks and steps.
    """
    short = {
        "metrics": result["metrics"],
        "result_digest": result["result_digest"],
        "integrity": summarize_verdicts(verdicts),
    }
    write_json(_summary(folder), {**short, "diagnostics": result["diagnostics"]})
    return short


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


def read_piece(path: Path, offset: int, length: int) -> bytes:
    """A part of a file."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
