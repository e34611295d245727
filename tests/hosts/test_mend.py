"""A machine is lost with all that it had; `up` makes it the host that it was, and jobs go on with the calm bits."""

from typing import Any

import pytest

from tests.hosts.conftest import Lab
from tests.hosts.host import Host
from tests.hosts.test_faults_while_running import Running, begin, record

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]

# A batch of 6 needs three hosts of two devices: with one lost it waits, whatever `min_hosts` allows.
TRANSFORMER = (
    "transformer",
    *("--set", "steps=160", "--set", "batch_size=6", "--set", "eval_batches=2", "--set", "sample_length=20"),
)
# Bits of the chains do not depend on hosts. Rank 0 takes its time: in the attempt on two hosts until the third is back,
# and so long that it pays to grow back. That attempt starts before step 200: pauses that it has behind it would come
# all at once, and be too long for the watchdog.
CHAINS = (
    "independent-chains",
    *("--set", "num_draws=900", "--set", "num_warmup=100", "--set", "draws_per_dispatch=20"),
)
PAUSES = [
    word
    for attempt, seconds, first in ((1, 2, 60), (2, 5, 200))
    for step in range(first, 1000, 20)
    for word in ("--inject", f"sleep rank=0 attempt={attempt} step={step} seconds={seconds}")
]


def lose(host: Host) -> None:
    """The machine comes up anew, and has nothing of ours any more but what lies in /tmp."""
    host.kill()
    host.boot()
    host.run(["rm", "-rf", "/root/.spmd-launch"])


def digest(lab: Lab, name: str, *job: str) -> str:
    found: str = lab.cli.json("submit", *job, "--name", name)["result_digest"]
    return found


def bring_back(running: Running, host: Host) -> str:
    """Loses the host while the job runs, and has `up` bring it back; returns what `up` has said."""
    lose(host)
    running.wait_for(lambda: running.events("attempt-failed"), "the loss is told", 60)
    lab = running.lab
    plan = lab.cli("up", str(lab.file), "--dry-run")
    assert f"start   host  {host.address}" in plan and f"brought back while its jobs go on: {host.address}" in plan
    said = lab.cli("up", str(lab.file))
    assert f"host {host.address} is back" in said
    assert "LOST" not in lab.cli("status", lab.name)
    return said


def test_a_job_that_waits_for_a_host_goes_on_when_it_is_back(lab: Lab) -> None:
    calm = digest(lab, "calm-t", *TRANSFORMER)
    running, host = begin(lab, "waits", *TRANSFORMER), lab.hosts["h2"]
    said = bring_back(running, host)
    assert f"cluster lab, up since {lab.cli.record('lab')['created']}, has {host.address} again" in said
    running.end(240)
    job = record(running)
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 2), running.events("note")
    assert any("waits for hosts: 2 host(s) are left" in note["message"] for note in running.events("note"))
    assert job["result"]["result_digest"] == calm
    assert job["hosts"] == [each.address for each in lab.hosts.hosts.values()]


@pytest.mark.long  # how jobs grow is tested in tests/e2e/test_elastic.py
def test_a_job_that_went_on_with_fewer_hosts_grows_back(lab: Lab) -> None:
    calm = digest(lab, "calm-c", *CHAINS)
    running = begin(lab, "grows", *CHAINS, *PAUSES)
    bring_back(running, lab.hosts["h3"])
    running.end(240)
    job = record(running)
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 3), running.events("note")
    [moved] = running.events("moved")
    assert f"grows back to 3 hosts at step {moved['step']}: host {lab.hosts['h3'].address} is back" in moved["message"]
    assert job["result"]["result_digest"] == calm


@pytest.mark.long  # a word of a client that was ended counts for more than a minute
def test_a_host_that_cannot_come_back_leaves_the_cluster_as_it_is(lab: Lab) -> None:
    host = lab.hosts["h2"]
    before = record_of(lab)
    host.kill()
    said = lab.cli("up", str(lab.file), code=1)
    assert f"cluster 'lab' goes on without {host.address}: none of {host.address} could be brought back" in said
    assert lab.cli.json("submit", "psum-check", "--num-hosts", "2")["state"] == "SUCCEEDED"
    assert record_of(lab) == before
    host.boot()
    up = lab.cli.start("up", str(lab.file))
    lab.cli.wait_for(host.processes, 60)
    up.kill()  # what it has begun there ends by itself
    up.communicate()
    lab.cli.wait_for(lambda: not cluster_processes(host), 90)
    assert "another client brings them back, since 20" in lab.cli("up", str(lab.file), code=2)
    lab.cli.wait_for(lambda: "bringing back" not in lab.cli("status", lab.name), 90)  # its word counts no more
    assert "is back" in lab.cli("up", str(lab.file))
    assert lab.cli.json("submit", "psum-check", "--num-hosts", "3")["state"] == "SUCCEEDED"


def record_of(lab: Lab) -> dict[str, Any]:
    return lab.cli.record(lab.name)


def cluster_processes(host: Host) -> list[str]:
    found = host.run(["pgrep", "-fa", "cluster.holder"], check=False)
    return found.stdout.splitlines()
