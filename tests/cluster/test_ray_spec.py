"""`provider: {type: ray, address: HOST:PORT}`: how many hosts there will be is known when its nodes are seen."""

import dataclasses
from pathlib import Path

import pytest

from cluster.config_file import load
from cluster.errors import ClusterConfigError
from cluster.ray_spec import EVERY_NODE, RayProviderSpec
from cluster.spec import ClusterSpec, LocalProviderSpec
from tests.conftest import ROOT

EXAMPLE = ROOT / "examples" / "existing-ray.yaml"


def test_the_example_takes_every_node() -> None:
    spec = load(EXAMPLE)
    assert spec.provider == RayProviderSpec(address="127.0.0.1:6379")
    assert (spec.name, spec.num_hosts) == ("shared", EVERY_NODE)
    assert ClusterSpec.from_json(spec.to_json()) == spec


def test_a_cluster_of_any_number_of_hosts_is_what_every_node_asks_for() -> None:
    spec = load(EXAMPLE)
    three = dataclasses.replace(spec, num_hosts=3)
    assert spec.is_met_by(three) and three.is_met_by(three)
    assert not dataclasses.replace(spec, num_hosts=2).is_met_by(three)
    assert not dataclasses.replace(spec, devices_per_host=1).is_met_by(three)


@pytest.mark.parametrize(
    "address", ["", "6379", "head", "head:0", "head:70000", "ray://head:10001", "auto", "a b:6379"]
)
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(ClusterConfigError, match=r"provider.address: must be HOST:PORT"):
        RayProviderSpec(address=address)


@pytest.mark.parametrize(
    "address", ["head:6379", "10.0.0.1:6379", "[::1]:6379", "raycluster-head-svc.default.svc:6379"]
)
def test_good_addresses(address: str) -> None:
    assert RayProviderSpec(address=address).address == address


def test_every_node_is_for_a_ray_that_is_not_ours(tmp_path: Path) -> None:
    with pytest.raises(ClusterConfigError, match="num_hosts: must be a whole number from 1"):
        ClusterSpec(name="a", provider=LocalProviderSpec(), num_hosts=EVERY_NODE, devices_per_host=1)
    file = tmp_path / "c.yaml"
    file.write_text(EXAMPLE.read_text() + 'python: "3.12"\n')
    with pytest.raises(ClusterConfigError, match="python: is for hosts over ssh; provider ray has its own Python"):
        load(file)
