"""Brings the files that a rank left into the job's folder, through its agent; what cannot come stays on its host."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError

from launcher.host_wait import in_words
from launcher.job_record import JobRecord
from launcher.left_files import LeftFiles, reason
from launcher.words import file_name
from workloads.words import first_of

PIECE_BYTES = 16 * 2**20
PIECE_TIMEOUT_S = 60.0
KEEP_TIMEOUT_S = 20.0  # the host keeps them all the same, as soon as it can
MAX_STUCK = 3  # files whose disk does not answer: after these the others are not waited for
NUM_NAMED = 5
NUM_RECORDED = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collected:
    """What has come of the files of a rank.

    Attributes:
        fetched: paths below its output folder, and so in the job's.
        left: `{path: why}` of what could not be fetched.
        broke_off: that the agent was lost, or stood still, so that all from then on is `left`.
    """

    fetched: Sequence[str]
    left: Mapping[str, str]
    broke_off: RayError | TimeoutError | None = None


class _LeftError(Exception):
    """This file cannot be fetched, which says nothing of the others."""


class _StuckError(_LeftError):
    """Its disk does not answer, though its host does."""


async def collect_outputs(agent: Any, attempt_id: str, folder: Path, only: Collection[str] | None = None) -> Collected:
    """Copies files below the rank's output folder, piece by piece; one that cannot be had keeps no other from coming.

    Args:
        agent: Ray handle of the rank's agent.
        attempt_id: whose outputs.
        folder: the job's. Where a file cannot be fetched, none of an earlier attempt is left under its name.
        only: their paths below the output folder; None: all.

    Raises:
        RayError: the agent is lost, or knows of no such attempt, so that there is no list of files.
        TimeoutError: it does not answer: it stands still, or its disk does.
    """
    found: LeftFiles = await _answer(agent.collect.remote(attempt_id), "the list of its files")
    names = [name for name in found.files if only is None or name in only]
    left = {name: why for name, why in found.unreadable.items() if only is None or name in only}
    left |= {name: "it is not there" for name in only or () if name not in found.files and name not in left}
    fetched: list[str] = []
    num_stuck = 0
    broke_off: RayError | TimeoutError | None = None
    for name in names:
        if num_stuck == MAX_STUCK or broke_off is not None:
            who = "its host's disk" if broke_off is None else "its host"
            left[name] = f"not tried, as {who} did not answer for others"
            continue
        try:
            await _fetch(agent, attempt_id, name, found.files[name], folder / name)
        except (RayError, TimeoutError) as error:
            left[name], broke_off = _why(error), error
        except _LeftError as error:
            left[name] = str(error)
            num_stuck += isinstance(error, _StuckError)
        else:
            fetched.append(name)
    for name in left:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    return Collected(fetched=fetched, left=left, broke_off=broke_off)


async def bring_results(record: JobRecord, agent: Any, attempt_id: str) -> None:
    """Brings all that rank 0 has left; of what cannot come the record tells, and where on its host it stays.

    Args:
        record: of the job.
        agent: Ray handle of the agent of rank 0.
        attempt_id: of the attempt, whose rank has ended.

    Raises:
        RayError: the agent is lost.
        TimeoutError: it stands still; of a workload also where its disk does.
    """
    collected = await _collect(record, agent, attempt_id)
    if isinstance(collected.broke_off, TimeoutError) and record.spec.command is not None:
        # As by a link to a file server that is gone: where the agent answers, the command need not run again.
        await _answer(agent.clock.remote(), "the time")
    elif collected.broke_off is not None:
        raise collected.broke_off
    await _keep(record, agent, attempt_id, collected)


async def bring_what_there_is(record: JobRecord, agent: Any, attempt_id: str) -> None:
    """As `bring_results` of an attempt that has failed, the reason of which is another: a lost agent is only told."""
    await _keep(record, agent, attempt_id, await _collect(record, agent, attempt_id))


async def _collect(record: JobRecord, agent: Any, attempt_id: str) -> Collected:
    try:
        return await collect_outputs(agent, attempt_id, record.folder.path)
    except (RayError, TimeoutError) as error:  # it is not known which there are, so older ones stay
        older = "; what is here is of an earlier attempt" if record.attempt > 1 else ""
        return Collected(fetched=(), left={"all files": f"{_why(error)}{older}"}, broke_off=error)


async def _keep(record: JobRecord, agent: Any, attempt_id: str, collected: Collected) -> None:
    """Has a host keep what was not fetched, if anything, and tells of it."""
    if not collected.left:
        return
    host = record.hosts[0]
    place, stays = "", ""
    try:
        place = await _answer(
            agent.keep_output.remote(attempt_id, list(collected.fetched)), "where it keeps them", KEEP_TIMEOUT_S
        )
        if place:
            stays = f"what is there stays on the host until the cluster goes down, in {place}"
    except (RayError, TimeoutError) as error:
        stays = f"whether the host keeps it is not known: {_why(error)}"
    whys = {file_name(name): why for name, why in collected.left.items()}
    named = first_of([f"{name} ({why})" for name, why in whys.items()], NUM_NAMED)
    files = dict(list(whys.items())[:NUM_RECORDED])
    record.event("files-left", rank=0, host=host, folder=place, files=files, num_files=len(whys))
    record.note("; ".join(filter(None, [f"rank 0 on host {host}: could not be fetched: {named}", stays])))


async def _fetch(agent: Any, attempt_id: str, name: str, size: int, target: Path) -> None:
    """Copies a file whole, or leaves none."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for offset in range(0, max(size, 1), PIECE_BYTES):
                expected = min(PIECE_BYTES, size - offset)
                # Of an empty file too: only a read shows that it can be read, and that it still is empty.
                piece = await _piece(agent, attempt_id, name, offset, expected or PIECE_BYTES)
                if len(piece) < expected:
                    raise _LeftError("it became shorter while it was fetched")
                file.write(piece)
    except BaseException as error:
        with contextlib.suppress(OSError):
            target.unlink()
        if isinstance(error, OSError) and not isinstance(error, RayError | TimeoutError):
            raise _LeftError(f"the head cannot write it: {error.strerror or error}") from error
        raise


async def _piece(agent: Any, attempt_id: str, name: str, offset: int, length: int) -> bytes:
    what = f"{file_name(name)} from byte {offset} on"
    try:
        piece: bytes = await _answer(agent.read.remote(attempt_id, name, offset, length), what)
    except RayTaskError as error:
        if isinstance(error.cause, OSError):
            raise _LeftError(reason(error.cause)) from error
        raise
    except TimeoutError as error:
        await _answer(agent.clock.remote(), what)  # else it is the host that stands still
        raise _StuckError(f"its disk did not give it within {PIECE_TIMEOUT_S:g} s") from error
    return piece


async def _answer(asked: Any, what: str, timeout_s: float | None = None) -> Any:
    timeout_s = timeout_s or PIECE_TIMEOUT_S
    try:
        return await asyncio.wait_for(asked, timeout_s)
    except RayTaskError:  # which is a TimeoutError, too, where a file server has raised one
        raise
    except TimeoutError:
        raise TimeoutError(f"its agent did not send {what} within {timeout_s:g} s") from None


def _why(error: BaseException) -> str:
    text = in_words(error) if isinstance(error, RayTaskError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0]
