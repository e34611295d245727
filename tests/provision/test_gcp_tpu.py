"""Cloud TPU slices from the request to bitwise results and back to nothing; the cloud is a fake, all else is real."""

import json

import psutil
import pytest

from launcher.notices import ADDRESS
from tests.provision.conftest import Cloud
from tests.provision.link_local import GOOGLE_TOKEN

pytestmark = [pytest.mark.provision, pytest.mark.timeout(900)]

JOBS = {
    "independent-chains": ["--set", "num_draws=20", "--set", "num_warmup=20"],
    "sharded-mcmc": ["--set", "num_draws=10", "--set", "num_warmup=10"],
}
TRANSFORMER = ["--set", "steps=24", "--checkpoint-every"]
SLOWLY = [word for step in range(2, 22, 2) for word in ("--inject", f"sleep rank=1 step={step} seconds=3")]
CHAINS = [
    "independent-chains",
    *("--set", "num_draws=300", "--set", "num_warmup=100", "--set", "draws_per_dispatch=20"),
]
# Rank 0 of the first attempt takes its time, so that there is a middle.
PAUSES = [word for step in range(60, 400, 40) for word in ("--inject", f"sleep rank=0 step={step} seconds=2")]


def test_a_slice_from_the_request_to_bitwise_results_over_a_preemption_and_back_to_nothing(cloud: Cloud) -> None:
    file = cloud.write(
        "pod", f"env: {{GCE_METADATA_HOST: {ADDRESS}}}"
    )  # a slow machine asks again, if it is told where
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
    calm = cloud.cli.json("submit", "transformer", "--name", "calm", *TRANSFORMER, "4")
    process = cloud.cli.start("submit", "transformer", "--name", "hurt", *TRANSFORMER, "1000", *SLOWLY)
    cloud.cli.wait_for(lambda: step_of(cloud, "hurt"), 120)
    cloud.metadata.set("pod-0-w1", "preempted", "TRUE")  # Google gives half a minute
    cloud.cli.wait_for(lambda: has_checkpoint(cloud, "hurt"), 60)
    cloud.fake.preempt("pod-0")
    cloud.metadata.set("pod-0-w1", "preempted", None)  # another machine will have the name
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    assert "slice pod-0: PREEMPTED; asking for new machines, where job hurt goes on" in " ".join(err.split())
    hurt = cloud.cli.json("results", "hurt")
    assert hurt["result_digest"] == calm["result_digest"]
    (notice,) = cloud.cli.events("hurt", "notice")
    assert (notice["host"], notice["notice"]) == ("pod-0-w1", "preemption")
    saved = cloud.cli.events("hurt", "checkpoint")[0]["step"]
    assert [event["step"] for event in cloud.cli.events("hurt", "resumed")][-1] == saved
    assert 0 < saved < 24, "it was saved because of the notice"
    assert_no_secret(cloud)
    down = cloud.cli("down", "pod")
    assert "all its slices are deleted; lists of test-project, us-central2-b show none" in down
    assert cloud.fake.there() == {} and not cloud.machines.given


def test_of_two_slices_one_is_taken_host_by_host_and_asked_for_again_while_the_job_waits(cloud: Cloud) -> None:
    file = cloud.write("duo", "num_slices: 2")
    cloud.cli("up", file, "--yes")
    before = nodes(cloud)
    assert list(before) == ["duo-0-w0", "duo-0-w1", "duo-1-w0", "duo-1-w1"]
    calm = cloud.cli.json("submit", *CHAINS, "--name", "calm-duo")
    process = cloud.cli.start("submit", *CHAINS, *PAUSES, "--name", "hurt-duo", "--checkpoint-every", "40")
    cloud.cli.wait_for(lambda: has_checkpoint(cloud, "hurt-duo"), 120)
    cloud.fake.calls.clear()
    cloud.fake.suspend("duo-1")
    _, last = cloud.machines.given["duo-1"]
    cloud.hosts[last].kill()  # the other one answers until the slice is deleted
    out, err = process.communicate(timeout=400)
    said = " ".join((out + err).split())
    assert process.returncode == 0, out + err
    assert "slice duo-1: SUSPENDING; asking for new machines in place of duo-1-w1" in said
    assert "host duo-1-w0 is back" in said and "host duo-1-w1 is back" in said
    assert [name for method, name in cloud.fake.calls if method == "CreateQueuedResource"] == ["duo-1"]
    hurt = cloud.cli.json("results", "hurt-duo")
    assert (hurt["state"], hurt["result_digest"]) == ("SUCCEEDED", calm["result_digest"])
    assert [event["step"] for event in cloud.cli.events("hurt-duo", "resumed")][-1] >= 40
    after = nodes(cloud)
    assert [name for name in before if after[name] != before[name]] == ["duo-1-w0", "duo-1-w1"]
    cloud.cli("down", "duo")
    assert cloud.fake.there() == {} and not cloud.machines.given


