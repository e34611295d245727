"""What the sampler has produced so far, on the host: every transition's statistics, and draws up to a stated amount."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from workloads.sharded_mcmc.model import Array, float_dtype

MIB = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """Arrays of a fixed size that fill up as the run goes; a checkpoint holds what is filled.

    Attributes:
        num_warmup: transitions before the first draw.
        keep_every: draw 0, `keep_every`, twice that, ... are kept.
        stats: `{name: (transitions, chains)}`, warm-up included.
        draws: `{part: (kept draws, chains, ...)}`, without padding.
        parts: the model's, to cut the padding off.
    """

    num_warmup: int
    keep_every: int
    stats: dict[str, np.ndarray]
    draws: dict[str, np.ndarray]
    parts: Mapping[str, Array]

    @classmethod
    def empty(
        cls,
        *,
        num_warmup: int,
        num_draws: int,
        num_chains: int,
        parts: Mapping[str, Array],
        stats: Mapping[str, np.dtype],
        max_draws_mib: int,
    ) -> "History":
        """Arrays for a whole run.

        Args:
            num_warmup: transitions before the first draw.
            num_draws: draws of each chain.
            num_chains: chains.
            parts: the model's.
            stats: names and dtypes of the statistics of a transition.
            max_draws_mib: draws are thinned to fit.
        """
        num_bytes = num_draws * num_chains * sum(part.num_bytes() for part in parts.values())
        keep_every = min(num_draws, -(-num_bytes // (max_draws_mib * MIB)))
        num_kept = -(-num_draws // keep_every)
        return cls(
            num_warmup=num_warmup,
            keep_every=keep_every,
            stats={name: np.zeros((num_warmup + num_draws, num_chains), dtype) for name, dtype in stats.items()},
            draws={name: np.zeros((num_kept, num_chains, *part.shape), float_dtype()) for name, part in parts.items()},
            parts=parts,
        )

    def record_stats(self, start: int, stats: Mapping[str, np.ndarray]) -> None:
        """Enters the statistics of the transitions from `start` on, each (transitions, chains)."""
        for name, rows in stats.items():
            self.stats[name][start : start + len(rows)] = rows

    def rows_to_keep(self, start: int, stop: int) -> np.ndarray:
        """Which of the transitions `start` to `stop` - 1, counted from `start`, are draws to keep: (rows,), int64."""
        index = np.arange(start, stop) - self.num_warmup
        return np.flatnonzero((index >= 0) & (index % self.keep_every == 0))

    def record_draws(self, start: int, rows: np.ndarray, position: Mapping[str, np.ndarray]) -> None:
        """Enters kept draws.

        Args:
            start: the first transition of the chunk.
            rows: as `rows_to_keep` says.
            position: `{part: (transitions, chains, *placed_shape)}` of the whole chunk.
        """
        kept = (start + rows - self.num_warmup) // self.keep_every
        for name, values in position.items():
            self.draws[name][kept] = self.parts[name].without_padding(np.asarray(values)[rows])

    def filled(self, step: int) -> dict[str, Any]:
        """For a checkpoint: what the first `step` transitions have entered; no draws before there is one."""
        filled: dict[str, Any] = {"stats": {name: array[:step] for name, array in self.stats.items()}}
        if step > self.num_warmup:
            num_kept = -(-(step - self.num_warmup) // self.keep_every)
            filled["draws"] = {name: array[:num_kept] for name, array in self.draws.items()}
        return filled

    def like_filled(self, step: int, keep_every: int) -> dict[str, Any]:
        """Shapes and dtypes of `filled` of a run that kept every `keep_every`-th draw."""
        num_kept = -(-max(0, step - self.num_warmup) // keep_every)
        like: dict[str, Any] = {"stats": {name: array[:step] for name, array in self.stats.items()}}
        if num_kept:
            shapes = {name: (num_kept, *array.shape[1:]) for name, array in self.draws.items()}
            like["draws"] = {name: np.empty(shape, self.draws[name].dtype) for name, shape in shapes.items()}
        return like

    def fill(self, filled: Mapping[str, Any], keep_every: int) -> None:
        """Enters what `filled` returned, of a run that may have been shorter and kept every `keep_every`-th draw."""
        for name, array in filled["stats"].items():
            self.stats[name][: len(array)] = array
        for name, array in filled.get("draws", {}).items():
            kept = array[:: self.keep_every // keep_every]
            self.draws[name][: len(kept)] = kept

    def posterior(self) -> dict[str, np.ndarray]:
        """Kept draws as `{part: (chains, kept draws, ...)}`."""
        return {name: np.swapaxes(array, 0, 1) for name, array in self.draws.items()}

    def sample_stats(self) -> dict[str, np.ndarray]:
        """Statistics after the warm-up, thinned like the draws, as `{name: (chains, kept draws)}`."""
        kept = slice(self.num_warmup, None, self.keep_every)
        return {name: np.swapaxes(array[kept], 0, 1) for name, array in self.stats.items()}
