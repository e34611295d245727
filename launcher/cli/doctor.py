"""`doctor`: what is wrong with this machine or with a cluster, in words."""

import os
import platform
import subprocess
import sys
from typing import Any

import click

from cluster.processes import ProcessId, marked_processes
from cluster.record import Cluster, cluster_names, home
from launcher.attempt import HostFacts
from launcher.cli import bandwidth, security
from launcher.cli.console import next_commands, show_json
from launcher.cli.job_options import parse_settings
from launcher.cli.parity_table import parity_table
from launcher.cli.status import cluster_status
from launcher.errors import FailureError, UserError
from launcher.parity import compare
from launcher.protocol import Connection
from launcher.stacks import py_spy
from workloads.versions import versions

JAX_TIMEOUT_S = 60.0


@click.command()
@click.argument("name", required=False)
@click.option("--security", "look_at_security", is_flag=True, help="List what clusters listen on, and what guards it.")
@click.option("--bandwidth", "measure", is_flag=True, help="Measure the links between the hosts: a job of a minute.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Of that job; see `workloads NAME`.")
@click.option("--wait", is_flag=True, help="Queue that job behind others.")
@click.option("--json", "as_json", is_flag=True)
def doctor(
    name: str | None, look_at_security: bool, measure: bool, settings: tuple[str, ...], wait: bool, as_json: bool
) -> None:
    """Check this machine, and every cluster (or cluster NAME) with its hosts."""
    if (settings or wait) and not measure:
        raise UserError("--set and --wait belong to --bandwidth")
    if name is not None and name not in cluster_names():
        raise UserError(f"no cluster {name!r} (known: {', '.join(cluster_names()) or 'there is none'})")
    if look_at_security:
        security.show([security.look(found) for found in ([name] if name else cluster_names())], as_json)
        return
    if measure:
        if name is None and len(cluster_names()) > 1:
            raise UserError(f"say whose links: doctor NAME --bandwidth (there are: {', '.join(cluster_names())})")
        sys.exit(bandwidth.measure(name, parse_settings(settings), wait=wait, as_json=as_json))
    report = {
        "machine": machine_checks(),
        "clusters": [examine(found) for found in ([name] if name else cluster_names())],
    }
    problems = [check["problem"] for check in report["machine"] if check["problem"]]
    problems += [problem for cluster in report["clusters"] for problem in cluster["problems"]]
    if as_json:
        show_json(report)
    else:
        _print(report, problems)
    sys.exit(1 if problems else 0)


def machine_checks() -> list[dict[str, str]]:
    """What this machine has, each with a problem or the empty string."""
    found = versions()
    missing = [package for package, version in found.items() if version == "-"]
    return [
        _check(
            "python", platform.python_version(), "" if sys.version_info[:2] >= (3, 11) else "3.11 or newer is needed"
        ),
        _check(
            "packages",
            ", ".join(f"{package} {version}" for package, version in found.items() if package != "python"),
            f"not installed: {', '.join(missing)}" if missing else "",
        ),
        _check("cores", f"{os.cpu_count()}", ""),
        _check("shared memory", *_shared_memory()),
        _check("state folder", str(home()), _writable()),
        _check("stacks of hung ranks", *_stacks()),
        *_jax_hooks(),
    ]


def _stacks() -> tuple[str, str]:
    """`(found, problem)`; without py-spy a rank prints its own Python frames, if it can still run."""
    if py_spy() is None:
        return "faulthandler", "py-spy is not installed: a stopped rank, and native frames, cannot be shown"
    return "py-spy", ""


def _jax_hooks() -> list[dict[str, str]]:
    """What of JAX's inside can be watched and guarded; asked of another process, because this one imports no JAX."""
    code = (
        "from launcher.rank import gloo_address, mutual_tls\n"
        "from workloads.agreement import programs, user_launches\n"
        "for hook in (programs, user_launches, mutual_tls, gloo_address): print(hook.why_unsupported())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=JAX_TIMEOUT_S, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [_check("jax", "", f"cannot be imported: {last}")]
    barrier, launches, tls, gloo = done.stdout.split("\n")[:4]
    return [
        _check("program barrier", "off" if barrier else "on", barrier),
        _check("launches of your own programs", "not seen" if launches else "can be seen", launches),
        # Not a problem of this machine: jobs run, and on a local cluster nobody else can connect.
        _check("coordination service", f"open to whoever can connect: {tls}" if tls else "guarded by mutual TLS", ""),
        _check("gloo", "listens where the host's name resolves to" if gloo else "listens on the host's address", gloo),
    ]


def examine(name: str) -> dict[str, Any]:
    """A cluster's state, host facts and problems."""
    status = cluster_status(name)
    report: dict[str, Any] = {"name": name, "state": status["state"], "facts": [], "problems": []}
    cluster = Cluster.load(name)
    if status["state"] == "UNREACHABLE":
        report["problems"].append(f"cluster {name} cannot be reached: {status['message']}")
        return report
    if status["state"] == "WENT DOWN":
        return report
    if cluster is None or status["state"] == "DEAD":
        left = len(_processes_here(cluster)) if cluster else 0
        report["problems"].append(
            f"cluster {name} is {status['state']}, {left} process(es) left: `spmd-launch down {name}`"
        )
        return report
    try:
        with Connection(cluster.socket) as connection:
            answer = connection.ask({"op": "facts"})
            facts, lost = [HostFacts(**fact) for fact in answer["facts"]], answer["lost"]
    except FailureError as error:
        report["problems"].append(f"cluster {name}: {error}")
        return report
    if lost:
        back = "`spmd-launch up FILE` brings back what can be"
        report["problems"].append(f"cluster {name}: host {', '.join(lost)} does not answer: {back}")
    if not facts:
        return report
    differences = compare(facts, cluster.spec.devices_per_host, cluster.spec.jax_hardware)
    report["facts"] = [vars(fact) for fact in facts]
    report["table"] = parity_table(facts, differences)
    report["problems"] += [str(difference) for difference in differences if difference.matters]
    return report


def _processes_here(cluster: Cluster) -> list[ProcessId]:
    """Those of a cluster on this machine; the holder's session is ours only where the holder is."""
    if cluster.is_remote:
        return []
    return marked_processes(cluster.cluster_id, cluster.holder if cluster.spec.provider.owns_ray else None)


def _print(report: dict[str, Any], problems: list[str]) -> None:
    click.echo("this machine")
    for check in report["machine"]:
        click.echo(f"{'! ' if check['problem'] else '  '}{check['what']}: {check['found']} {check['problem']}".rstrip())
    for cluster in report["clusters"]:
        click.echo(f"\ncluster {cluster['name']}: {cluster['state']}")
        if "table" in cluster:
            click.echo(cluster["table"])
    click.echo("\n" + ("\n".join(f"! {problem}" for problem in problems) if problems else "no problem found"))
    next_commands("spmd-launch up FILE" if not report["clusters"] else "spmd-launch status", "spmd-launch workloads")


def _check(what: str, found: str, problem: str) -> dict[str, str]:
    return {"what": what, "found": found, "problem": problem}


def _shared_memory() -> tuple[str, str]:
    if not os.path.isdir("/dev/shm"):
        return "no /dev/shm here", ""
    stat = os.statvfs("/dev/shm")
    free = stat.f_bavail * stat.f_frsize
    return f"{free / 1e9:.1f} GB free", "" if free > 1e9 else "less than 1 GB is free: hosts may not start"


def _writable() -> str:
    try:
        home().mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        return f"cannot be made: {error}"
    return "" if os.access(home(), os.W_OK) else "is not writable"
