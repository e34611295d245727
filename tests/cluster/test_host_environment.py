"""Which requirements a host's environment is made of, and that all locks agree."""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.access import Target
from cluster.host_environment import LOCKS
from cluster.place_code import Code
from cluster.remote_machine import RemoteMachine
from cluster.spec import ClusterSpec
from cluster.ssh import Ssh
from tests.cluster.test_host_facts import look

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class HostThatIsLookedAt:
    """Stands for `Ssh`: a host that answers a look, and keeps what it is then told to make."""

    answer: dict[str, Any]
    target: Target
    order: dict[str, Any] = dataclasses.field(default_factory=dict)
    lock: bytes = b""

    def run(self, command: Sequence[str], data: bytes = b"", timeout_s: float = 60.0) -> bytes:
        if command[1] == "-":
            return json.dumps(self.answer).encode()
        line, _, rest = data.partition(b"\n")
        self.order = json.loads(line)
        self.lock = rest[: self.order["lock_bytes"]]
        return b""


def _ordered(folder: Path, **settings: Any) -> HostThatIsLookedAt:
    """What a host with a uv and no environment is told to make for a cluster file."""
    host = HostThatIsLookedAt(look(folder) | {"uv": "/usr/bin/uv", "python": {}}, Target("h1"))
    value = {"name": "lab", "provider": {"type": "ssh", "hosts": ["h1"]}, "python": "3.12", **settings}
    machine = RemoteMachine(cast(Ssh, host), ClusterSpec.from_json(value))
    machine.look()
    machine.prepare(Code("0" * 64, b""), lambda _: None)
    return host


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"accelerator": "cpu", "devices_per_host": 2}, "cpu"),
        ({"accelerator": "H100:8"}, "gpu"),
        ({"accelerator": "tpu-v4-8"}, "tpu"),
        ({"accelerator": "tpu-v4-8", "emulate": True}, "cpu"),
    ],
)
def test_the_accelerator_chooses_the_lock(tmp_path: Path, settings: dict[str, Any], kind: str) -> None:
    assert _ordered(tmp_path, **settings).lock == LOCKS[kind].read_bytes()


def test_each_accelerator_and_python_has_an_environment_of_its_own(tmp_path: Path) -> None:
    asked = [{"accelerator": "cpu", "devices_per_host": 2}, {"accelerator": "H100:8"}, {"accelerator": "tpu-v4-8"}]
    versions = ("3.11", "3.12")
    orders = [_ordered(tmp_path, **settings, python=version).order for settings in asked for version in versions]
    assert len({order["key"] for order in orders}) == len(orders)
    assert [order["version"] for order in orders] == ["3.11", "3.12"] * 3


def _pins(lock: Path) -> dict[str, set[str]]:
    """Versions of each package, of which there are two where the Pythons differ."""
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(r"(?m)^([A-Za-z0-9._-]+)(?:\[.*\])?==(\S+)", lock.read_text()):
        pins.setdefault(name, set()).add(version)
    return pins


@pytest.mark.parametrize("kind", LOCKS)
def test_a_host_gets_the_versions_that_are_tested_here(kind: str) -> None:
    tested, pins = _pins(ROOT / "requirements.lock"), _pins(LOCKS[kind])
    common = tested.keys() & pins.keys()
    assert common >= _pins(LOCKS["cpu"]).keys() >= {"jax", "jaxlib", "ray", "numpy"}
    assert {name: pins[name] for name in common} == {name: tested[name] for name in common}


@pytest.mark.parametrize(
    ("kind", "plugins"),
    [
        ("gpu", {"jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cudnn-cu12", "nvidia-nccl-cu12", "boto3"}),
        ("tpu", {"libtpu", "google-cloud-tpu"}),
    ],
)
def test_a_lock_has_what_makes_devices_visible_and_nothing_else_more(kind: str, plugins: set[str]) -> None:
    pins, plain = _pins(LOCKS[kind]), _pins(LOCKS["cpu"])
    more = pins.keys() - plain.keys()
    assert more >= plugins
    clients = {"tpu": "google|grpcio|opentelemetry-api$|proto-plus$|pyasn1", "gpu": "boto|jmespath$|s3transfer$"}
    # With its cloud's client a head deletes itself.
    assert all(re.match(f"jax-cuda12-|nvidia-|libtpu$|{clients[kind]}", name) for name in more), more
    for name in more:
        if name.startswith("jax-"):  # a plugin of another version than JAX does not load
            assert pins[name] == pins["jaxlib"]
