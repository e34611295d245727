"""Jobs on emulated TPU slices: whole ones, ranks in the order of workers, no chip left to others on the same Ray."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cluster.machine import LOOPBACK, ray_environment
from tests.conftest import Cli, assert_nothing_left, cluster_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NAME = "pod"


@pytest.fixture(scope="module")
def pod(cli: Cli) -> Iterator[str]:
    """Two slices of two hosts each."""
    path = cluster_file(cli.home, NAME, num_hosts=4, devices_per_host=4)
    text = path.read_text().replace("accelerator: cpu", "accelerator: tpu-v4-16\nemulate: true\nmin_hosts: 2")
    path.write_text(text)
    cli("up", str(path))
    record = cli.record(NAME)
    yield NAME
    cli("down", NAME, "--force")
    assert_nothing_left(record, cli.home)


def test_a_job_on_two_slices_is_told_of_both(cli: Cli, pod: str) -> None:
    cli("submit", "psum-check", "--cluster", pod, "--name", "both")
    job = cli.job("both")
    assert (job["state"], job["hosts"]) == ("SUCCEEDED", [f"{pod}-{k}" for k in range(4)])
    assert cli.json("results", "both")["metrics"]["psum"] == sum(range(16))
    text = cli("logs", "both")
    assert text.count("MEGASCALE_NUM_SLICES=2") == 4
    assert [text.count(f"MEGASCALE_SLICE_ID={k}") for k in range(3)] == [2, 2, 0]


def test_a_job_on_one_slice_is_not(cli: Cli, pod: str) -> None:
    cli("submit", "psum-check", "--cluster", pod, "--num-hosts", "2", "--name", "one")
    assert cli.job("one")["hosts"] == [f"{pod}-0", f"{pod}-1"]
    assert "MEGASCALE" not in cli("logs", "one")


def test_a_part_of_a_slice_is_refused(cli: Cli, pod: str) -> None:
    out = cli("submit", "psum-check", "--cluster", pod, "--num-hosts", "3", code=2)
    assert "--num-hosts 3: a job gets whole slices, and one of tpu-v4-16 is 2 hosts" in out


def test_the_agents_hold_all_chips(cli: Cli, pod: str) -> None:
    program = (
        "import ray, sys, json; ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False);"
        "print(json.dumps([ray.cluster_resources()['TPU'], ray.available_resources().get('TPU', 0)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, cli.record(pod)["gcs_address"]],
        env=os.environ | ray_environment(cli.home / "clusters" / pod, LOOPBACK),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == [16, 0]


def test_a_lost_host_costs_its_slice(cli: Cli, pod: str) -> None:
    """Last: the host does not come back."""
    fault = "kill-raylet host=2 step=40"
    steps = ("--set", "steps=120", "--set", "size=64", "--set", "report_every=10")
    out = cli("submit", "psum-check", *steps, "--name", "fewer-slices", "--cluster", pod, "--inject", fault)
    assert f"with 2 of 4 hosts, without {pod}-2, {pod}-3" in out
    assert cli.job("fewer-slices")["hosts"] == [f"{pod}-0", f"{pod}-1"]
    out = cli("submit", "psum-check", "--cluster", pod, "--no-wait")
    assert f"starts with 2 of 4 hosts, without {pod}-2, {pod}-3 (lost)" in out
