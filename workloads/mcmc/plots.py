"""Plots of draws as PNG: traces, marginal densities, rank plots, scatter plots.

Figures are made by Matplotlib's object interface and saved by its Agg renderer: no window system, no global state.
ArviZ's own plots are left alone: importing `arviz_plots` takes as long as many a job.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Scalars = Mapping[str, np.ndarray]  # {label: (chains, draws)}, as `diagnostics.scalars` makes them

DPI = 120
MAX_CHAINS = 16  # more lines than this cannot be told apart
MAX_POINTS = 2000  # in one line, and in one cloud of a chain
MAX_PANELS = 4
RANK_BINS = 20
DIVERGENT = "#d62728"
GREY = "#8a8a8a"


def plot_log_density(path: Path, log_density: np.ndarray, *, title: str, num_warmup: int = 0) -> Path:
    """Log density of every chain against the transition.

    Args:
        path: file to write, `.png`.
        log_density: (chains, transitions), with the warm-up in front if `num_warmup` says so.
        title: what was sampled.
        num_warmup: transitions of the warm-up, shaded.
    """
    return plot_lines(path, {"log density": log_density}, title=f"Log density\n{title}", num_warmup=num_warmup)


def plot_lines(
    path: Path,
    series: Scalars,
    *,
    title: str,
    num_warmup: int = 0,
    xlabel: str = "transition",
    log_scale: tuple[str, ...] = (),
) -> Path:
    """Anything that each chain has one value of per transition, one panel a quantity, one above the other.

    Args:
        path: file to write, `.png`.
        series: `{label: (chains, transitions)}`; the label is the y axis's, with its unit if there is one.
        title: over all panels.
        num_warmup: transitions of the warm-up, shaded.
        xlabel: of the lowest panel.
        log_scale: labels with a logarithmic axis (their values are positive).
    """
    figure = Figure(figsize=(8.0, 1.2 + 2.4 * len(series)), layout="constrained")
    axes = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (label, values) in zip(axes, series.items(), strict=True):
        _lines(axis, values)
        axis.set_ylabel(label)
        if label in log_scale and (values > 0).any():  # not all NaN
            axis.set_yscale("log")
        else:
            _focus(axis, values[:, num_warmup:])
        if num_warmup:
            axis.axvspan(0, num_warmup, color="0.92", zorder=0)
            place = axis.get_xaxis_transform()
            axis.text(num_warmup / 2, 0.03, "warm-up", transform=place, color="0.45", fontsize=9, ha="center")
    axes[-1].set_xlabel(xlabel)
    figure.suptitle(f"{title}{_chain_note(next(iter(series.values())))}", fontsize=11)
    return _save(figure, path)


def plot_trace(path: Path, scalars: Scalars, *, title: str) -> Path:
    """Marginal density of every chain (left) and its draws in order (right), one row for each of the first scalars.

    Args:
        path: file to write, `.png`.
        scalars: `{label: (chains, draws)}`.
        title: what was sampled.
    """
    shown = _first(scalars)
    figure = Figure(figsize=(10.0, 1.2 + 2.0 * len(shown)), layout="constrained")
    rows = figure.subplots(len(shown), 2, squeeze=False, width_ratios=(1, 2))
    for (left, right), (label, values) in zip(rows, shown.items(), strict=True):
        _histograms(left, values)
        left.set_xlabel(label)
        left.set_ylabel("density")
        _lines(right, values)
        right.set_ylabel(label)
        right.set_xlabel("draw")
    figure.suptitle(f"Trace\n{title}{_chain_note(next(iter(shown.values())))}", fontsize=11)
    return _save(figure, path)


def plot_rank(path: Path, scalars: Scalars, *, title: str) -> Path:
    """How the ranks of each chain's draws among all draws are spread: evenly, if the chains agree.

    The band holds 99 % of the bins of independent draws; autocorrelated draws leave it more often.
    (Vehtari et al. 2021, section 6.1, with lines instead of bars.)

    Args:
        path: file to write, `.png`.
        scalars: `{label: (chains, draws)}`.
        title: what was sampled.
    """
    shown = _first(scalars)
    num_columns = min(2, len(shown))
    num_rows = -(-len(shown) // num_columns)
    figure = Figure(figsize=(5.0 * num_columns, 1.0 + 2.6 * num_rows), layout="constrained")
    axes = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axis, (label, values) in zip(axes, shown.items(), strict=False):
        _rank_lines(axis, values)
        axis.set_title(label, fontsize=10)
        axis.set_xlabel("rank among all draws")
        axis.set_ylabel("share / even share")
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    figure.suptitle(f"Rank plot\n{title}{_chain_note(next(iter(shown.values())))}", fontsize=11)
    return _save(figure, path)


def plot_scatter(path: Path, scalars: Scalars, diverging: np.ndarray, *, title: str) -> Path:
    """Pairs of the first scalars against each other, with the draws of divergent transitions on top.

    Args:
        path: file to write, `.png`.
        scalars: `{label: (chains, draws)}`.
        diverging: (chains, draws), bool.
        title: what was sampled.
    """
    labels = list(_first(scalars))
    if len(labels) == 1:  # one quantity: against the one before it
        scalars = {f"{labels[0]}, one draw later": scalars[labels[0]][:, 1:], labels[0]: scalars[labels[0]][:, :-1]}
        diverging, labels = diverging[:, 1:], list(scalars)
    size = len(labels) - 1
    figure = Figure(figsize=(max(5.5, 2.8 * size), 0.9 + max(4.6, 2.5 * size)), layout="constrained")
    grid: Any = figure.subplots(size, size, squeeze=False, sharex="col", sharey="row")
    for row, column in np.ndindex(size, size):
        axis = grid[row, column]
        if column > row:
            axis.set_axis_off()
            continue
        _cloud(axis, scalars[labels[column]], scalars[labels[row + 1]], diverging)
        if row == size - 1:
            axis.set_xlabel(labels[column])
        if column == 0:
            axis.set_ylabel(labels[row + 1])
    count = int(np.sum(diverging))
    figure.suptitle(f"Scatter\n{title}; {count} divergent draws{' (red)' * bool(count)}", fontsize=11)
    return _save(figure, path)


def _lines(axis: Axes, values: np.ndarray) -> None:
    step = max(1, values.shape[1] // MAX_POINTS)
    index = np.arange(0, values.shape[1], step)
    for chain, color in _colors(values):
        axis.plot(index, values[chain, ::step], color=color, linewidth=0.6, alpha=0.8)
    axis.set_xlim(0, max(1, values.shape[1] - 1))


def _histograms(axis: Axes, values: np.ndarray) -> None:
    finite = values[np.isfinite(values)]
    if not finite.size:
        axis.text(0.5, 0.5, "no finite draw", ha="center", transform=axis.transAxes)
        return
    low, high = np.quantile(finite, (0.001, 0.999))
    edges = np.linspace(low, high, 41) if high > low else np.array([low - 0.5, low + 0.5])
    for chain, color in _colors(values):
        counts, _ = np.histogram(values[chain], edges)
        axis.stairs(counts / (values.shape[1] * np.diff(edges)), edges, color=color, linewidth=0.8, alpha=0.8)
    axis.set_ylim(bottom=0.0)


def _rank_lines(axis: Axes, values: np.ndarray) -> None:
    num_chains, num_draws = values.shape
    ranks = np.argsort(np.argsort(values, axis=None, kind="stable"), kind="stable").reshape(values.shape)
    bins = min(RANK_BINS, max(2, num_draws // 10))
    edges = np.linspace(0, values.size, bins + 1)
    even = num_draws / bins
    spread = 2.576 * np.sqrt(even * (1 - 1 / bins) * (1 - 1 / num_chains)) / even
    axis.axhspan(1 - spread, 1 + spread, color="0.92", zorder=0)
    axis.axhline(1.0, color=GREY, linewidth=0.8)
    for chain, color in _colors(values):
        counts, _ = np.histogram(ranks[chain], edges)
        axis.stairs(counts / even, edges, baseline=None, color=color, linewidth=1.0, alpha=0.8)
    axis.set_xlim(0, values.size)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _cloud(axis: Axes, x: np.ndarray, y: np.ndarray, diverging: np.ndarray) -> None:
    step = max(1, x.shape[1] // (MAX_POINTS // min(len(x), MAX_CHAINS)))
    for chain, color in _colors(x):
        axis.plot(x[chain, ::step], y[chain, ::step], ".", color=color, markersize=3.5, alpha=0.5, markeredgewidth=0)
    axis.plot(x[diverging], y[diverging], ".", color=DIVERGENT, markersize=5, markeredgewidth=0)


def _focus(axis: Axes, values: np.ndarray) -> None:
    """Limits that show the values after the warm-up, and not how far away it began."""
    finite = values[np.isfinite(values)]
    if finite.size and np.ptp(finite) > 0:
        margin = 0.15 * np.ptp(finite)
        axis.set_ylim(finite.min() - margin, finite.max() + margin)


def _colors(values: np.ndarray) -> Iterator[tuple[int, tuple[float, ...]]]:
    count = min(len(values), MAX_CHAINS)
    colormap = matplotlib.colormaps["viridis"]
    return ((chain, colormap(0.9 * chain / max(1, count - 1))) for chain in range(count))


def _chain_note(values: np.ndarray) -> str:
    count = len(values)
    return f" (one colour a chain{f'; the first {MAX_CHAINS}' if count > MAX_CHAINS else ''})" if count > 1 else ""


def _first(scalars: Scalars) -> dict[str, np.ndarray]:
    return dict(list(scalars.items())[:MAX_PANELS])


def _save(figure: Figure, path: Path) -> Path:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=DPI)
    return path
