"""Accelerators over ssh: emulated slices on machines of their own, and machines that have not what was asked for."""

from collections.abc import Iterator

import pytest

from tests.hosts.conftest import Lab

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]

CPU = "accelerator: cpu\ndevices_per_host: 2\nmin_hosts: 2\n"


@pytest.fixture
def asking(empty_lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab whose file asks for what the test's parameter says; nothing is up."""
    before = empty_lab.file.read_text()
    assert CPU in before
    empty_lab.file.write_text(before.replace(CPU, request.param))
    yield empty_lab
    empty_lab.file.write_text(before)
    assert not empty_lab.processes()


@pytest.mark.parametrize("asking", ["accelerator: tpu-v4-8\nemulate: true\n"], indirect=True)
def test_a_job_over_emulated_slices_is_told_where_the_first_host_is(asking: Lab) -> None:
    asking.cli("up", str(asking.file))
    try:
        asking.cli("submit", "psum-check", "--name", "three")
        assert asking.cli.json("results", "three")["metrics"]["psum"] == sum(range(12))
        text = asking.cli("logs", "three")
        first = asking.hosts.hosts["h1"].address
        assert text.count(f"MEGASCALE_COORDINATOR_ADDRESS={first}\n") == 3
        assert text.count("MEGASCALE_NUM_SLICES=3") == 3
        for number, host in enumerate(asking.hosts.hosts.values()):
            assert text.count(f"MEGASCALE_SLICE_ID={number}\n") == 1
            assert text.count(f"TPU_WORKER_HOSTNAMES={host.address}\n") == 1
    finally:
        asking.cli("down", asking.name, "--force")


@pytest.mark.parametrize(
    ("asking", "words"),
    [
        ("accelerator: H100:1\n", "JAX has no backend for 'cuda'; is its plugin installed (jax[cuda12])?, expected 1"),
        ("accelerator: tpu-v4-8\n", "this machine is no host of a TPU slice"),
    ],
    indirect=["asking"],
)
def test_machines_without_the_accelerator_are_refused(asking: Lab, words: str) -> None:
    out = " ".join(asking.cli("up", str(asking.file), code=1).split())
    assert words in out
    assert asking.hosts.hosts["h1"].address in out
    assert asking.cli("down", asking.name, code=2)
