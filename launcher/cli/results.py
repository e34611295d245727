"""`results`: what a job found, read from its folder, with or without its cluster."""

import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from launcher.cli.console import next_commands, show_json, table
from launcher.errors import UserError
from launcher.job_folder import JobFolder, all_jobs
from launcher.outputs import read_summary
from launcher.record_copy import refresh_job
from launcher.record_names import find_record, is_valid
from launcher.words import number_of_bytes

MAX_LISTED = 8


def find_job(name: str) -> JobFolder:
    """The folder of a job; if a remote cluster runs it, with what is new there.

    Raises:
        UserError: there is none of that name.
    """
    if is_valid(name):  # nothing else is the name of a folder of ours
        refresh_job(name)
        if (folder := find_record(name)).exists():
            return folder
    known = ", ".join(job.name for job in all_jobs()[-8:]) or "there is none"
    raise UserError(f"no job {name!r} (known: {known})")


@click.command()
@click.argument("job")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Copy results and plots there.")
@click.option("--json", "as_json", is_flag=True)
def results(job: str, output: Path | None, as_json: bool) -> None:
    """Show the metrics, integrity verdict, diagnostics and files of JOB."""
    folder = find_job(job)
    if output is not None:
        for part in ("results", "plots"):
            shutil.copytree(folder.path / part, output / part, dirs_exist_ok=True)
    show_results(folder, as_json=as_json)
    if not as_json:
        if output is not None:
            click.echo(f"\ncopied to {output}")
        next_commands(f"spmd-launch logs {job}", f"spmd-launch results {job} --json", "spmd-launch jobs")


def show_results(folder: JobFolder, *, as_json: bool) -> None:
    """Prints everything that a job left."""
    job = folder.job()
    summary = read_summary(folder.path)
    if as_json:
        show_json(_as_json(folder, job, summary))
        return
    click.echo(f"job {job['name']}: {job['state']}" + (f": {job['message']}" if job.get("message") else ""))
    if job["spec"].get("command") is not None:
        click.echo(f"  exit codes     {', '.join(f'{end} of rank {rank}' for rank, end in exit_codes(folder).items())}")
    if summary is None and job["state"] == "SUCCEEDED":
        click.echo("it left no summary")
    if summary is not None:
        _show_summary(folder, job, summary)
    for part in ("results", "plots"):
        files = folder.files(part)
        if files:
            click.echo(f"  {part} in {folder.path / part}")
            click.echo(f"    {_listed(files, folder.path / part)}")


def _show_summary(folder: JobFolder, job: dict[str, Any], summary: dict[str, Any]) -> None:
    if job["spec"].get("command") is None:
        rows = [[name, _scalar(value)] for name, value in summary["metrics"].items()]
        click.echo(table(["metric", "value"], rows))
        click.echo(f"  integrity      {_integrity(summary['integrity'])}")
        click.echo(f"  result_digest  {summary['result_digest']}")
    if copies := copies_in_words(folder):
        click.echo(f"  checkpoints    {copies}")
    for problem in summary["diagnostics"].get("problems", []):
        click.echo(textwrap.fill(problem, 78, initial_indent="! ", subsequent_indent="  "))


def _listed(files: Sequence[Path], folder: Path) -> str:
    shown = [f"{path.relative_to(folder)} ({number_of_bytes(path.stat().st_size)})" for path in files[:MAX_LISTED]]
    more = [f"and {len(files) - MAX_LISTED} more"] if len(files) > MAX_LISTED else []
    return ", ".join(shown + more)


def exit_codes(folder: JobFolder) -> dict[int, str]:
    """How each rank of the last attempt ended: its exit code, `signal N`, `raised E`, or `stopped`: another failed."""
    ends: dict[int, str] = {}
    for event in folder.lines("events.jsonl"):
        if event["type"] == "attempt":
            ends = dict.fromkeys(range(len(event["hosts"])), "stopped")
        elif event["type"] == "error":
            ends[event["rank"]] = f"raised {event['error']['type']}"  # and was ended, if it waited for its peers then
        elif event["type"] == "exit" and not event.get("stopped"):
            ends[event["rank"]] = f"{event['code']}" if event["code"] >= 0 else f"signal {-event['code']}"
    return ends


def _integrity(verdict: dict[str, Any]) -> str:
    compared = number_of_bytes(verdict["bytes_checked"])
    single = number_of_bytes(verdict["bytes_single_copy"])
    return f"{verdict['status']}: {compared} compared in {verdict['num_checks']} check(s); {single} have no second copy"


def copies_in_words(folder: JobFolder) -> str:
    """How much of a job's checkpoints went between its hosts and the head; '' where they share a storage."""
    copied = [event["copied_bytes"] for event in _events(folder, "checkpoint") if "copied_bytes" in event]
    fetched = [event["bytes"] for event in _events(folder, "checkpoint-fetched")]
    if not copied and not fetched:
        return ""
    to_head = f"{number_of_bytes(sum(copied))} copied to the head in {len(copied)} save(s)"
    return f"{to_head}, {number_of_bytes(sum(fetched))} fetched from it"


def _as_json(folder: JobFolder, job: dict[str, Any], summary: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "name": job["name"],
        "state": job["state"],
        "message": job.get("message", ""),
        "workload": job["spec"]["workload"],
        "config": job["spec"]["config"],
        "seed": job["spec"]["seed"],
        **({"exit_codes": exit_codes(folder)} if job["spec"].get("command") else {}),
        **({key: summary[key] for key in ("metrics", "result_digest", "integrity", "diagnostics")} if summary else {}),
        "verdicts": _events(folder, "verdict"),
        "checkpoints": [event for event in _events(folder, "checkpoint") if event["rank"] == 0],
        "folder": str(folder.path),
        "results": [str(path) for path in folder.files("results")],
        "plots": [str(path) for path in folder.files("plots")],
        "logs": [str(path) for path in folder.files("logs")],
    }  # fmt: skip


def _events(folder: JobFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in folder.lines("events.jsonl") if event["type"] == kind]


def _scalar(value: float) -> str:
    """Six digits, and counts in full."""
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"
