"""Counts a host's devices in a process that ends at once: a backend holds its chips as long as its process lives."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROBE_TIMEOUT_S = 90.0


async def count_devices(environment: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """What JAX finds here: `num_devices` and `device_kind`; where it fails, -1 and why.

    Args:
        environment: all variables of a rank.
        folder: to work in.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "launcher.rank.probe",
        env=environment,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), PROBE_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return {"num_devices": -1, "device_kind": f"the device probe did not answer within {PROBE_TIMEOUT_S:g} s"}
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no message"]
        return {"num_devices": -1, "device_kind": f"the device probe failed: {lines[-1]}"}
    found: dict[str, Any] = json.loads(output.decode().strip().splitlines()[-1])
    return found
