"""Containers on hosts: what may be asked for, which engine is taken, and how it is called."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cluster.container import Container
from cluster.errors import ClusterConfigError
from cluster.host_check import look_for_engine, python_command
from cluster.host_container import run_argv
from cluster.host_facts import problems, warnings
from cluster.spec import ClusterSpec
from cluster.ssh import CommandError
from tests.cluster.test_host_facts import facts

HAS_PODMAN = {"engine": "/usr/bin/podman", "error": "", "ends_at_logout": False, "has_image": True}


def spec(**settings: Any) -> ClusterSpec:
    value = {"name": "lab", "provider": {"type": "ssh", "hosts": ["h1"]}, "accelerator": "cpu", "python": "image:jax:1"}
    return ClusterSpec.from_json(value | settings | ({} if "accelerator" in settings else {"devices_per_host": 2}))


@pytest.mark.parametrize(
    "name",
    [
        "jax",
        "jax:0.10",
        "localhost/jax:1",
        "registry.example.org:5000/group/jax-cuda__x:v1.2-rc_3",
        f"nvcr.io/nvidia/jax@sha256:{'0a' * 32}",
    ],
)
def test_an_image_is_named_as_registries_name_it(name: str) -> None:
    assert spec(python=f"image:{name}").image == name
    assert spec(python="3.12").image is None and spec(python="/opt/jax/bin/python").image is None


@pytest.mark.parametrize(
    "name",
    ["", "-v/:/host", "--privileged", "a b", "jax:", "jax@sha256:12", "Jax", "../jax", "jax:1\n", "docker://jax"],
)
def test_what_is_no_image_is_refused(name: str) -> None:
    with pytest.raises(ClusterConfigError, match=r"python: must be .*image:registry\.example\.org/jax:1, not "):
        spec(python=f"image:{name}")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"accelerator": "tpu-v4-8"}, "an image is for cpu and GPUs"),
        ({"storage_path": "/nfs/a,readonly"}, "storage_path: has , or"),
        ({"provider": {"type": "local"}, "num_hosts": 1}, "is for hosts over ssh"),
    ],
)
def test_what_no_container_can_have_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ClusterConfigError, match=words):
        spec(**settings)
    assert spec(accelerator="tpu-v4-8", emulate=True).image == "jax:1"


def _program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


WORKS = 'case "$1" in info) echo false;; image) [ "$5" = here ];; esac'
NO_DAEMON = "echo first >&2; echo Cannot connect to the Docker daemon >&2; exit 1"


@pytest.mark.parametrize(
    ("programs", "engine", "error"),
    [
        ({"podman": WORKS, "docker": WORKS}, "podman", ""),
        ({"docker": WORKS}, "docker", ""),
        ({"podman": "echo no subuid >&2; exit 125", "docker": WORKS}, "docker", ""),
        ({"podman": "echo no subuid >&2; exit 125", "docker": NO_DAEMON}, "",
         "podman: no subuid; docker: Cannot connect to the Docker daemon"),
        ({"docker": "echo '[name=seccomp name=rootless]'"}, "", "docker: it is rootless and gives processes to another "
         "user; podman does not"),
        ({}, "", "neither podman nor docker is installed"),
    ],
)  # fmt: skip
def test_the_engine_that_this_user_may_use_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: dict[str, str], engine: str, error: str
) -> None:
    for name, script in programs.items():
        _program(tmp_path, name, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = look_for_engine("here")
    assert (found["engine"], found["error"]) == (str(tmp_path / engine) if engine else "", error)
    assert found["has_image"] is bool(engine)
    assert look_for_engine("elsewhere")["has_image"] is False


def test_the_python_of_an_image_is_looked_at_only_where_the_image_is() -> None:
    assert python_command("/opt/bin/python", None, "") == ["/opt/bin/python"]
    assert python_command("3.12", None, "") == []
    assert python_command("image:jax", HAS_PODMAN | {"has_image": False}, "jax") == []
    command = python_command("image:jax", HAS_PODMAN, "jax")
    assert command[:3] == ["/usr/bin/podman", "run", "--rm"] and command[-3:] == ["--entrypoint", "python3", "jax"]


def test_a_host_without_an_engine_is_refused_and_one_that_forgets_is_warned_of() -> None:
    assert problems([facts(container=HAS_PODMAN)]) == [] == warnings(facts(container=HAS_PODMAN))
    broken = HAS_PODMAN | {"engine": "", "error": "podman: no subuid"}
    assert problems([facts(container=broken)]) == ["h1: cannot run a container for this user: podman: no subuid"]
    (warning,) = warnings(facts(container=HAS_PODMAN | {"ends_at_logout": True}))
    assert warning.startswith("h1: ") and "`loginctl enable-linger`" in warning
    with pytest.raises(CommandError, match="host h1: cannot run a container: podman: no subuid"):
        Container.of(spec(), facts(container=broken))


def _argv(uid: int, **changes: Any) -> list[str]:
    container = dataclasses.replace(Container.of(spec(), facts(container=HAS_PODMAN)), **changes)
    folders = ["/home/alice/.spmd-launch/hosts/h1", "/tmp"]
    return run_argv(dataclasses.asdict(container), uid, 7, [7, 44], "alice", folders)


@pytest.mark.parametrize(
    ("engine", "uid", "gpu", "there", "not_there"),
    [
        ("/usr/bin/podman", 0, False, ["--ulimit host"], ["--userns", "--device", "--gpus"]),
        ("/usr/bin/podman", 5, True, ["--userns keep-id", "--group-add keep-groups", "--device nvidia.com/gpu=all"],
         ["--gpus"]),
        ("/usr/bin/docker", 5, True, ["--gpus all", "--group-add 7 --group-add 44"],
         ["--userns", "--device", "--ulimit"]),
    ],
)  # fmt: skip
def test_a_container_has_the_hosts_processes_network_and_folders_and_the_users_name(
    engine: str, uid: int, gpu: bool, there: list[str], not_there: list[str]
) -> None:
    argv = _argv(uid, engine=engine, gpu=gpu)
    text = " ".join(argv)
    for words in [
        *there,
        f"--user {uid}:7",
        "--network host --pid host --ipc host",
        "type=bind,source=/home/alice/.spmd-launch/hosts/h1,target=/home/alice/.spmd-launch/hosts/h1",
        "type=bind,source=/tmp,target=/tmp",
        "--env USER=alice",
    ]:
        assert words in text
    assert not [word for word in not_there if word in argv]
    assert argv[:4] == [engine, "run", "--rm", "--detach"] and argv[-1] == "jax:1"


def test_a_container_is_one_of_a_cluster_host_and_image() -> None:
    host = facts(container=HAS_PODMAN)
    one = Container.of(spec(), host)
    assert one == Container.of(spec(), host)
    others = [
        Container.of(spec(name="lab2"), host),
        Container.of(spec(python="image:jax:2"), host),
        Container.of(spec(), facts("h2", container=HAS_PODMAN)),
    ]
    assert len({one.name, *(other.name for other in others)}) == 4 and one.name.startswith("spmd-launch-lab-")


def test_a_container_shares_a_storage_that_is_a_folder() -> None:
    paths = {"/nfs/spmd": "/nfs/spmd", "~/spmd": "~/spmd", "gs://bucket/x": "", "none": "", None: ""}
    host = facts(container=HAS_PODMAN)
    assert {path: Container.of(spec(storage_path=path), host).storage for path in paths} == paths


def test_a_command_says_all_that_the_host_must_know() -> None:
    container = Container.of(spec(accelerator="H100:8"), facts(container=HAS_PODMAN))
    *_, verb, order, dash, code = container.command(["-c", "print()"])
    assert (verb, dash, code) == ("enter", "-c", "print()")
    assert json.loads(order) == dataclasses.asdict(container) and container.gpu
