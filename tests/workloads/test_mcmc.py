"""Diagnostics, dataset and plots that the MCMC workloads share."""

from pathlib import Path

import numpy as np
import pytest
import xarray
from matplotlib.image import imread

from workloads.mcmc.dataset import save_dataset
from workloads.mcmc.diagnostics import Summary, find_problems, headline, scalars, summarize, summarize_scalar
from workloads.mcmc.plots import plot_lines, plot_log_density, plot_rank, plot_scatter, plot_trace

NOT_DIVERGING = np.zeros((4, 500), bool)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def autoregressive(coefficient: float, num_chains: int, num_draws: int) -> np.ndarray:
    """AR(1) draws with unit variance, whose effective size is known: n (1 - c) / (1 + c)."""
    noise = normal(num_chains, num_draws, seed=1) * np.sqrt(1 - coefficient**2)
    draws = np.zeros((num_chains, num_draws))
    draws[:, 0] = normal(num_chains, seed=2)
    for index in range(1, num_draws):
        draws[:, index] = coefficient * draws[:, index - 1] + noise[:, index]
    return draws


def test_effective_sample_size_of_draws_where_it_is_known() -> None:
    independent = summarize_scalar(normal(4, 2000))
    assert independent.ess_bulk == pytest.approx(8000, rel=0.15)
    assert independent.rhat == pytest.approx(1.0, abs=0.005)
    correlated = summarize_scalar(autoregressive(0.9, 4, 5000))
    assert correlated.ess_bulk == pytest.approx(20_000 * 0.1 / 1.9, rel=0.25)
    assert correlated.mcse_mean == pytest.approx(correlated.sd / np.sqrt(correlated.ess_bulk), rel=0.15)


def test_a_shifted_chain_shows_in_rhat_and_in_words() -> None:
    draws = {"mu": normal(4, 500)}
    draws["mu"][2] += 2.0
    summaries = summarize(draws)
    assert summaries["mu"].rhat > 1.1
    problems = find_problems(draws, summaries, NOT_DIVERGING)
    assert any(problem.startswith("R-hat is above 1.01 for 1 of 1 quantities (mu:") for problem in problems)


def test_good_draws_have_no_problem() -> None:
    draws = {"mu": normal(4, 500), "theta": normal(4, 500, 3)}
    summaries = summarize(draws)
    assert find_problems(draws, summaries, NOT_DIVERGING) == []
    metrics = headline(summaries, NOT_DIVERGING)
    assert metrics["num_divergences"] == 0
    assert metrics["max_rhat"] == max(summary.rhat for summary in summaries.values())
    assert metrics["min_ess_tail"] == min(summary.ess_tail for summary in summaries.values())


def test_lost_stuck_and_divergent_chains_are_named() -> None:
    draws = {"mu": normal(4, 500)}
    draws["mu"][1, 7] = np.nan
    draws["mu"][3] = 0.5
    diverging = NOT_DIVERGING.copy()
    diverging[[0, 2], 3] = True
    problems = find_problems(draws, summarize(draws), diverging)
    assert problems[0] == "mu is NaN or infinite in chain 1: these chains are lost"
    assert problems[1].startswith("2 of 2000 transitions after the warm-up diverged, in chains 0, 2:")
    assert problems[2].startswith("chain 3 never moved")


def test_undefined_diagnostics_are_none_and_left_out_of_the_headline() -> None:
    undefined = Summary(mean=1.0, sd=0.0, mcse_mean=None, rhat=None, ess_bulk=None, ess_tail=None)
    assert summarize_scalar(np.ones((2, 10))) == undefined
    assert summarize_scalar(np.full((2, 10), np.nan)).mean is None
    assert summarize_scalar(normal(1, 100)).rhat is None, "a single chain"
    assert headline({"constant": undefined}, NOT_DIVERGING) == {"num_divergences": 0.0}


def test_scalars_are_labelled_and_spread_over_a_large_variable() -> None:
    draws = {"mu": normal(2, 5), "w": normal(2, 5, 10, 4)}
    shown = scalars(draws, max_scalars=3)
    assert list(shown) == ["mu", "w[0, 0]", "w[5, 0]", "w[9, 3]"]
    assert np.array_equal(shown["w[5, 0]"], draws["w"][:, :, 5, 0])
    assert len(scalars(draws)) == 41


def test_the_dataset_opens_with_names_and_bits(tmp_path: Path) -> None:
    posterior = {"theta": normal(4, 500, 2).astype(np.float32)}
    path = save_dataset(
        tmp_path / "chains.nc",
        posterior,
        {"diverging": NOT_DIVERGING, "lp": normal(4, 500)},
        attributes={"sampler": "nuts", "seed": 3},
        dims={"theta": ("school",)},
        coords={"school": ("a", "b")},
    )
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        assert tree["posterior/theta"].dims == ("chain", "draw", "school")
        assert list(tree["posterior/school"].values) == ["a", "b"]
        assert np.array_equal(tree["posterior/theta"].values, posterior["theta"])
        assert tree["sample_stats/diverging"].dtype == bool
        assert tree["posterior"].attrs["sampler"] == "nuts"


def test_plots_of_any_shape_show_something(tmp_path: Path) -> None:
    usual = scalars({"mu": normal(20, 300), "theta": normal(20, 300, 5)})
    odd = {"x": normal(1, 3)}
    lost = {"x": np.full((2, 50), np.nan)}
    for name, shown in (("usual", usual), ("odd", odd), ("lost", lost)):
        first = next(iter(shown.values()))
        folder = tmp_path / name
        folder.mkdir()
        paths = [
            plot_log_density(folder / "lp.png", first, title="t", num_warmup=first.shape[1] // 2),
            plot_lines(
                folder / "lines.png", {"step size": np.exp(first)}, title="t", num_warmup=1, log_scale=("step size",)
            ),
            plot_trace(folder / "trace.png", shown, title="t"),
            plot_rank(folder / "rank.png", shown, title="t"),
            plot_scatter(folder / "scatter.png", shown, first > 2.5, title="t"),
        ]
        for path in paths:
            assert imread(path).std() > 0.01, f"{path} is blank"
