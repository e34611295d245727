"""The posterior as metrics, diagnostics, a netCDF file and plots."""

import dataclasses
from typing import Any

import jax
import numpy as np

from workloads.context import Context
from workloads.mcmc.dataset import save_dataset
from workloads.mcmc.diagnostics import Draws, find_problems, headline, scalars, summarize
from workloads.mcmc.plots import plot_lines, plot_log_density, plot_rank, plot_trace
from workloads.sharded_mcmc.config import Config
from workloads.sharded_mcmc.history import History
from workloads.sharded_mcmc.model import Model
from workloads.sharded_mcmc.plots import plot_calibration
from workloads.sharded_mcmc.program import State

# R-hat and ESS are computed of at most so many scalars of each part, evenly spaced: 5 ms each.
MAX_SCALARS = 50

# Trace and rank plots show so many of each part.
MAX_SCALARS_PLOTTED = 3

ARVIZ_NAMES = {"log_density": "lp", "accept_ratio": "acceptance_rate"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assessment:
    """What the draws are worth.

    Attributes:
        metrics: headline scalars.
        diagnostics: anything else that JSON can hold.
        mean_prediction: probabilities averaged over all draws of all chains, without padding.
    """

    metrics: dict[str, float]
    diagnostics: dict[str, Any]
    mean_prediction: np.ndarray


def assess_posterior(config: Config, context: Context, model: Model, state: State, history: History) -> Assessment:
    """Diagnoses the draws and scores the Bayesian model average; a collective, so every rank must call it.

    A score averaged over the draws is `NAME_mean`; that of the averaged prediction is `NAME_bma`.

    Args:
        config: parameters.
        context: this rank.
        model: see `Model`.
        state: after the last transition.
        history: full.
    """
    num_predictions = config.num_draws * config.num_chains
    of_average = jax.jit(lambda total, data: model.score(total / num_predictions, data))
    program, _ = context.compile("score", of_average, state["prediction_sum"], model.data)
    scores = {name: float(score) for name, score in program(state["prediction_sum"], model.data).items()}
    gathered = context.gather(state["prediction_sum"]) / num_predictions
    mean_prediction = model.prediction.without_padding(gathered)

    after_warmup = {name: values[config.num_warmup :] for name, values in history.stats.items()}
    summaries = summarize(comparable_draws(model, history), max_scalars=MAX_SCALARS)
    diverging, log_density = after_warmup["diverging"].T, after_warmup["log_density"].T
    metrics = {
        "accept_rate": float(after_warmup["accept_ratio"].mean()),
        "step_size": float(after_warmup["step_size"][-1].mean()),
        **{f"{name}_mean": float(after_warmup[name].mean()) for name in scores},
        **{f"{name}_bma": score for name, score in scores.items()},
        **model.assess(mean_prediction),
        **headline(summaries, diverging),
    }
    diagnostics = {
        "problems": find_problems(history.posterior() | {"log density": log_density}, summaries, diverging),
        "summaries": {name: dataclasses.asdict(summary) for name, summary in summaries.items()},
        "max_scalars_diagnosed_of_each_part": MAX_SCALARS,
        "num_draws_kept": len(next(iter(history.draws.values()))),
        "keep_every": history.keep_every,
        "step_size_of_chains": [float(size) for size in after_warmup["step_size"][-1]],
    }
    return Assessment(metrics=metrics, diagnostics=diagnostics, mean_prediction=mean_prediction)


def write_results(
    config: Config, context: Context, model: Model, history: History, mean_prediction: np.ndarray
) -> None:
    """Writes files into the results and plots folders; for rank 0 alone.

    Args:
        config: parameters.
        context: this rank.
        model: see `Model`.
        history: full.
        mean_prediction: as in `Assessment`.
    """
    results = context.results_folder()
    stats = {ARVIZ_NAMES.get(name, name): values for name, values in history.sample_stats().items()}
    save_dataset(
        results / "posterior.nc",
        history.posterior(),
        stats,
        attributes={"model": model.name, "sampler": "hmc", "keep_every": history.keep_every, "seed": context.seed},
        dims={name: part.dims for name, part in model.parts.items()},
    )
    traces: dict[str, Any] = {"num_warmup": config.num_warmup, **history.stats}
    np.savez(results / "traces.npz", **traces)
    np.savez(results / "mean_prediction.npz", mean_prediction=mean_prediction)
    write_plots(context, model, history, mean_prediction)


def write_plots(context: Context, model: Model, history: History, mean_prediction: np.ndarray) -> None:
    """Log density, the other statistics of every transition, traces and ranks of some scalars, and calibration."""
    plots, num_warmup = context.plots_folder(), history.num_warmup
    title = f"sharded-mcmc {model.name}"
    series = {name.replace("_", " "): values.T for name, values in history.stats.items() if name != "diverging"}
    plot_log_density(plots / "log_density.png", series.pop("log density"), title=title, num_warmup=num_warmup)
    plot_lines(
        plots / "sampler.png",
        series,
        title=f"Every transition\n{title}",
        num_warmup=num_warmup,
        log_scale=("step size",),
    )
    shown = scalars(comparable_draws(model, history), max_scalars=MAX_SCALARS_PLOTTED)
    plot_trace(plots / "trace.png", shown, title=title)
    plot_rank(plots / "rank.png", shown, title=title)
    plot_calibration(plots / "calibration.png", *model.outcomes(mean_prediction))


def comparable_draws(model: Model, history: History) -> Draws:
    """The log density, and the parts whose chains may be compared: `{name: (chains, kept draws, ...)}`."""
    posterior = history.posterior()
    return {"lp": history.sample_stats()["log_density"]} | {name: posterior[name] for name in model.identified}
