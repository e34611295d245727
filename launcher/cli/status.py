"""`status`: clusters, hosts and jobs, now or again and again."""

import datetime
import time
from typing import Any

import click

from cluster.errors import ClusterError
from cluster.farewell import Farewell, kept_farewell, known_names
from cluster.record import Cluster, cluster_folder, load_spec
from cluster.spec import ClusterSpec
from launcher.cli.age import age_and_cost, describe_age, describe_remains
from launcher.cli.console import is_terminal, next_commands, show_json, table
from launcher.cli.results import find_job
from launcher.errors import FailureError, UserError
from launcher.job_folder import JobFolder, all_jobs
from launcher.lost_head import describe_health, describe_troubles
from launcher.protocol import Connection
from launcher.record_names import record_name
from launcher.up_lock import is_held
from launcher.went_down import went_down
from launcher.words import waits_for

PERIOD_S = 1.0


@click.command()
@click.argument("name", required=False, metavar="[NAME|JOB]")
@click.option("--watch", is_flag=True, help="Show it again every second, until the job ends or Ctrl-C.")
@click.option("--json", "as_json", is_flag=True)
def status(name: str | None, watch: bool, as_json: bool) -> None:
    """Show all clusters, or one cluster NAME, or one JOB."""
    while True:
        ended = _show(name, as_json, ask_health=not watch)
        if not watch or ended:
            return
        time.sleep(PERIOD_S)
        if is_terminal() and not as_json:
            click.clear()


def _show(name: str | None, as_json: bool, *, ask_health: bool) -> bool:
    """Shows it once; returns whether there is nothing more to see."""
    if name is not None and name not in known_names():
        return _show_job(name, as_json)
    names = [name] if name else known_names()
    clusters = [cluster_status(found, ask_health=ask_health and name is not None) for found in names]
    if as_json:
        show_json(clusters if name is None else clusters[0])
        return False
    if not clusters:
        click.echo("no cluster is up")
        next_commands("spmd-launch up FILE", "spmd-launch jobs")
    for cluster in clusters:
        _print_cluster(cluster)
    return not clusters


def cluster_status(name: str, *, ask_health: bool = False) -> dict[str, Any]:
    """State of a cluster, with its hosts and jobs, its age and cost; `ask_health`: a cloud, too, of hosts that answer.

    The state is `READY`, `WARM`, `LOST HOSTS`, `GOING DOWN`, `WENT DOWN`, `DEAD`, `INCOMPLETE`, or, where nothing is
    known, `UNREACHABLE`.
    """
    cluster = Cluster.load(name)
    nothing: dict[str, Any] = {"name": name, "hosts": [], "jobs": [], "queue": [], "troubles": []}
    if farewell := kept_farewell(name):
        return nothing | _gone(farewell)
    if cluster is None:
        return nothing | _incomplete(name)
    known = nothing | _age(cluster.spec, cluster.created)
    if (problem := cluster.problem()) or not cluster.alive():
        return known | _without_answer(cluster, problem, "")
    try:
        with Connection(cluster.socket) as connection:
            answer = connection.ask({"op": "status"})
    except FailureError as error:
        problem = cluster.problem()  # the way may have been cut, which ssh notices only after a while
        return known | _without_answer(cluster, problem, str(error))
    standbys = {host["standby"] for host in answer["hosts"]}
    state = "LOST HOSTS" if "LOST" in standbys else "WARM" if standbys == {"WARM"} else "READY"
    lost = [host["name"] for host in answer["hosts"] if host["standby"] == "LOST"]
    troubles = describe_troubles(cluster, lost) if lost else describe_health(cluster) if ask_health else []
    state = "GOING DOWN" if answer["limits"]["going_down"] else state
    return {**known, "state": state, "troubles": troubles, **answer}


def _incomplete(name: str) -> dict[str, Any]:
    """Of one whose `up` has not come to its end, or whose `down` has not."""
    try:
        spec = load_spec(name)
    except ClusterError as error:
        return {"state": "INCOMPLETE", "message": f"{error}; `spmd-launch down {name} --force` ends what can be ended"}
    asked = datetime.datetime.fromtimestamp((cluster_folder(name) / "spec.json").stat().st_mtime).astimezone()
    message = "a command brings it up now" if is_held(name) else _remains(spec)
    return {"state": "INCOMPLETE", "message": message} | _age(spec, asked.isoformat(timespec="seconds"))


def _remains(spec: ClusterSpec, why: str = "") -> str:
    """What there may be of a cluster of which nothing answers."""
    down = f"`spmd-launch down {spec.name}`"
    if spec.rents_hosts:
        what = f"nothing of it answers, but its machines may be there and cost money: {down} ends them, and looks"
    else:
        what = f"nothing of it runs; {down} cleans up"
    return f"{why}; {what}" if why else what


def _age(spec: ClusterSpec, created: str) -> dict[str, Any]:
    return {"spec": spec.to_json(), "created": created, **age_and_cost(spec, created)}


