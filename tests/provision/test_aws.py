"""`ray-launcher` on AWS: moto's EC2, with test hosts as its machines, in a network without a way out."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hosts.commands import wait_until
from tests.hosts.machines import missing
from tests.provision.aws_cloud import ACCESS_KEY, MACHINES, PROFILE, REGION, SECRET_KEY, AwsCloud, aws_cloud
from tests.provision.conftest import LaptopCli
from tests.provision.link_local import PROFILE_KEY
from tests.provision.watched import watched

pytestmark = [pytest.mark.provision, pytest.mark.timeout(600)]

FILE_SECRET = "secret-of-the-launchers-file"
SETUP_SECRET = "secret-of-a-setup-command"
SECRETS = (SECRET_KEY, ACCESS_KEY, FILE_SECRET, SETUP_SECRET)
UP = ("up", "gpus.yaml", "--yes")


@pytest.fixture(scope="module")
def cloud() -> Iterator[AwsCloud]:
    if why := missing():
        pytest.skip(why)
    with aws_cloud() as cloud:
        yield cloud


@pytest.fixture
def cli(cloud: AwsCloud) -> Iterator[LaptopCli]:
    """With a cluster file and the launcher's; before and after, the cloud is empty."""
    cloud.order()
    cli = LaptopCli(cloud.hosts, cloud.variables)
    home = cloud.hosts.laptop.path("/root")
    (home / "aws.yaml").write_text(yaml.safe_dump(launcher_file(str(cloud.hosts.identity))))
    (home / "gpus.yaml").write_text(
        "name: gpus\nprovider: {type: ray-launcher, file: aws.yaml}\naccelerator: A100:8\nemulate: true\n"
        f"num_hosts: 2\npython: {sys.executable}\n"
    )
    assert not cloud.left()
    yield cli
    cloud.order()
    if (cli.home / "clusters/gpus").exists():
        cli("down", "gpus", "--force")
    assert not cloud.left()


def launcher_file(key: str) -> dict[str, Any]:
    """As people have them: a head of another type, Ray's own commands, credentials in it."""
    node_config = {"InstanceType": "p4d.24xlarge", "ImageId": "ami-12345678", "KeyName": "test"}
    return {
        "cluster_name": "team",
        "max_workers": 2,
        "provider": {
            "type": "aws",
            "region": REGION,
            "use_internal_ips": True,
            "aws_credentials": {"aws_access_key_id": "AKIAOFTHEFILE", "aws_secret_access_key": FILE_SECRET},
        },
        "auth": {"ssh_user": "root", "ssh_private_key": key},
        "available_node_types": {
            "head": {"node_config": node_config | {"InstanceType": "m5.large"}},
            "gpu": {"min_workers": 0, "max_workers": 2, "node_config": node_config},
        },
        "head_node_type": "head",
        "setup_commands": [f"true {SETUP_SECRET}", 'echo "$BASH" > ~/set-up'],
        "head_start_ray_commands": ["ray start --head"],
    }


def begin_and_kill(
    cloud: AwsCloud, cli: LaptopCli, words: Sequence[str], request: int | str, *, after: bool = False, until: str = ""
) -> str:
    """Kills a command while the cloud has its n-th request, or the first for an action, and returns what that asks for.

    Returns '' if there is none before the command says `until`, when it is killed, too, or has come to its end.
    """
    cloud.order(pause=[request, after])
    process = cli.start(*words)
    assert process.stderr is not None and process.stdout is not None
    said: list[str] = []
    reader = threading.Thread(target=said.extend, args=[iter(process.stderr.readline, "")])
    reader.start()

    def is_there() -> bool:
        ended = process.poll() is not None or (until != "" and any(until in line for line in said))
        return ended or cloud.paused() != ""

    try:
        wait_until(is_there, f"request {request}, {said}", 90)
        return cloud.paused()
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()
        process.stdout.close()
        cloud.order()


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def files_with_secrets(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path.relative_to(folder)) for path in files if secrets_in(path.read_text(errors="replace"))]


