"""What a cluster file may say of Cloud TPU slices, and the words in which it is told otherwise."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cluster.accelerators import Accelerator
from cluster.config_file import load
from cluster.errors import ClusterConfigError
from cluster.gcp_spec import GcpTpuProviderSpec, runtime_version
from cluster.prices import Rental
from cluster.spec import ClusterSpec

EXAMPLE = Path(__file__).parents[2] / "examples" / "tpu-v5e-16.yaml"
PROVIDER = GcpTpuProviderSpec(project="my-project", zone="us-east5-b")
FILE = """name: pod
provider: {type: gcp-tpu, project: my-project, zone: us-east5-b}
accelerator: tpu-v4-16
"""


def test_the_example_is_four_hosts_of_one_spot_slice_and_survives_json() -> None:
    spec = load(EXAMPLE)
    assert (spec.num_hosts, spec.devices_per_host, spec.all_slices) == (4, 4, 1)
    assert spec.provider == GcpTpuProviderSpec(project="my-project", zone="us-west4-a", spot=True)
    assert ClusterSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert runtime_version(spec) == "v2-alpha-tpuv5-lite"
    assert spec.storage_outlives_hosts
    assert isinstance(spec.provider, GcpTpuProviderSpec)
    assert spec.provider.rentals(spec) == [Rental(product="gcp/tpu-v5litepod", region="us-west4", count=16, spot=True)]


def test_switches_and_lists_of_the_provider_are_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(FILE.replace("zone: us-east5-b}", "zone: us-east5-b, adopt: [a, b], use_internal_ips: true}"))
    spec = load(file)
    assert spec.provider == dataclasses.replace(PROVIDER, adopt=("a", "b"), use_internal_ips=True)
    assert (spec.num_hosts, spec.all_slices) == (4, 2)
    assert spec.provider.login_user is None


@pytest.mark.parametrize(
    ("lines", "hosts", "all_slices"),
    [("", 2, 1), ("num_slices: 3", 6, 3), ("num_slices: 2\nnum_hosts: 4\nspares: 2", 4, 3), ("num_hosts: 4", 4, 2)],
)
def test_hosts_follow_from_slices(tmp_path: Path, lines: str, hosts: int, all_slices: int) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"{FILE}{lines}\n")
    spec = load(file)
    assert (spec.num_hosts, spec.all_slices) == (hosts, all_slices)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "v4-16\n",
            "v4-16\nnum_slices: 2\nnum_hosts: 2\n",
            "num_slices: 2 of tpu-v4-16 are 4 hosts, and num_ho",
        ),
        ("v4-16\n", "v4-16\nnum_slices: 0\n", "num_slices: must be a whole number from 1 to 32, not 0"),
        ("tpu-v4-16\n", "cpu\nnum_slices: 1\n", "num_slices: is for TPU slices; cpu has none: num_hosts"),
        ("tpu-v4-16", "H100:8\nnum_hosts: 1", "accelerator: provider gcp-tpu has tpu, not 'H100:8'"),
        ("tpu-v4-16", "tpu-v7x-8", "accelerator: the Cloud TPU API makes no tpu-v7x-8; provider ssh takes machines"),
        ("name: pod", "name: 4pod", "name: must begin with a letter, as names of TPU VMs do, not '4pod'"),
        (", zone: us-east5-b", "", "provider.zone: is missing"),
        ("us-east5-b", "us-east5", "provider.zone: must be a zone of Google Cloud, as us-east5-b, not 'us-east5'"),
        ("zone: us-east5-b", "zone: '-'", "provider.zone: must be one, for all slices of the cluster"),
        ("my-project", "My Project", "provider.project: must be the id of a Google Cloud project"),
        ("us-east5-b}", "us-east5-b, spot: maybe}", "provider.spot: must be true or false, not 'maybe'"),
        ("us-east5-b}", "us-east5-b, spot: true, reservation: r}", "provider.spot: a reservation is no spot capacity"),
        ("us-east5-b}", "us-east5-b, os_login: true}", "provider.user: is missing: with os_login"),
        ("us-east5-b}", "us-east5-b, user: -x}", "provider.user: must be a user's name, not '-x'"),
        ("us-east5-b}", "us-east5-b, adopt: [A]}", "provider.adopt: must be names of TPU VMs, not 'A'"),
        ("us-east5-b}", "us-east5-b, adopt: [a, a]}", "provider.adopt: a is there 2 times"),
        ("us-east5-b}", "us-east5-b, adopt: [a], spot: true}", "provider.spot: is for slices that are requested"),
        ("us-east5-b}\n", "us-east5-b, adopt: [a]}\nnum_slices: 2\n", "num_slices: 1 slice(s) are adopted, and"),
        ("us-east5-b}", "us-east5-b, zones: x}", "provider.zones: no such key; did you mean 'zone'?"),
        ("us-east5-b}", "us-east5-b, endpoint: 'http://x'}", "provider.endpoint: must be HOST or HOST:PORT"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in FILE
    file = tmp_path / "c.yaml"
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(ClusterConfigError) as refused:
        load(file)
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{file}:")


@pytest.mark.parametrize("change", [{"project": 5}, {"adopt": "a"}, {"spot": 1}, {"network": ""}, {"endpoint": "a b"}])
def test_values_that_no_file_can_say_are_refused_too(change: dict[str, Any]) -> None:
    with pytest.raises(ClusterConfigError, match=f"^provider.{next(iter(change))}: "):
        dataclasses.replace(PROVIDER, **change)


def test_chips_are_what_is_paid_for() -> None:
    spec = ClusterSpec(name="p", provider=PROVIDER, num_hosts=8, devices_per_host=4, accelerator="tpu-v6e-16", spares=4)
    assert spec.hardware == Accelerator.parse("tpu-v6e-16")
    assert PROVIDER.rentals(spec) == [Rental(product="gcp/tpu-v6e", region="us-east5", count=48, spot=False)]