def _without_answer(cluster: Cluster, problem: str, message: str) -> dict[str, Any]:
    """What can be said of a cluster whose supervisor does not answer; `problem` is why its head cannot be reached."""
    may_be_gone = not problem or cluster.spec.provider.is_paid  # its machines too
    if may_be_gone and (farewell := went_down(cluster)):
        return _gone(farewell)
    if problem:
        return {"state": "UNREACHABLE", "message": problem, "troubles": describe_troubles(cluster)}
    return {"state": "DEAD", "message": _remains(cluster.spec, message)}


def _gone(farewell: Farewell) -> dict[str, Any]:
    return {"state": "WENT DOWN", "message": farewell.sentence, "ended": farewell.ended}


def _print_cluster(cluster: dict[str, Any]) -> None:
    click.echo(f"cluster {cluster['name']}: {cluster['state']}")
    for trouble in cluster["troubles"]:
        click.echo(f"! {trouble}")
    if cluster["state"] == "UNREACHABLE":
        click.echo(f"  {cluster['message']}; if it is up, its jobs go on")
        for line in describe_age(cluster):
            click.echo(line)
        return
    if cluster["state"] == "WENT DOWN":
        click.echo(f"  {cluster['message']}")
        next_commands("spmd-launch jobs", "spmd-launch up FILE", f"spmd-launch down {cluster['name']}")
        return
    if cluster["state"] in ("DEAD", "INCOMPLETE"):
        for line in describe_remains(cluster):
            click.echo(line)
        return
    for line in describe_age(cluster):
        click.echo(line)
    rows = [[host["name"], host["address"], host["standby"], host["job"] or "-"] for host in cluster["hosts"]]
    click.echo(table(["host", "address", "standby", "job"], rows))
    for host in cluster["hosts"]:
        if host["suspect"]:
            click.echo(f"! {host['name']} is suspect: {host['suspect']}")
        if host.get("notice"):
            click.echo(f"! {host['name']}: {host['notice']}; no job is started on it")
    if (returning := cluster.get("returning", {})).get("hosts"):
        click.echo(f"! bringing back {', '.join(returning['hosts'])} since {returning['since']}")
    alive = [job for job in cluster["jobs"] if job["state"] in ("QUEUED", "STARTING", "RUNNING", "RECOVERING")]
    # As commands here take it; a supervisor of an older version does not tell the id.
    names = [record_name(job["name"], job["job_id"]) if "job_id" in job else job["name"] for job in alive]
    for name, job in zip(names, alive, strict=True):
        click.echo(f"  job {name} {job['state']} {_steps(job)}")
    watch = [f"spmd-launch status {name} --watch" for name in names[:1]]
    back = ["spmd-launch up FILE"] if cluster["state"] == "LOST HOSTS" else []
    next_commands(*back, *watch, "spmd-launch jobs", f"spmd-launch down {cluster['name']}")


def _show_job(name: str, as_json: bool) -> bool:
    try:
        folder = find_job(name)
    except UserError as error:
        known = ", ".join([*known_names(), *(job.name for job in all_jobs())][:12]) or "there is none"
        raise UserError(f"no cluster or job {name!r} (known: {known})") from error
    job = job_status(folder)
    if as_json:
        show_json(job)
    else:
        click.echo(f"job {job['name']}: {job['state']}, attempt {job['attempt']}, {job['workload']}")
        if job["message"]:
            click.echo(f"  {job['message']}")
        if job["state"] == "QUEUED" and "waits_for" in job:
            click.echo(f"  {waits_for(job['waits_for'])}")
        rows = [
            [f"{r['rank']}", r["host"], f"{r['pid']}", r["phase"], f"{r['step']}/{r['total']}"] for r in job["ranks"]
        ]
        if rows:
            click.echo(table(["rank", "host", "pid", "phase", "step"], rows))
    return job["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")


def job_status(folder: JobFolder) -> dict[str, Any]:
    """State, attempt and ranks of a job: live from its supervisor, or as its record says."""
    keys = ("name", "workload", "state", "attempt", "message", "checkpoint_step", "hosts", "seconds", "ranks", "notes")
    job = folder.job()
    recorded = {key: job.get(key) for key in keys} | {"workload": job["spec"]["workload"]}
    recorded = {
        **recorded,
        "ranks": recorded["ranks"] or [],
        "attempt": recorded["attempt"] or 0,
        "message": recorded["message"] or "",
        "notes": recorded["notes"] or [],
    }
    cluster = Cluster.load(job["cluster"])
    if folder.state().ended or cluster is None or not cluster.alive():
        return recorded
    try:
        with Connection(cluster.socket) as connection:
            return connection.ask({"op": "job", **folder.address()})
    except (FailureError, UserError) as error:
        return recorded | {"message": f"its last known state; {error}"}


def _steps(job: dict[str, Any]) -> str:
    return ", ".join(f"rank {rank['rank']} {rank['phase']} {rank['step']}/{rank['total']}" for rank in job["ranks"])
