"""`ray-launcher` on AWS: moto's EC2, with test hosts as its machines, in a network without a way out."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hosts.commands import NAMESPACES, wait_until
from tests.hosts.machines import missing
from tests.provision.aws_cloud import ACCESS_KEY, MACHINES, REGION, SECRET_KEY, AwsCloud, aws_cloud
from tests.provision.conftest import LaptopCli

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


def begin_up_and_kill(cloud: AwsCloud, cli: LaptopCli, request: int | str, *, after: bool = False) -> str:
    """Kills `up` while the cloud has its n-th request, or the first for an action, and returns what that asks for.

    Returns '' if there is none before machines are there and `up` waits for their sshd, when it is killed, too.
    """
    cloud.order(pause=[request, after])
    process = cli.start(*UP)
    assert process.stderr is not None and process.stdout is not None
    said: list[str] = []
    reader = threading.Thread(target=said.extend, args=[iter(process.stderr.readline, "")])
    reader.start()
    try:
        wait_until(lambda: cloud.paused() or any("sshd" in line for line in said), f"request {request}, {said}", 90)
        return cloud.paused()
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()
        process.stdout.close()
        cloud.order()


@contextmanager
def watched(cloud: AwsCloud) -> Iterator[set[str]]:
    """Every command line that is seen on the machines meanwhile, but for those with which the tests enter them."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            networks = set()
            for machine in cloud.hosts.machines():
                with suppress(OSError):  # off
                    networks.add((NAMESPACES / machine.namespace).stat().st_ino)
            for entry in Path("/proc").iterdir():
                with suppress(OSError):
                    if entry.name.isdigit() and (entry / "ns/net").stat().st_ino in networks:
                        seen.add((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        seen -= {line for line in seen if line.startswith(("nsenter", "env -i"))}


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def files_with_secrets(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path.relative_to(folder)) for path in files if secrets_in(path.read_text(errors="replace"))]


def test_a_killed_up_is_gone_on_with_a_job_runs_and_down_leaves_nothing(cloud: AwsCloud, cli: LaptopCli) -> None:
    with watched(cloud) as command_lines:
        assert begin_up_and_kill(cloud, cli, "RunInstances", after=True) == "RunInstances"
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
        action = begin_up_and_kill(cloud, cli, len(steps) + 1)
        if (cli.home / "clusters/gpus").exists():  # it had begun more than to look what is there
            cli("down", "gpus")
        assert not cloud.left(), [*steps, action]
        if not action:
            break
        steps.append(action)
    assert {"DescribeInstances", "CreateSecurityGroup", "RunInstances"} <= set(steps), steps


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