def test_a_killed_up_is_gone_on_with_a_job_runs_and_down_leaves_nothing(cloud: AwsCloud, cli: LaptopCli) -> None:
    with watched(cloud.hosts) as command_lines:
        assert begin_and_kill(cloud, cli, UP, "RunInstances", after=True) == "RunInstances"
        there = {each["InstanceId"] for each in cloud.instances()}
        assert there
        out = cli(*UP, timeout_s=400)
        made = cloud.instances("running")
        assert [each["InstanceType"] for each in made] == ["p4d.24xlarge"] * 2
        assert there <= {each["InstanceId"] for each in made} and len(cloud.instances("terminated", "running")) == 2
        assert "is up already" in cli(*UP)
        job = cli.json("submit", "psum-check", "--set", "steps=3", "--name", "a")
        assert job["state"] == "SUCCEEDED"
        more = ("status", "gpus"), ("logs", "a"), ("results", "a"), ("down", "gpus", "--dry-run"), (*UP, "--dry-run")
        out += "".join(cli(*words) for words in more)
    by_key = {tag["Key"]: tag["Value"] for tag in made[0]["Tags"]}
    assert by_key["spmd-launch-cluster"] == "gpus" and by_key["ray-cluster-name"] == "team-gpus"
    assert "IamInstanceProfile" not in made[0]
    heads = [line for line in command_lines if "ray start" in line or "monitor.py" in line]
    assert not heads, "Ray's own start commands, or an autoscaler, have run"
    assert any("cluster.on_launcher create" in line for line in command_lines), "nothing was watched"
    assert not [line for line in command_lines if secrets_in(line)]
    assert not secrets_in(out)
    request = cli.home / "clusters/gpus/launcher.json"
    assert request.stat().st_mode & 0o777 == 0o600
    assert files_with_secrets(cli.home) == ["clusters/gpus/launcher.json"]
    for name in MACHINES:
        host = cloud.hosts[name]
        assert host.path("/root/set-up").read_text().strip() == "/usr/bin/bash"
        assert not files_with_secrets(host.path("/root/.spmd-launch"))
    (cli.home.parent / "aws.yaml").unlink()  # `down` has what it needs on record
    out = cli("down", "gpus")
    assert "all its machines have ended; aws/us-west-2 lists none" in out and not secrets_in(out)
    assert not cloud.left()
    assert not (cli.home / "clusters/gpus").exists()
    assert json.loads((cli.home / "jobs/a/job.json").read_text())["state"] == "SUCCEEDED"


def test_up_killed_at_any_request_is_undone_by_down(cloud: AwsCloud, cli: LaptopCli) -> None:
    steps: list[str] = []
    while True:
        action = begin_and_kill(cloud, cli, UP, len(steps) + 1, until="sshd")
        if (cli.home / "clusters/gpus").exists():  # it had begun more than to look what is there
            cli("down", "gpus")
        assert not cloud.left(), [*steps, action]
        if not action:
            break
        steps.append(action)
    assert {"DescribeInstances", "CreateSecurityGroup", "RunInstances"} <= set(steps), steps


def test_a_down_killed_at_any_request_is_ended_by_the_next(cloud: AwsCloud, cli: LaptopCli) -> None:
    """Of an `up` that was killed while hosts ran the file's own commands; each `down` goes on where one was killed."""
    file = launcher_file(str(cloud.hosts.identity)) | {"initialization_commands": ["touch ~/begun; sleep 600"]}
    (cli.home.parent / "aws.yaml").write_text(yaml.safe_dump(file))
    assert not begin_and_kill(cloud, cli, UP, "none", until="running 3 setup command(s)")
    assert len(cloud.instances("running")) == 2
    steps: list[str] = []
    while action := begin_and_kill(cloud, cli, ("down", "gpus"), len(steps) + 1, after=True):
        steps.append(action)
    assert not cloud.left() and not (cli.home / "clusters/gpus").exists()
    assert {"DescribeInstances", "TerminateInstances", "DescribeVolumes", "DeleteSecurityGroup"} <= set(steps), steps


