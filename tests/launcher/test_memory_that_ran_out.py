"""What is told of an error that says that memory ran out, the host's or a device's."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import pytest

from launcher.rank.error_details import error_details
from launcher.rank.memory import fullest_device, memory_that_ran_out


@dataclasses.dataclass
class Device:
    """As JAX's, with this to say of its memory; None: it refuses, as some do."""

    stats: Mapping[str, int] | None
    platform: str = "gpu"
    device_kind: str = "H100"

    def memory_stats(self) -> Mapping[str, int] | None:
        if self.stats is None:
            raise RuntimeError("UNIMPLEMENTED: no stats")
        return self.stats


def test_jax_out_of_memory_is_told_with_the_hosts_where_that_is_the_devices() -> None:
    with pytest.raises(RuntimeError) as raised:
        jnp.zeros(10**14).block_until_ready()
    details = error_details(raised.value, None, is_ours=False, peak_bytes=7)
    assert details["type"] == "JaxRuntimeError"
    assert details["memory"]["peak_bytes"] == 7 and details["memory"]["host_bytes"] > 2**28


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm"), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Attempting to allocate 8.00G.\nThat was not possible."), True),
        (RuntimeError("INTERNAL: replica 0: RESOURCE_EXHAUSTED: Out of memory while trying to allocate"), True),
        (MemoryError(), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)"), False),
        (RuntimeError("out of memory, says a script"), False),
        (KeyError("RESOURCE_EXHAUSTED: memory"), False),
    ],
)
def test_which_errors_say_that_memory_ran_out(error: BaseException, ran_out: bool) -> None:
    assert (memory_that_ran_out(error, 0) is not None) == ran_out


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        ([], None),
        ([Device({"peak_bytes_in_use": 5, "bytes_limit": 9}, platform="cpu")], None),
        ([Device(None)], {"device": "H100", "peak_bytes": 0, "device_bytes": 0}),
        (
            [Device({"peak_bytes_in_use": peak, "bytes_limit": 9}) for peak in (3, 8, 5)],
            {"device": "H100", "peak_bytes": 8, "device_bytes": 9},
        ),
    ],
)
def test_the_fullest_device_is_told(devices: list[Device], told: Mapping[str, object] | None) -> None:
    assert fullest_device(devices) == told