def test_slices_that_nobody_uses_are_deleted_by_their_own_head(cloud: Cloud) -> None:
    file = cloud.write("idle", "idle_down_after: 20s", "num_slices: 2")
    path = cloud.cli_path(file)
    path.write_text(path.read_text().replace("tpu-v4-16", "tpu-v4-8"))
    cloud.cli("up", file, "--yes")
    machines = [cloud.hosts[name] for names in cloud.machines.given.values() for name in names]
    cloud.cli("submit", "psum-check", "--name", "unseen", "--detach")  # and the laptop is closed
    cloud.fake.calls.clear()
    cloud.cli.wait_for(lambda: not cloud.fake.there(), 180)
    deleted = [name.rpartition("/")[2] for method, name in cloud.fake.calls if method == "DeleteQueuedResource"]
    assert deleted == ["idle-1", "idle-0"], "the head goes last"
    assert GOOGLE_TOKEN in cloud.fake.secrets
    assert not any(machine.is_on() for machine in machines) and len(machines) == 2

    assert cloud.cli.json("status", "idle")["state"] == "WENT DOWN"
    assert "after 20s without a job" in cloud.cli("status", "idle")
    assert "took itself down at" in cloud.cli("down", "idle", "--dry-run")
    assert "SUCCEEDED" in cloud.cli("status", "unseen")
    assert "took itself down at" in cloud.cli("down", "idle")
    assert not (cloud.cli.home / "clusters/idle").exists()


def test_an_adopted_machine_is_used_and_left_as_it_was(cloud: Cloud) -> None:
    cloud.fake.make_node("mine", "v4-8", "us-central2-b", {})
    file = cloud.write("kept", provider=f"adopt: [mine]\n  identity_file: {cloud.hosts.identity}")
    path = cloud.cli_path(file)
    path.write_text(path.read_text().replace("tpu-v4-16", "tpu-v4-8"))
    said = cloud.cli("up", file, "--yes")
    assert "asking for" not in said and "mine-w0: up, the head" in said
    assert cloud.cli.json("submit", "psum-check")["state"] == "SUCCEEDED"
    assert "adopted, and still there and billed: mine" in cloud.cli("down", "kept")
    assert list(cloud.fake.there().values()) == ["READY"]
    [machine] = cloud.machines.given["mine"]
    assert not cloud.hosts[machine].processes()
    assert not any("delete" in method.lower() and "mine" in name for method, name in cloud.fake.calls)


def nodes(cloud: Cloud) -> dict[str, str]:
    """The nodes of Ray's that the hosts of `duo` are, as this client has them on record."""
    return {host["name"]: host["node_id"] for host in cloud.cli.record("duo")["hosts"]}


def assert_no_secret(cloud: Cloud) -> None:
    """What lets the client in at the cloud is in no command line, and in no file of ours, there or on a machine."""
    secrets = [cloud.secret, *cloud.fake.secrets]
    assert len(secrets) > 1 and all(len(secret) > 40 for secret in secrets)
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert any("launcher" in line for line in lines)
    assert not [line for line in lines if any(secret in line for secret in secrets)]
    machines = [cloud.hosts[name] for name in cloud.machines.given["pod-0"]]
    for host in (cloud.hosts.laptop, *machines):
        files = [path for path in host.path("/root/.spmd-launch").rglob("*") if path.is_file()]
        assert len(files) > 5, host.name
        for file in files:
            text = file.read_bytes()
            assert not any(secret.encode() in text for secret in secrets), file


def step_of(cloud: Cloud, job: str) -> int:
    """That all ranks have done, as the cluster says; 0 as long as it does not run."""
    process = cloud.cli.start("status", job, "--json")
    out, _ = process.communicate(timeout=60)
    ranks = json.loads(out)["ranks"] if process.returncode == 0 else []
    return min((rank["step"] for rank in ranks), default=0)


def has_checkpoint(cloud: Cloud, job: str) -> bool:
    """Whether the copy of the job's record in the storage tells of one."""
    assert cloud.hosts.bucket is not None
    copies = cloud.hosts.bucket.glob(f"{job}.*/record/events.jsonl")
    return any('"type":"checkpoint"' in copy.read_text() for copy in copies)
