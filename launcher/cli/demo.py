"""`demo`: an emulated two-host cluster, the three workloads on real input, and a clean end."""

import time

import click

from cluster.record import cluster_names
from cluster.spec import ClusterSpec, LocalProviderSpec
from launcher.cli.console import next_commands, say, seconds
from launcher.errors import FailureError, UserError

NAME = "demo"
WARM_TIMEOUT_S = 60.0

# Short runs of the real thing: what each workload is submitted with.
RUNS = (
    ("independent-chains", {"model": "eight-schools", "sampler": "nuts", "num_warmup": "500", "num_draws": "500"}),
    ("sharded-mcmc", {"num_warmup": "60", "num_draws": "60"}),
    ("transformer", {"steps": "60", "mesh": "data:2,model:2", "sample_length": "150"}),
)


@click.command()
@click.option("--keep", is_flag=True, help="Leave the cluster up.")
def demo(keep: bool) -> None:
    """Bring up two emulated hosts, run the three workloads across both, and take everything down."""
    from launcher.bringup import down, up
    from launcher.cli.parity_table import parity_table

    if NAME in cluster_names():
        say(f"a cluster {NAME!r} is left from an earlier run; ending it first")
        down(NAME, force=True, say=say)
    start = time.monotonic()
    spec = ClusterSpec(name=NAME, provider=LocalProviderSpec(), num_hosts=2, devices_per_host=2)
    done = up(spec, say)
    click.echo(parity_table(done.facts, done.differences))
    click.echo(f"\ncluster {NAME}: 2 emulated hosts x 2 devices in {seconds(done.seconds)}")
    try:
        _wait_until_warm()
        failed = [workload for workload, settings in RUNS if not _run(workload, settings)]
    finally:
        if not keep:
            down(NAME, force=True, say=say)
    if not keep:
        click.echo(f"\ncluster {NAME} is down: no process, port or temporary folder of it is left")
    click.echo(f"demo took {seconds(time.monotonic() - start)}")
    next_commands("spmd-launch jobs", "spmd-launch up examples/laptop.yaml", "spmd-launch workloads")
    if failed:
        raise FailureError(f"failed: {', '.join(failed)}")


def _wait_until_warm() -> None:
    """Lets every host import JAX, TFP and Flax once; jobs that start meanwhile would import them again."""
    from launcher.cli.status import cluster_status

    say("hosts import what workloads need, once; after that a rank starts in milliseconds")
    deadline = time.monotonic() + WARM_TIMEOUT_S
    while cluster_status(NAME)["state"] != "WARM" and time.monotonic() < deadline:
        time.sleep(0.2)


def _run(workload: str, settings: dict[str, str]) -> bool:
    from launcher.cli.submit import watch_to_end
    from launcher.job import JobOptions
    from launcher.submission import Request, describe, prepare, send

    click.echo(f"\n--- {workload}")
    prepared = prepare(Request(workload=workload, settings=settings, cluster=NAME, options=JobOptions(seed=1)))
    answer = send(prepared, wait=True)
    click.echo(f"job {answer['name']}: {describe(prepared.spec)}")
    code = watch_to_end(prepared.cluster, answer["name"], as_json=False)
    if code == 130:
        raise UserError("the demo was interrupted")
    return code == 0
