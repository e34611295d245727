"""What a block of chains has produced so far, in host memory; it grows neither on the device nor with time."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from workloads.independent_chains.program import Trace


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """Arrays of a fixed size that fill up as the run goes; a checkpoint holds what is filled.

    Attributes:
        num_warmup: transitions before the first draw.
        draws: `{variable: (chains, num_draws, ...)}`, of the reported quantities after the warm-up.
        stats: `{name: (chains, num_transitions)}`, warm-up included.
    """

    num_warmup: int
    draws: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]

    @classmethod
    def empty(cls, *, num_chains: int, num_warmup: int, num_draws: int, trace: Trace) -> "History":
        """Arrays for a whole run.

        Args:
            num_chains: chains of a block, or of all of them.
            num_warmup, num_draws: of each chain.
            trace: anything with a trace's names, shapes and dtypes.
        """

        def buffer(length: int, leaf: Any) -> np.ndarray:
            return np.zeros((num_chains, length, *leaf.shape[2:]), leaf.dtype)

        return cls(
            num_warmup=num_warmup,
            draws={name: buffer(num_draws, leaf) for name, leaf in trace["draws"].items()},
            stats={name: buffer(num_warmup + num_draws, leaf) for name, leaf in trace["stats"].items()},
        )

    def record(self, start: int, stop: int, trace: Trace) -> None:
        """Enters the transitions `start` to `stop` - 1 from the first rows of a trace, which it waits for."""
        for name, leaf in trace["stats"].items():
            self.stats[name][:, start:stop] = np.swapaxes(np.asarray(leaf)[: stop - start], 0, 1)
        first = max(start, self.num_warmup)
        if first >= stop:
            return
        for name, leaf in trace["draws"].items():
            rows = np.asarray(leaf)[first - start : stop - start]
            self.draws[name][:, first - self.num_warmup : stop - self.num_warmup] = np.swapaxes(rows, 0, 1)

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """To gather, and to compare."""
        return {"draws": self.draws, "stats": self.stats}

    def filled(self, step: int) -> dict[str, dict[str, np.ndarray]]:
        """For a checkpoint: what the first `step` transitions have entered; no draws before there is one."""
        filled = {"stats": {name: values[:, :step] for name, values in self.stats.items()}}
        if step > self.num_warmup:
            filled["draws"] = {name: values[:, : step - self.num_warmup] for name, values in self.draws.items()}
        return filled

    def fill(self, filled: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Enters what `filled` returned, of a run that may have been shorter."""
        for name, values in filled["stats"].items():
            self.stats[name][:, : values.shape[1]] = values
        for name, values in filled.get("draws", {}).items():
            self.draws[name][:, : values.shape[1]] = values

    def with_arrays(self, arrays: Mapping[str, Any]) -> "History":
        """With the arrays of another, copied: what a checkpoint returns may be read-only."""
        copied = jax.tree.map(np.array, dict(arrays))
        return dataclasses.replace(self, draws=copied["draws"], stats=copied["stats"])

    def sample_stats(self) -> dict[str, np.ndarray]:
        """Statistics after the warm-up: `{name: (chains, num_draws)}`."""
        return {name: values[:, self.num_warmup :] for name, values in self.stats.items()}
