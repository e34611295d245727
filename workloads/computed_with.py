"""With what a state is computed: where any of it changes, the last bits may be others from there on."""

import functools
from collections.abc import Mapping

import jax

from workloads.processor import processor_name
from workloads.versions import versions

COMPUTES_NOTHING = ("python", "ray", "orbax-checkpoint")  # of the versions that all hosts must share


@functools.cache
def computed_with() -> Mapping[str, str]:
    """Versions of what computes here, and the processor or accelerator, by name; what is not known is left out.

    Of one process: an attempt in which others have other versions or accelerators is refused, and other processors are
    told.
    """
    found = {name: version for name, version in versions().items() if name not in COMPUTES_NOTHING and version != "-"}
    on_cpu = jax.default_backend() == "cpu"
    processor = processor_name() if on_cpu else jax.local_devices()[0].device_kind
    return found | ({"processor": processor} if processor else {})


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What was another then: `jax 0.10.2 (now 0.12.0)`; of what is known of both."""
    return [
        f"{name} {before[name]} (now {now[name]})" for name in before if now.get(name, before[name]) != before[name]
    ]
