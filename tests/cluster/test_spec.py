"""A cluster spec made in Python or read from JSON gets the same checks as one from a file."""

import dataclasses
import json
import pickle
from typing import Any

import pytest

from cluster.errors import ClusterConfigError, nearest
from cluster.spec import PROVIDERS, ClusterSpec, LocalProviderSpec

SPEC = ClusterSpec(
    name="laptop",
    provider=LocalProviderSpec(),
    num_hosts=2,
    devices_per_host=4,
    env={"A": "b"},
    storage_path="gs://bucket/folder",
)


def test_json_round_trip() -> None:
    value = json.loads(json.dumps(SPEC.to_json()))
    assert value["provider"] == {"type": "local"}
    assert ClusterSpec.from_json(value) == SPEC
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC


def test_a_spec_is_frozen_and_its_variants_are_checked() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPEC.num_hosts = 3  # type: ignore[misc]
    assert dataclasses.replace(SPEC, num_hosts=3).num_hosts == 3
    with pytest.raises(ClusterConfigError, match="num_hosts: must be a whole number from 1 to 64, not 0"):
        dataclasses.replace(SPEC, num_hosts=0)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"name": None}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": 5}, "name"),
        ({"num_hosts": True}, "num_hosts"),
        ({"num_hosts": 2.0}, "num_hosts"),
        ({"num_hosts": "2"}, "num_hosts"),
        ({"devices_per_host": 65}, "devices_per_host"),
        ({"accelerator": None}, "accelerator"),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": {"A": "b\0"}}, "env.A"),
        ({"env": {1: "b"}}, "env.1"),
        ({"env": {"A=B": "c"}}, "env.A=B"),
        ({"env": [("A", "b")]}, "env"),
        ({"storage_path": 5}, "storage_path"),
        ({"storage_path": ""}, "storage_path"),
        ({"provider": {"type": "local"}}, "provider"),
    ],
)
def test_wrong_values_are_refused_by_key(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ClusterConfigError) as refused:
        dataclasses.replace(SPEC, **change)
    assert refused.value.key == key
    assert str(refused.value).startswith(f"{key}: ") and refused.value.where == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "colour: no such key"),
        ({"provider": "local"}, "provider: must be {type: TYPE}"),
        ({"provider": {"type": ["local"]}}, "provider.type: must be one of local"),
        ({"provider": {"type": "local", "region": "x"}}, "provider.region: no such key"),
    ],
)
def test_json_of_another_version_is_refused_in_words(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterConfigError) as refused:
        ClusterSpec.from_json(SPEC.to_json() | change)
    assert str(refused.value).startswith(message)


def test_every_provider_is_a_frozen_dataclass_of_its_own_type() -> None:
    for kind, provider in PROVIDERS.items():
        assert provider.type == kind and provider.accelerators
        assert provider.__dataclass_params__.frozen


def test_nearest() -> None:
    assert nearest("NAME", ["name", "env"]) == "; did you mean 'name'?"
    assert nearest("qqqq", ["name", "env"]) == ""
    assert nearest("hosts", ["name", "num_hosts"], {"hosts": "num_hosts"}) == "; did you mean 'num_hosts'?"
    assert nearest("hosts", ["name"], {"hosts": "num_hosts"}) == ""
