"""The variables of a rank: what is ours is ours, whatever the host or the user says."""

from pathlib import Path

import pytest

from launcher.environment import rank_environment


def environment(accelerator: str, cluster_env: dict[str, str]) -> dict[str, str]:
    return rank_environment(
        host_folder=Path("/host"), code=Path("/code"), accelerator=accelerator, devices_per_host=4,
        cluster_env=cluster_env,
    )  # fmt: skip


@pytest.mark.parametrize(("accelerator", "platform"), [("cpu", "cpu"), ("gpu", "cuda"), ("tpu", "tpu")])
def test_jax_takes_the_platform_of_the_accelerator_and_no_other(accelerator: str, platform: str) -> None:
    found = environment(accelerator, {"JAX_PLATFORMS": "rocm", "XLA_FLAGS": "--a"})
    assert found["JAX_PLATFORMS"] == platform
    emulated = " --xla_force_host_platform_device_count=4" if accelerator == "cpu" else ""
    assert found["XLA_FLAGS"] == f"--a{emulated}"


def test_what_a_host_says_of_its_devices_stays_and_an_old_multislice_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    monkeypatch.setenv("TPU_WORKER_ID", "3")
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "2")
    found = environment("tpu", {})
    assert (found["CUDA_VISIBLE_DEVICES"], found["TPU_WORKER_ID"]) == ("1,0", "3")
    assert not [name for name in found if name.startswith("MEGASCALE_")]
