"""Convergence diagnostics of draws: R-hat, bulk and tail effective sample size, divergences; in numbers and in words.

`arviz_stats.base` (NumPy in, NumPy out) computes them: Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021,
"Rank-normalization, folding, and localization: an improved R-hat". Its import pulls in SciPy and xarray (2-10 s on a
slow machine), which the netCDF file needs as well; it stands at the top of the module so that a standby process has
done it before a job begins.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np
from arviz_stats.base import array_stats

Draws = Mapping[str, np.ndarray]  # {variable: (chains, draws, ...)}

MIN_DRAWS = 4  # each half of a chain needs two draws
TAIL_PROBABILITIES = (0.05, 0.95)

# What Vehtari et al. 2021 advise: R-hat below 1.01, and 100 effective draws a chain for four chains.
MAX_RHAT = 1.01
MIN_ESS = 400.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """One scalar component of one variable.

    Attributes:
        mean, sd: over all chains and draws.
        mcse_mean: Monte Carlo standard error of the mean, in the unit of the variable.
        rhat: None if there is a single chain.
        ess_bulk, ess_tail: effective numbers of draws, of all chains together.

    All are None if a draw is not finite; all but mean and sd if there are fewer than four draws or nothing varies.
    """

    mean: float | None
    sd: float | None
    mcse_mean: float | None
    rhat: float | None
    ess_bulk: float | None
    ess_tail: float | None


def scalars(draws: Draws, max_scalars: int | None = None) -> dict[str, np.ndarray]:
    """The scalar components by label, such as `mu` or `theta[2]` or `weights[0, 3]`.

    Args:
        draws: `{variable: (chains, draws, ...)}`.
        max_scalars: at most so many of each variable, evenly spaced from the first to the last; None: all.

    Returns:
        `{label: (chains, draws)}`, in the order of the variables.
    """
    return {label: values for name, array in draws.items() for label, values in _components(name, array, max_scalars)}


def summarize(draws: Draws, max_scalars: int | None = None) -> dict[str, Summary]:
    """Summaries of the components that `scalars` picks; 10-20 ms each for 16 chains of 1,000 draws.

    Args:
        draws: `{variable: (chains, draws, ...)}`, any real dtype; computed in float64.
        max_scalars: as for `scalars`.
    """
    return {label: summarize_scalar(values) for label, values in scalars(draws, max_scalars).items()}


def summarize_scalar(values: np.ndarray) -> Summary:
    """The summary of one scalar.

    Args:
        values: (chains, draws), any real dtype.
    """
    values = np.asarray(values, np.float64)
    if not np.isfinite(values).all():
        return Summary(mean=None, sd=None, mcse_mean=None, rhat=None, ess_bulk=None, ess_tail=None)
    mean, sd = float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else None
    if values.shape[1] < MIN_DRAWS or np.ptp(values) == 0.0:
        return Summary(mean=mean, sd=sd, mcse_mean=None, rhat=None, ess_bulk=None, ess_tail=None)
    with np.errstate(divide="ignore", invalid="ignore"):  # a chain that never moves has no variance within
        return Summary(
            mean=mean,
            sd=sd,
            mcse_mean=_defined(array_stats.mcse(values, method="mean")),
            rhat=_defined(array_stats.rhat(values, method="rank")),
            ess_bulk=_defined(array_stats.ess(values, method="bulk")),
            ess_tail=_defined(array_stats.ess(values, method="tail", prob=TAIL_PROBABILITIES)),
        )


def headline(summaries: Mapping[str, Summary], diverging: np.ndarray) -> dict[str, float]:
    """The worst of each diagnostic: `max_rhat`, `min_ess_bulk`, `min_ess_tail` (absent if undefined everywhere), and
    `num_divergences`.

    Args:
        summaries: by label, as `summarize` makes them.
        diverging: (chains, draws), bool.
    """
    metrics = {}
    for name, worst, attribute in (
        ("max_rhat", max, "rhat"),
        ("min_ess_bulk", min, "ess_bulk"),
        ("min_ess_tail", min, "ess_tail"),
    ):
        values = [value for summary in summaries.values() if (value := getattr(summary, attribute)) is not None]
        if values:
            metrics[name] = float(worst(values))
    return metrics | {"num_divergences": float(np.sum(diverging))}


def find_problems(draws: Draws, summaries: Mapping[str, Summary], diverging: np.ndarray) -> list[str]:
    """What a reader must know before trusting the draws, one sentence each; empty if nothing was found.

    Args:
        draws: `{variable: (chains, draws, ...)}`.
        summaries: as `summarize` makes them.
        diverging: (chains, draws), bool.
    """
    return [
        *_bad_values(draws),
        *_divergences(diverging),
        *_stuck_chains(draws),
        *_unconverged(summaries),
    ]


def _bad_values(draws: Draws) -> Iterator[str]:
    for name, array in draws.items():
        flat = np.asarray(array).reshape(*array.shape[:2], -1)
        bad = ~np.isfinite(flat).all(axis=(1, 2))
        if bad.any():
            yield f"{name} is NaN or infinite in {_chains(bad)}: these chains are lost"


def _divergences(diverging: np.ndarray) -> Iterator[str]:
    counts = np.sum(diverging, axis=1)
    if counts.any():
        yield (
            f"{counts.sum()} of {diverging.size} transitions after the warm-up diverged, in "
            f"{_chains(counts > 0)}: the draws may miss part of the posterior; a smaller step size, a higher "
            "target_accept or another parametrisation may help"
        )


def _stuck_chains(draws: Draws) -> Iterator[str]:
    stuck = np.logical_and.reduce(
        [(array == array[:, :1]).reshape(len(array), -1).all(axis=1) for array in draws.values()]
    )
    if stuck.any() and next(iter(draws.values())).shape[1] > 1:
        yield f"{_chains(stuck)} never moved: every proposal was rejected; a smaller step size may help"


def _unconverged(summaries: Mapping[str, Summary]) -> Iterator[str]:
    rhats = {label: summary.rhat for label, summary in summaries.items() if summary.rhat is not None}
    if rhats and (worst := max(rhats, key=rhats.__getitem__)) and rhats[worst] > MAX_RHAT:
        count = sum(rhat > MAX_RHAT for rhat in rhats.values())
        yield (
            f"R-hat is above {MAX_RHAT} for {count} of {len(rhats)} quantities ({worst}: {rhats[worst]:.3f}): "
            "the chains have not mixed; run longer"
        )
    for kind, attribute in (("bulk", "ess_bulk"), ("tail", "ess_tail")):
        sizes = {label: size for label, item in summaries.items() if (size := getattr(item, attribute)) is not None}
        if sizes and (worst := min(sizes, key=sizes.__getitem__)) and sizes[worst] < MIN_ESS:
            count = sum(size < MIN_ESS for size in sizes.values())
            yield (
                f"{kind} ESS is below {MIN_ESS:g} for {count} of {len(sizes)} quantities ({worst}: {sizes[worst]:.0f})"
            )


def _components(name: str, array: np.ndarray, max_scalars: int | None) -> Iterator[tuple[str, np.ndarray]]:
    event_shape = array.shape[2:]
    size = math.prod(event_shape)
    count = size if max_scalars is None else min(size, max_scalars)
    for flat in np.unique(np.linspace(0, size - 1, count).round().astype(int)) if size else ():
        index = tuple(int(part) for part in np.unravel_index(flat, event_shape))
        label = f"{name}[{', '.join(map(str, index))}]" if index else name
        yield label, array.reshape(*array.shape[:2], size)[:, :, flat]


def _chains(mask: np.ndarray) -> str:
    """`chain 3`, `chains 1, 4`, `12 of 16 chains (0, 1, 2, 3, ...)`."""
    indices = [str(index) for index in np.flatnonzero(mask)]
    if len(indices) > 4:
        return f"{len(indices)} of {mask.size} chains ({', '.join(indices[:4])}, ...)"
    return f"chain{'s' * (len(indices) > 1)} {', '.join(indices)}"


def _defined(value: np.ndarray) -> float | None:
    return float(value) if np.isfinite(value) else None
