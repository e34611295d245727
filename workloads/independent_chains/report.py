"""The draws as metrics, warnings in words, a netCDF file and plots."""

import dataclasses
from typing import Any

import numpy as np

from workloads.independent_chains.blocks import BlockLayout
from workloads.independent_chains.config import Config
from workloads.independent_chains.history import History
from workloads.independent_chains.job import Job
from workloads.mcmc.dataset import save_dataset
from workloads.mcmc.diagnostics import find_problems, headline, scalars, summarize
from workloads.mcmc.plots import plot_lines, plot_log_density, plot_rank, plot_scatter, plot_trace

MAX_SCALARS = 100  # of one variable; each takes 10-20 ms to diagnose


def assess(config: Config, history: History, layout: BlockLayout) -> tuple[dict[str, float], dict[str, Any]]:
    """Headline metrics, and diagnostics that JSON can hold; the same on every rank.

    Args:
        config: parameters.
        history: of all chains.
        layout: which device ran what.
    """
    stats = history.sample_stats()
    summaries = summarize(history.draws, MAX_SCALARS)
    metrics = {
        **headline(summaries, stats["diverging"]),
        "accept_rate": float(stats["acceptance_rate"].mean(dtype=np.float64)),
        "step_size": float(stats["step_size"].mean(dtype=np.float64)),
        "gradients_per_draw": float(stats["n_steps"].mean(dtype=np.float64)),
    }
    problems = find_problems({**history.draws, "log density": stats["lp"]}, summaries, stats["diverging"])
    return metrics, {
        "problems": problems + idle_devices(config, layout),
        "parameters": {label: dataclasses.asdict(summary) for label, summary in summaries.items()},
        "max_scalars_diagnosed_of_each_variable": MAX_SCALARS,
        "divergences_of_chains": [int(count) for count in stats["diverging"].sum(axis=1)],
    }


def idle_devices(config: Config, layout: BlockLayout) -> list[str]:
    """A sentence, if some devices had nothing to do."""
    if not layout.num_idle_devices:
        return []
    needed = max(2, config.num_chains // layout.mesh.size)
    advice = (
        f"block_size={needed} would use more of them" if needed < config.block_size else "more chains would use them"
    )
    return [
        f"{layout.num_idle_devices} of {layout.mesh.size} devices had no chain: {config.num_chains} chains make "
        f"{layout.num_blocks} blocks of {config.block_size}; {advice}"
    ]


def write_results(job: Job, history: History) -> None:
    """Writes `chains.nc` and the plots; for rank 0 alone.

    Args:
        job: that has made the draws.
        history: of all chains.
    """
    config, context = job.config, job.context
    stats = history.sample_stats()
    save_dataset(
        context.results_folder() / "chains.nc",
        history.draws,
        stats,
        attributes={"model": config.model, "sampler": config.sampler, "seed": context.seed},
        dims=job.model.dims,
        coords=job.model.coords,
    )
    title = f"{config.model}, {config.sampler.upper()}, {config.num_chains} chains"
    shown = scalars(history.draws)
    plots = context.plots_folder()
    plot_log_density(plots / "log_density.png", history.stats["lp"], title=title, num_warmup=config.num_warmup)
    plot_trace(plots / "trace.png", shown, title=title)
    plot_rank(plots / "rank.png", shown, title=title)
    plot_scatter(plots / "scatter.png", shown, stats["diverging"], title=title)
    if config.adapts:
        series = {"step size": history.stats["step_size"], "acceptance probability": history.stats["acceptance_rate"]}
        plot_lines(
            plots / "adaptation.png",
            series,
            title=f"Step size adaptation\n{title}",
            num_warmup=config.num_warmup,
            log_scale=("step size",),
        )
