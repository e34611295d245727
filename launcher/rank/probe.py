"""Counts this host's devices and prints what it found as JSON: `python -m launcher.rank.probe`.

Short-lived, because a backend holds its chips: the standby must not touch them.
"""

import json

import jax


def main() -> None:
    devices = jax.local_devices()
    kinds = sorted({device.device_kind for device in devices})
    print(json.dumps({"num_devices": len(devices), "device_kind": ", ".join(kinds)}))


if __name__ == "__main__":
    main()
