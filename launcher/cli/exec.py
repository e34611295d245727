"""`exec`: a command on the hosts themselves, beside whatever runs there."""

import sys

import click

from launcher.choose import choose_cluster
from launcher.cli.console import show_json
from launcher.errors import UserError
from launcher.protocol import Connection
from launcher.words import number_of_bytes

ANSWER_S = 30.0  # beyond the command's own time


@click.command(name="exec", context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENT]...")
@click.option("--cluster", help="Which cluster; may be left out if one is up.")
@click.option("--rank", type=click.IntRange(0), metavar="K", help="On this host alone, counted as in `status`.")
@click.option(
    "--timeout", type=click.FloatRange(1.0, 3600.0), default=60.0, show_default=True, metavar="SECONDS",
    help="Then it is killed.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True)
def execute(words: tuple[str, ...], cluster: str | None, rank: int | None, timeout: float, as_json: bool) -> None:
    """Run COMMAND on every host of a cluster, spares too, as `spmd-launch exec -- df -h /`.

    It waits for no job and ends none, but shares cores, memory and devices with what runs there; a device that one
    process alone can have, as a TPU, it does not get beside a job.

    It is no rank of a job: it has the environment that commands of `run` have there (the cluster file's `env`, JAX's
    platform, the hosts' `python` in its PATH), without SPMD_LAUNCH_RANK and the like, and it is not in a copy of your
    folder, but in one of the host's own. It gets no input. What it leaves in the background is waited for until
    --timeout, and killed then.

    What it prints, of each host the last 1 MiB, is shown when it has ended on all hosts, after the host's number in
    `status`; a job on some of the hosts counts its ranks otherwise.

    Exit code 0 if it is 0 on all hosts, else 1, also where a host is lost.
    """
    chosen = choose_cluster(cluster)
    names = [host.name for host in chosen.hosts]
    if rank is not None and rank >= len(names):
        raise UserError(f"--rank {rank}: cluster {chosen.name!r} has {len(names)} host(s), from 0 to {len(names) - 1}")
    request = {"op": "exec", "words": list(words), "host": None if rank is None else names[rank], "timeout_s": timeout}
    with Connection(chosen.socket, timeout_s=timeout + ANSWER_S) as connection:
        answers = connection.ask(request)["hosts"]
    if as_json:
        show_json(answers)
    else:
        for answer in answers:
            _show(names.index(answer["host"]), answer, timeout)
    sys.exit(0 if all(answer["code"] == 0 for answer in answers) else 1)


def _show(rank: int, answer: dict[str, str | int | None], timeout_s: float) -> None:
    if num_cut := answer.get("num_cut"):
        cut = number_of_bytes(int(num_cut))
        click.echo(f"[{rank}] {answer['host']}: the first {cut} of its output are cut: write it to a file", err=True)
    for line in str(answer["output"]).splitlines():
        click.echo(f"[{rank}] {line}")
    if answer["error"]:
        click.echo(f"[{rank}] {answer['host']}: {answer['error']}", err=True)
    elif answer["code"] is None:
        click.echo(f"[{rank}] {answer['host']}: ended after {timeout_s:g} s (--timeout)", err=True)
    elif answer["code"] != 0:
        click.echo(f"[{rank}] {answer['host']}: exit code {answer['code']}", err=True)
