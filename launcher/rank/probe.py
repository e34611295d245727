"""Counts this host's devices and prints what it found as JSON: `python -m launcher.rank.probe`.

Short-lived, because a backend holds its chips: the standby must not touch them.
"""

import json
import os

import jax


def main() -> None:
    try:
        devices = jax.local_devices()
    except AssertionError as error:  # all that JAX says where CUDA was asked for and its plugin is not installed
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise RuntimeError(f"JAX has no backend for {asked!r}; is its plugin installed (jax[cuda12])?") from error
    kinds = sorted({device.device_kind for device in devices})
    print(json.dumps({"num_devices": len(devices), "device_kind": ", ".join(kinds)}))


if __name__ == "__main__":
    main()
