"""Cloud TPU slices from the request to bitwise results and back to nothing; the cloud is a fake, all else is real."""

import pytest

from tests.provision.conftest import Cloud

pytestmark = [pytest.mark.provision, pytest.mark.timeout(900)]

JOBS = {
    "independent-chains": ["--set", "num_draws=20", "--set", "num_warmup=20"],
    "sharded-mcmc": ["--set", "num_draws=10", "--set", "num_warmup=10"],
}
TRANSFORMER = ["--set", "steps=24", "--checkpoint-every", "4"]


def test_a_slice_from_the_request_to_bitwise_results_over_a_preemption_and_back_to_nothing(cloud: Cloud) -> None:
    file = cloud.write("pod")
    said = cloud.cli("up", file, "--yes")
    for word in (
        "asking for v4-16, spot, in us-central2-b",
        "WAITING_FOR_RESOURCES since",
        "PROVISIONING since",
        "READY since",
    ):
        assert f"pod-0: {word}" in said
    record = cloud.cli.record("pod")
    machines = cloud.machines.given["pod-0"]
    assert [host["name"] for host in record["hosts"]] == ["pod-0-w0", "pod-0-w1"]
    assert [host["address"] for host in record["hosts"]] == [cloud.hosts[name].address for name in machines]
    for workload, settings in JOBS.items():
        assert cloud.cli.json("submit", workload, *settings)["state"] == "SUCCEEDED"
    calm = cloud.cli.json("submit", "transformer", "--name", "calm", *TRANSFORMER)
    process = cloud.cli.start("submit", "transformer", "--name", "hurt", *TRANSFORMER)
    cloud.cli.wait_for(lambda: has_checkpoint(cloud, "hurt"), 120)
    cloud.fake.preempt("pod-0")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    assert "slice pod-0: PREEMPTED; asking for new machines, where job hurt goes on" in " ".join(err.split())
    hurt = cloud.cli.json("results", "hurt")
    assert hurt["result_digest"] == calm["result_digest"]
    assert [event["step"] for event in cloud.cli.events("hurt", "resumed")][-1] >= 4
    cloud.cli("down", "pod")
    assert cloud.fake.there() == {} and not cloud.machines.given


def has_checkpoint(cloud: Cloud, job: str) -> bool:
    """Whether the copy of the job's record in the storage tells of one."""
    assert cloud.hosts.bucket is not None
    copies = cloud.hosts.bucket.glob(f"{job}.*/record/events.jsonl")
    return any('"type":"checkpoint"' in copy.read_text() for copy in copies)
