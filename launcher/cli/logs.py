"""`logs`: what the ranks of a job wrote to standard output and error."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import click

from launcher.cli.console import say
from launcher.cli.results import find_job
from launcher.errors import UserError
from launcher.job_folder import JobFolder
from launcher.record_copy import refresh_job

PERIOD_S = 0.2


@click.command()
@click.argument("job")
@click.option("--rank", type=click.IntRange(0), metavar="K", help="Of this rank alone.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Of this attempt; by default the last.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job ends.")
def logs(job: str, rank: int | None, attempt: int | None, follow: bool) -> None:
    """Print the logs of JOB, each line with its rank."""
    folder = find_job(job)
    shown: dict[str, int] = {}
    while True:
        refresh_job(job)
        ended = folder.state().ended
        for line in new_lines(folder, shown, rank, attempt or folder.job().get("attempt", 1)):
            click.echo(line)
        if not follow or ended:
            break
        time.sleep(PERIOD_S)
    if rank is not None and not shown and folder.state().ended:
        ranks = sorted({_parts(path)[1] for path in _log_files(folder)})
        raise UserError(f"job {job!r} has no log of rank {rank} (there are logs of ranks {ranks})")
    if not shown:
        say(f"job {job} is {folder.state()} and has written nothing" + ("" if folder.state().ended else " yet"))


def new_lines(
    folder: JobFolder, shown: dict[str, int], rank: int | None = None, attempt: int | None = None
) -> Iterator[str]:
    """Whole lines of the logs that have not been shown yet, each with its rank.

    Args:
        folder: of the job.
        shown: bytes by log file that have been; continued here.
        rank, attempt: of these alone.
    """
    for path in _log_files(folder):
        of_attempt, of_rank = _parts(path)
        if attempt not in (None, of_attempt) or rank not in (None, of_rank):
            continue
        with path.open("rb") as file:
            file.seek(shown.get(path.name, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1] or (data if folder.state().ended else b"")
        shown[path.name] = shown.get(path.name, 0) + len(whole)
        for line in whole.decode(errors="replace").splitlines():
            yield f"[{of_rank}] {line}"


def _log_files(folder: JobFolder) -> list[Path]:
    return [path for path in folder.files("logs") if path.suffix == ".log"]  # stacks lie there too


def _parts(path: Path) -> tuple[int, int]:
    match = re.fullmatch(r"attempt-(\d+)\.rank-(\d+)\.log", path.name)
    assert match, path
    return int(match[1]), int(match[2])