def test_gpus_that_the_instance_type_has_not_are_refused_before_anything_is_asked_for(
    cloud: AwsCloud, cli: LaptopCli
) -> None:
    file = cli.home.parent / "gpus.yaml"
    file.write_text(file.read_text().replace("A100:8", "H100:8").replace("emulate: true", "emulate: false"))
    for words in (UP, (*UP, "--dry-run")):
        out = " ".join(cli(*words, code=2).split())
        assert "H100:8 is asked for, and node type 'gpu' of /root/aws.yaml is p4d.24xlarge" in out
        assert "this type has A100:8; nothing was asked for" in out
    assert not {"RunInstances", "CreateSecurityGroup"} & set(cloud.requests()) and not cloud.left()
    assert not (cli.home / "clusters/gpus").exists()


def up_with_rights(cloud: AwsCloud, cli: LaptopCli, *lines: str) -> dict[str, str]:
    """A cluster whose head may end its machines, of a file with these lines more: names and instances."""
    home = cli.home.parent
    config = launcher_file(str(cloud.hosts.identity))
    config["available_node_types"]["gpu"]["node_config"]["IamInstanceProfile"] = {"Name": PROFILE}
    (home / "aws.yaml").write_text(yaml.safe_dump(config))
    with (home / "gpus.yaml").open("a") as file:
        file.write("".join(f"{line}\n" for line in (f"storage_path: {cloud.hosts.bucket}", *lines)))
    assert "only `down`" not in cli(*UP, timeout_s=400)
    return {tag["Value"]: each["InstanceId"] for each in cloud.instances("running") for tag in each["Tags"]}


def test_machines_that_nobody_uses_are_ended_by_their_own_head(cloud: AwsCloud, cli: LaptopCli) -> None:
    made = up_with_rights(cloud, cli, "idle_down_after: 20s")
    cli("submit", "psum-check", "--set", "steps=3", "--name", "unseen", "--detach")  # and the laptop is closed
    cli.wait_for(lambda: not cloud.instances(), 180)
    assert cloud.terminations() == [(PROFILE_KEY, [made["gpus-1"]]), (PROFILE_KEY, [made["gpus-0"]])]
    cli.wait_for(lambda: not any(cloud.hosts[name].is_on() for name in MACHINES))

    assert cli.json("status", "gpus")["state"] == "WENT DOWN"
    assert "after 20s without a job" in cli("status", "gpus")
    assert "took itself down at" in cli("down", "gpus", "--dry-run")
    assert "SUCCEEDED" in cli("status", "unseen")
    assert "took itself down at" in cli("down", "gpus")
    assert not (cli.home / "clusters/gpus").exists()


def test_machines_whose_ray_has_died_are_ended_at_the_limit_all_the_same(cloud: AwsCloud, cli: LaptopCli) -> None:
    made = up_with_rights(cloud, cli, "idle_down_after: 40s")
    head = cloud.host_of(made["gpus-0"])
    (holder,) = [process.pid for process in head.processes() if "cluster.holder" in process.argv]
    os.kill(holder, signal.SIGKILL)
    status = cli.json("status", "gpus")
    assert status["state"] == "DEAD" and "its machines may be there and cost money" in status["message"]
    cli.wait_for(lambda: not cloud.instances(), 180)
    assert cloud.terminations() == [(PROFILE_KEY, [made["gpus-1"]]), (PROFILE_KEY, [made["gpus-0"]])]
    cli.wait_for(lambda: not any(cloud.hosts[name].is_on() for name in MACHINES))
    assert "after 40s without a job; its Ray had died on the head" in " ".join(cli("status", "gpus").split())


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        ("InsufficientInstanceCapacity", "no capacity", "has not enough p4d.24xlarge free now"),
        ("VcpuLimitExceeded", "You have requested more vCPU capacity", "quota"),
        ("AuthFailure", "AWS was not able to validate the credentials", "aws sts get-caller-identity"),
    ],
)
def test_a_refusal_says_what_to_do_and_leaves_nothing(
    cloud: AwsCloud, cli: LaptopCli, code: str, message: str, words: str
) -> None:
    cloud.order(refuse={"RunInstances": [code, message]})
    out = cli(*UP, code=1)
    assert code in out and message in out and words in " ".join(out.split())
    assert cloud.requests().count("RunInstances") <= 10, "tries are bounded"
    assert not cloud.left()
    assert not (cli.home / "clusters/gpus").exists()
