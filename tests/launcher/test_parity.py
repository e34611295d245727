"""What differs between hosts, which of them is the odd one, and whether it matters."""

import dataclasses
from typing import Any

import pytest

from cluster.accelerators import Accelerator
from launcher.attempt import HostFacts
from launcher.parity import MAX_CLOCK_SKEW_S, Difference, compare

HOSTS = ("h0", "h1", "h2")


def _facts(**odd: dict[str, Any]) -> list[HostFacts]:
    """Three equal hosts, but for `h1={field: value}`."""
    same = HostFacts(
        host="",
        versions={"python": "3.11.7", "jax": "0.10.2"},
        code_digest="c" * 64,
        flags={"JAX_PLATFORMS": "cpu"},
        num_devices=2,
        device_kind="cpu",
        hostname="box",
        resolves_to="127.0.0.1",
        clock=1_000_000.0,
    )
    return [dataclasses.replace(same, host=host, **odd.get(host, {})) for host in HOSTS]


def test_equal_hosts_do_not_differ() -> None:
    assert compare(_facts(), devices_per_host=2) == []
    assert compare(_facts()[:1], devices_per_host=2) == []


@pytest.mark.parametrize(
    ("odd", "what", "found", "expected"),
    [
        ({"versions": {"python": "3.11.7", "jax": "0.12.0"}}, "jax", "0.12.0", "0.10.2"),
        ({"code_digest": "d" * 64}, "code", "d" * 12, "c" * 12),
        ({"flags": {"JAX_PLATFORMS": "tpu"}}, "JAX_PLATFORMS", "tpu", "cpu"),
        ({"flags": {}}, "JAX_PLATFORMS", "unset", "cpu"),
        ({"flags": {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--x"}}, "XLA_FLAGS", "--x", "unset"),
        ({"device_kind": "TPU v5e"}, "device kind", "TPU v5e", "cpu"),
        ({"num_devices": 1}, "devices", "1", "2"),
        ({"num_devices": -1, "device_kind": "the probe failed: x"}, "devices", "the probe failed: x", "2"),
    ],
)
@pytest.mark.parametrize("host", HOSTS)
def test_the_odd_host_is_named_and_refused(
    odd: dict[str, Any], what: str, found: str, expected: str, host: str
) -> None:
    difference = Difference(what, (host,), found, expected, matters=True)
    assert compare(_facts(**{host: odd}), devices_per_host=2) == [difference]
    assert str(difference) == f"{what}: {host} has {found}, expected {expected}"


def test_another_processor_is_said_and_not_refused_where_the_cpu_computes() -> None:
    facts = [dataclasses.replace(fact, processor="A") for fact in _facts()]
    facts[1] = dataclasses.replace(facts[1], processor="B")
    difference = Difference("processor", ("h1",), "B", "A (only last bits of results)", matters=False)
    assert compare(facts, devices_per_host=2) == [difference]
    assert compare([facts[0], dataclasses.replace(facts[1], processor="")], devices_per_host=2) == [], "not known"
    gpus = [dataclasses.replace(fact, device_kind="NVIDIA A100") for fact in facts]
    gpu = Accelerator(name="gpu", kind="gpu", device_kinds=("A100",), devices_per_host=None)
    assert compare(gpus, devices_per_host=2, accelerator=gpu) == []


def test_hosts_that_are_equally_odd_are_one_difference() -> None:
    odd = {"versions": {"python": "3.11.7", "jax": "0.12.0"}}
    facts = [*_facts(h1=odd, h2=odd), *(dataclasses.replace(fact, host=f"{fact.host}b") for fact in _facts())]
    (difference,) = compare(facts, devices_per_host=2)
    assert difference.hosts == ("h1", "h2")


def test_with_a_tie_the_first_host_is_right() -> None:
    facts = _facts(h1={"code_digest": "d" * 64})[:2]
    (difference,) = compare(facts, devices_per_host=2)
    assert difference.hosts == ("h1",)


def test_the_wrong_number_of_devices_everywhere_is_said_of_every_host() -> None:
    differences = compare(_facts(), devices_per_host=4)
    assert [(d.hosts, d.found, d.expected) for d in differences] == [((host,), "2", "4") for host in HOSTS]


@pytest.mark.parametrize("skew_s", [MAX_CLOCK_SKEW_S + 1, -3600.0])
def test_a_wrong_clock_is_said_but_not_refused(skew_s: float) -> None:
    (difference,) = compare(_facts(h2={"clock": 1_000_000.0 + skew_s}), devices_per_host=2)
    assert (difference.what, difference.hosts, difference.matters) == ("clock", ("h2",), False)
    assert compare(_facts(h2={"clock": 1_000_000.0 + MAX_CLOCK_SKEW_S - 1}), devices_per_host=2) == []


def test_what_matters_comes_first() -> None:
    facts = _facts(h0={"resolves_to": "-"}, h1={"num_devices": 1}, h2={"clock": 0.0})
    assert [difference.matters for difference in compare(facts, devices_per_host=2)] == [True, False, False]


@pytest.mark.parametrize(
    ("accelerator", "device_kind"),
    [("H100:8", "NVIDIA H100 80GB HBM3"), ("tpu-v4-16", "TPU v4"), ("tpu-v5e-16", "TPU v5 lite")],
)
def test_the_devices_that_were_asked_for_are_right(accelerator: str, device_kind: str) -> None:
    asked = Accelerator.parse(accelerator)
    assert asked.devices_per_host is not None
    facts = [dataclasses.replace(f, device_kind=device_kind, num_devices=asked.devices_per_host) for f in _facts()]
    assert compare(facts, asked.devices_per_host, asked) == []


def test_other_devices_than_asked_for_are_refused_though_all_hosts_have_them() -> None:
    facts = [dataclasses.replace(fact, device_kind="NVIDIA A100-SXM4-40GB") for fact in _facts()]
    differences = compare(facts, 2, Accelerator.parse("H100:2"))
    assert [str(difference) for difference in differences] == [
        f"device kind: {host} has NVIDIA A100-SXM4-40GB, expected H100, as H100:2 has" for host in HOSTS
    ]
    assert all(difference.matters for difference in differences)


def test_cpu_devices_do_not_pass_for_an_accelerator() -> None:
    (difference,) = compare(_facts()[:1], 2, Accelerator.parse("L4:2"))
    assert (difference.found, difference.expected, difference.matters) == ("cpu", "L4, as L4:2 has", True)


def test_two_sorts_of_one_model_differ() -> None:
    kinds = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB")
    facts = [dataclasses.replace(fact, device_kind=kind) for fact, kind in zip(_facts(), kinds, strict=True)]
    (difference,) = compare(facts, 2, Accelerator.parse("A100:2"))
    assert (difference.hosts, difference.found) == (("h2",), kinds[2])
