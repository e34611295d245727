"""Devices are counted on the platform that was asked for, or not at all."""

import asyncio
import glob
import os
from pathlib import Path

import pytest

from launcher.device_count import count_devices


def test_emulated_devices_are_counted(tmp_path: Path) -> None:
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
    assert asyncio.run(count_devices(os.environ | flags, tmp_path)) == {"num_devices": 3, "device_kind": "cpu"}


@pytest.mark.parametrize(
    ("platform", "why"),
    [
        ("cuda", "JAX has no backend for 'cuda'; is its plugin installed (jax[cuda12])?"),
        ("tpu", "Unable to initialize backend 'tpu'"),
    ],
)
def test_a_host_without_the_accelerator_does_not_fall_back_to_cpu(tmp_path: Path, platform: str, why: str) -> None:
    if glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/accel*"):
        pytest.skip("this machine has an accelerator")
    found = asyncio.run(count_devices(os.environ | {"JAX_PLATFORMS": platform}, tmp_path))
    assert found["num_devices"] == -1
    assert found["device_kind"].startswith(f"the device probe failed: RuntimeError: {why}")
