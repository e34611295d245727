"""Gloo listens on the address that it is given, whatever the host's own name resolves to; on real processes."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ranks import run_ranks

PROGRAM = "tests.launcher.gloo_programs:first_psum"
LATER = "tests.launcher.gloo_programs:later_group"
ADDRESS = "127.0.0.5"  # Linux: all of 127/8 is this host
NO_NAME = "no-such-host.invalid"


def run(**kwargs: Any) -> list[Any]:
    return run_ranks(PROGRAM, num_hosts=2, devices_per_host=2, **kwargs)


def test_gloo_listens_on_the_given_address_alone() -> None:
    first, second = run(address=ADDRESS, hostname="")
    assert first["why"] == second["why"] == ""
    assert first["total"] == second["total"] == 0 + 1 + 2 + 3
    assert second["listening"] == [ADDRESS]
    assert ADDRESS in first["listening"]  # beside the coordination service


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process a host name of its own")
def test_a_host_whose_name_does_not_resolve_needs_no_name() -> None:
    first, second = run(address=ADDRESS, hostname=NO_NAME)
    assert (first["total"], second["listening"]) == (6, [ADDRESS])


def test_a_jax_that_is_not_known_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.rank import gloo_address

    def make_of_another_jax(client: object) -> None:
        """make_gloo_tcp_collectives(client: DistributedRuntimeClient) -> CpuCollectives"""

    jaxlib = SimpleNamespace(make_gloo_tcp_collectives=make_of_another_jax)
    monkeypatch.setattr(gloo_address, "xla_bridge", SimpleNamespace(_jax=jaxlib))
    assert "is not the known one" in gloo_address.bind_gloo(ADDRESS)
    assert jaxlib.make_gloo_tcp_collectives is make_of_another_jax
    del jaxlib.make_gloo_tcp_collectives
    assert "has no jax._src.xla_bridge._jax.make_gloo_tcp_collectives" in gloo_address.bind_gloo(ADDRESS)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process a host name of its own")
def test_without_an_address_jax_goes_by_the_name() -> None:
    """Should this fail, JAX has changed, and the hook may no longer be needed."""
    with pytest.raises(AssertionError, match=r"gloo.*rv == 0"):
        run(address="", hostname=NO_NAME)


@pytest.mark.long
def test_a_stranger_can_take_a_peers_place_in_a_group_that_forms_later() -> None:
    """What docs/security.md warns of. Should this fail, gloo has learnt to tell strangers from peers: say so there."""
    assert run_ranks(LATER, num_hosts=2, devices_per_host=2, stranger=False) == [1, 1]
    with pytest.raises(AssertionError, match=r"(?s)exit codes \[None.*the later group begins"):
        run_ranks(LATER, num_hosts=2, devices_per_host=2, stranger=True, timeout_s=120.0)
