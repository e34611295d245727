"""Times collectives over one group of hosts, all its ranks together."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from workloads.bandwidth_check.plan import (
    ALL_GATHER,
    ALL_TO_ALL,
    BROADCAST,
    BUS_FACTORS,
    PSUM,
    Measurement,
    predicted_s,
    shard_elements,
    size_of,
)
from workloads.bandwidth_check.values import first_wrong, put_in
from workloads.exchange import Exchange

AXIS = "devices"
MAX_REPEATS = 30

# Each on a device's own part, (elements,). A broadcast is what JAX's is, a sum to which one device alone contributes.
BODIES: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    PSUM: lambda own: jax.lax.psum(own, AXIS),
    ALL_GATHER: lambda own: jax.lax.all_gather(own, AXIS, tiled=True),
    ALL_TO_ALL: lambda own: jax.lax.all_to_all(own, AXIS, 0, 0, tiled=True),
    BROADCAST: lambda own: jax.lax.psum(jnp.where(jax.lax.axis_index(AXIS) == 0, own, 0), AXIS),
}


class Group:
    """The ranks whose devices take part; each of them calls the same methods in the same order.

    Args:
        ranks: this one among them.
        exchange: messages between them, and nobody else.
        hosts: names of all ranks.
    """

    def __init__(self, ranks: Sequence[int], exchange: Exchange, hosts: Sequence[str]):
        devices = [device for device in jax.devices() if device.process_index in ranks]
        devices.sort(key=lambda device: (device.process_index, device.id))
        self.mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
        self._hosts = [hosts[device.process_index] for device in devices]
        self._exchange = exchange

    def measure_all(self, sizes: Sequence[int], budget_s: float) -> tuple[list[Measurement], list[tuple[str, int]]]:
        """Times every collective at every size; psum comes first, because links are judged by it.

        What would take too long is left out, but for the first of all.

        Args:
            sizes: in bytes, growing.
            budget_s: seconds for all of it, about.

        Returns:
            What was measured, and collective and size of what was left out.

        Raises:
            RuntimeError: a value was wrong; on the ranks that have it.
        """
        began_s = time.perf_counter()
        found: list[Measurement] = []
        left_out: list[tuple[str, int]] = []
        wanted = [(collective, place, size) for collective in BUS_FACTORS for place, size in enumerate(sizes)]
        for number, (collective, place, size) in enumerate(wanted):
            (rest_s,) = self.agree([budget_s - (time.perf_counter() - began_s)], min)
            smaller = [done for done in found if done.collective == collective]
            too_long = rest_s <= 2 * predicted_s(smaller, size)  # once to check, and once to time
            if found and (too_long or len(smaller) < place):
                left_out.append((collective, size))
            else:
                found.append(self.measure(collective, size, rest_s / (len(wanted) - number)))
        return found, left_out

    def measure(self, collective: str, num_bytes: int, budget_s: float) -> Measurement:
        """Times one collective: one launch that is not counted, but checked, then at least one and as many as fit.

        One launch is in flight at a time: XLA:CPU stops for ever where dozens wait.
        """
        began_s = time.perf_counter()
        count = self.mesh.size
        elements = shard_elements(collective, num_bytes, count)
        own = self._put_in(elements)
        # The replicated outputs of three of them are given as one part a device, each with the whole.
        program = jax.jit(
            jax.shard_map(BODIES[collective], mesh=self.mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False)
        )
        self._check(collective, elements, jax.block_until_ready(program(own)))
        once_s = _seconds(lambda: program(own))
        once_s, spent_s = self.agree([once_s, time.perf_counter() - began_s], max)
        repeats = int(min(MAX_REPEATS, max(1, (budget_s - spent_s) / max(once_s, 1e-6))))
        times_s = self.agree([_seconds(lambda: program(own)) for _ in range(repeats)], max)
        return Measurement(
            collective=collective,
            num_devices=count,
            num_bytes=size_of(collective, elements, count),
            repeats=repeats,
            min_s=min(times_s),
            median_s=statistics.median(times_s),
        )

    def agree(self, mine: Sequence[float], choose: Callable[..., float]) -> list[float]:
        """Place by place the greatest or least of what the ranks say: what follows from it must be the same on all."""
        return [choose(values) for values in zip(*self._exchange.all_gather("times", list(mine)), strict=True)]

    def _put_in(self, elements: int) -> jax.Array:
        """Each device's part in its place: (devices * elements,) float32."""

        def part(index: tuple[slice, ...]) -> np.ndarray:
            return put_in((index[0].start or 0) // elements, elements)

        sharding = NamedSharding(self.mesh, P(AXIS))
        return jax.make_array_from_callback((self.mesh.size * elements,), sharding, part)

    def _check(self, collective: str, elements: int, result: jax.Array) -> None:
        for shard in result.addressable_shards:
            device = int(np.flatnonzero(self.mesh.devices == shard.device)[0])
            wrong = first_wrong(collective, device, self.mesh.size, elements, np.asarray(shard.data))
            if wrong is not None:
                source = f"device {wrong.source} on {self._hosts[wrong.source]}" if wrong.source is not None else "all"
                raise RuntimeError(
                    f"{collective} of {size_of(collective, elements, self.mesh.size)} bytes over "
                    f"{', '.join(dict.fromkeys(self._hosts))}: device {device} on {self._hosts[device]} has "
                    f"{wrong.got:g} at element {wrong.index}, expected {wrong.wanted:g}, from {source}; the network, "
                    f"the memory or the transport of one of these hosts changes data: take them out of the cluster"
                )


def _seconds(launch: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(launch())
    return time.perf_counter() - start
