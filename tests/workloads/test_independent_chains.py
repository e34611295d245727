"""The workload `independent-chains`: right draws, the same bits on every layout, resume, and what a reader is told."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats
import xarray
from matplotlib.image import imread

from tests.ranks import run_ranks
from tests.workloads.checkpoint_programs import forget_after
from tests.workloads.independent_chains_programs import digest, sample
from workloads.context import Context
from workloads.errors import ConfigError
from workloads.independent_chains.config import Config
from workloads.independent_chains.job import Job, start_job
from workloads.independent_chains.models import (
    GAUSSIAN_COVARIANCE,
    MODELS,
    SCHOOL_EFFECTS,
    SCHOOL_ERRORS,
)
from workloads.independent_chains.report import assess
from workloads.independent_chains.run import run
from workloads.params import parse
from workloads.result import Result

SMALL: dict[str, Any] = {"num_chains": 10, "num_warmup": 60, "num_draws": 60, "draws_per_dispatch": 25}
EXAMPLE = {"model": f"{Path(__file__).parents[2] / 'examples' / 'logdensity.py'}:logdensity"}
SETTINGS = [SMALL, SMALL | EXAMPLE, SMALL | {"model": "eight-schools", "sampler": "nuts"}]
# Hosts, devices of each, and how many of the settings: NUTS takes 6 s of compilation a device.
LAYOUTS = [(1, 3, 3), (2, 2, 3)]
MORE_LAYOUTS = [(1, 2, 2), (1, 4, 2), (4, 1, 2)]


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run with its files and events."""

    result: Result
    folder: Path
    events: list[dict[str, Any]]


def run_here(config: Config, folder: Path, **more: Any) -> Run:
    resume = more.pop("resume", False)
    events: list[dict[str, Any]] = []
    context = Context.local(folder, seed=1, emit=events.append, **more)
    return Run(run(config, context, resume), folder, events)


@pytest.fixture(scope="module")
def gaussian(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The defaults: 16 chains of 1000 + 1000 draws."""
    folder = tmp_path_factory.mktemp("gaussian")
    return run_here(Config(), folder, checkpoint_every=1300, check_every=700)


@pytest.fixture(scope="module")
def eight_schools(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = Config(model="eight-schools", sampler="nuts", num_warmup=500, num_draws=500)
    return run_here(config, tmp_path_factory.mktemp("eight-schools"))


@pytest.fixture(scope="module")
def digests_here(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of `SETTINGS`, on the one device of this process."""
    outcomes = sample(Context.local(tmp_path_factory.mktemp("here"), seed=3), SETTINGS)
    return [outcome["digest"] for outcome in outcomes]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A few draws of the gaussian, and nothing written."""
    job = start_job(Config(**SMALL), Context.local(tmp_path_factory.mktemp("small")))
    job.sample(0)
    return job


def open_groups(outcome: Run) -> tuple[xarray.Dataset, xarray.Dataset]:
    with xarray.open_datatree(outcome.folder / "results" / "chains.nc", engine="h5netcdf") as tree:
        return tree["posterior"].to_dataset().load(), tree["sample_stats"].to_dataset().load()


def assert_close_to_reference(found: dict[str, float], mean: float, sd: float) -> None:
    """posteriordb's rule: four standard errors of ours (the reference here is exact)."""
    error = np.sqrt(sd**2 / found["ess_bulk"] + found["mcse_mean"] ** 2)
    assert abs(found["mean"] - mean) < 4 * error, (found, mean)
    assert found["sd"] == pytest.approx(sd, rel=0.15)


def exact_eight_schools() -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of mu and tau by integrating over tau; mu given tau is normal."""
    tau = np.linspace(1e-4, 120.0, 200_000)
    precision = 1 / (SCHOOL_ERRORS**2 + tau[:, None] ** 2)
    variance = 1 / (precision.sum(axis=1) + 1 / 25)
    center = variance * (precision * SCHOOL_EFFECTS).sum(axis=1)
    quadratic = (precision * SCHOOL_EFFECTS**2).sum(axis=1) - center**2 / variance
    log_weight = 0.5 * (np.log(precision).sum(axis=1) + np.log(variance) - quadratic) - np.log1p((tau / 5) ** 2)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mu, tau_mean = (weight * center).sum(), (weight * tau).sum()
    mu_sd = np.sqrt((weight * (variance + center**2)).sum() - mu**2)
    return {"mu": (mu, mu_sd), "tau": (tau_mean, np.sqrt((weight * tau**2).sum() - tau_mean**2))}


def test_gaussian_has_its_mean_and_covariance(gaussian: Run) -> None:
    parameters = gaussian.result.diagnostics["parameters"]
    for label in ("x[0]", "x[1]"):
        assert_close_to_reference(parameters[label], 0.0, 1.0)
    posterior, _ = open_groups(gaussian)
    covariance = np.cov(posterior["x"].values.reshape(-1, 2), rowvar=False)
    np.testing.assert_allclose(covariance, GAUSSIAN_COVARIANCE, atol=0.1)


def test_eight_schools_agrees_with_the_integral_and_with_posteriordb(eight_schools: Run) -> None:
    exact = exact_eight_schools()
    assert exact["mu"] == pytest.approx((4.4, 3.3), abs=0.06)  # posteriordb, eight_schools-noncentered
    assert exact["tau"] == pytest.approx((3.6, 3.2), abs=0.06)
    for label, (mean, sd) in exact.items():
        assert_close_to_reference(eight_schools.result.diagnostics["parameters"][label], mean, sd)


def test_nuts_adapts_each_chain_to_the_target(eight_schools: Run) -> None:
    _, stats = open_groups(eight_schools)
    step_sizes = stats["step_size"].values
    assert (step_sizes == step_sizes[:, :1]).all(), "after the warm-up the step size rests"
    assert len(np.unique(step_sizes[:, 0])) == 16
    assert 0.7 < eight_schools.result.metrics["accept_rate"] < 0.95


def test_results_plots_and_metrics_are_complete(eight_schools: Run) -> None:
    posterior, stats = open_groups(eight_schools)
    assert {name: array.shape for name, array in posterior.items()} == {
        "mu": (16, 500),
        "tau": (16, 500),
        "theta": (16, 500, 8),
    }
    assert list(posterior["school"].values[:2]) == ["Choate", "Deerfield"]
    assert set(stats) == {"lp", "diverging", "step_size", "acceptance_rate", "n_steps"}
    assert stats["diverging"].dtype == bool
    metrics = eight_schools.result.metrics
    assert set(metrics) >= {"max_rhat", "min_ess_bulk", "min_ess_tail", "num_divergences", "accept_rate"}
    assert metrics["max_rhat"] < 1.05
    assert min(metrics["compile_s"], metrics["run_s"], metrics["draws_per_s"]) > 0
    plots = eight_schools.folder / "plots"
    for name in ("log_density", "trace", "rank", "scatter", "adaptation"):
        picture = imread(plots / f"{name}.png")
        assert picture.shape[0] > 200
        assert picture.std() > 0.02, f"{name} is blank"


def test_progress_goes_chunk_by_chunk_to_the_end(gaussian: Run) -> None:
    steps = [event["step"] for event in gaussian.events if event["type"] == "report"]
    assert steps == sorted(steps)
    assert {100, 700, 1300, 1400, 2000} <= set(steps)


def test_one_device_on_one_host_is_never_called_ok(gaussian: Run) -> None:
    verdicts = [event for event in gaussian.events if event["type"] == "verdict"]
    assert [verdict["step"] for verdict in verdicts] == [700, 1300, 1400, 2000]  # and before the checkpoint at 1300
    assert {verdict["status"] for verdict in verdicts} == {"nothing-checked"}


def test_a_resumed_run_gives_the_bits_of_the_unbroken_one(gaussian: Run) -> None:
    forget_after(str(gaussian.folder / "checkpoints"), 1300)
    resumed = run_here(Config(draws_per_dispatch=77), gaussian.folder, resume=True)
    assert resumed.result.result_digest == gaussian.result.result_digest
    assert min(event["step"] for event in resumed.events if event["type"] == "report") > 1300


def test_a_checkpoint_of_other_parameters_is_refused(small: Job) -> None:
    state, history = small.gather()
    small.save(120, state, history)
    small.saver.wait()
    for change, message in (
        ({"step_size": 0.2}, r"made with step_size=0.1; resume"),
        ({"num_draws": 50}, r"num_draws=50: the checkpoint has 60; it may only grow"),
    ):
        other = dataclasses.replace(small, config=Config(**SMALL | change))
        with pytest.raises(ConfigError, match=message):
            other.restore()


def test_chains_do_not_depend_on_padding_or_on_other_chains(small: Job, tmp_path: Path) -> None:
    draws = small.gather()[1].draws["x"]
    job = start_job(Config(**SMALL | {"num_chains": 5}), Context.local(tmp_path))
    job.sample(0)
    assert np.array_equal(job.gather()[1].draws["x"], draws[:5])
    assert len(np.unique(draws[:, -1, 0])) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_hosts", "devices_per_host", "num_settings"),
    [*LAYOUTS, *(pytest.param(*one, marks=pytest.mark.long) for one in MORE_LAYOUTS)],
)
def test_every_layout_gives_the_same_bits(
    num_hosts: int, devices_per_host: int, num_settings: int, digests_here: list[str]
) -> None:
    ranks = run_ranks(
        "tests.workloads.independent_chains_programs:sample",
        num_hosts=num_hosts,
        devices_per_host=devices_per_host,
        seed=3,
        settings=SETTINGS[:num_settings],
    )
    for outcomes in ranks:
        assert [outcome["digest"] for outcome in outcomes] == digests_here[:num_settings]
        assert {outcome["status"] for outcome in outcomes} == {"ok"}
        assert all(outcome["bytes_checked"] > 0 for outcome in outcomes)
        assert all((outcome["bytes_single_copy"] == 0) == (num_hosts > 1) for outcome in outcomes)
        if num_hosts > 1:
            for outcome in outcomes:
                assert re.search(rf"history/draws/.*host-{num_hosts - 1}", outcome["tampered"]), outcome["tampered"]
                for rank, said in enumerate(outcome["tampered_states"]):
                    # What the devices compute from it is no evidence: those of a host with wrong bits may be the most.
                    assert "in 1 of " in said and "state/position/" in said and f"host-{rank}/memory" in said, said
                    assert "/cpu:" not in said


@pytest.mark.parametrize(
    ("changed", "num_chains", "words"),
    [
        ({"matrix": 1}, 24, "program advance: rank 2 differs from ranks 0, 1; nothing has run. First difference"),
        ({"scale": 2.0}, 24, "rank 2 on host-2: "),
        ({"matrix": 1, "size": 100}, 24, "program advance: rank 2 differs from ranks 0, 1; nothing has run. "),
        ({"matrix": 1}, 8, "ok"),  # two blocks: rank 2 has no chains
        ({}, 24, "ok"),
    ],
)
def test_a_model_that_differs_on_one_host_is_refused(changed: dict[str, Any], num_chains: int, words: str) -> None:
    """The log density is the same where only what is reported differs: no replica check of states would see it."""
    ranks = run_ranks(
        "tests.workloads.independent_chains_programs:other_model",
        num_hosts=3, devices_per_host=1, odd=2, num_chains=num_chains, **{"size": 100 if "size" in changed else 3},
        **{name: value for name, value in changed.items() if name != "size"},
    )  # fmt: skip
    assert len(set(ranks)) == 1
    assert words in ranks[0] if words != "ok" else ranks[0] == "ok", ranks[0]


def test_a_model_that_differs_is_told_to_ranks_without_chains_too() -> None:
    ranks = run_ranks(
        "tests.workloads.independent_chains_programs:other_model",
        num_hosts=3, devices_per_host=1, odd=1, num_chains=8, matrix=1,
    )  # fmt: skip
    assert len(set(ranks)) == 1
    assert ranks[0].startswith("program advance: rank 0 and rank 1 differ; nothing has run. "), ranks[0]


def test_draws_that_differ_between_devices_are_found() -> None:
    ranks = run_ranks("tests.workloads.independent_chains_programs:other_trace", num_hosts=3, devices_per_host=1)
    assert all("/draws/" in said and "culprit: host-2/" in said for said in ranks), ranks


def test_a_flip_asked_for_happens_in_mid_run_where_the_ranks_next_compare() -> None:
    first, last = run_ranks(
        "tests.workloads.independent_chains_programs:flip_on_the_way",
        num_hosts=2, devices_per_host=1, context={"check_every": 16, "checkpoint_every": 0},
        fault="flip-bit device=1 step=10", rank=1,
    )  # fmt: skip
    injected, flipped = last["said"]
    assert (injected["type"], injected["step"], first["said"]) == ("injected", 16, [])
    assert (flipped["type"], flipped["step"], flipped["in_memory"]) == ("flipped", 16, True)
    for said in (first["raised"], last["raised"]):
        assert "replicas differ at step 16" in said and f"state/{flipped['leaf']}: " in said, said
        assert "host-1/memory" in said, said


@pytest.mark.slow
def test_a_device_does_not_wait_for_a_slower_one() -> None:
    (ready,) = run_ranks(
        "tests.workloads.independent_chains_programs:outrun", num_hosts=1, devices_per_host=2, num_draws=50_000
    )
    assert ready == {"slow": [False, False], "fast": [True, True]}


def test_divergences_and_bad_mixing_are_said_in_words(tmp_path: Path) -> None:
    config = Config(model="funnel", num_chains=4, num_warmup=50, num_draws=200, step_size=1.5)
    job = start_job(config, Context.local(tmp_path))
    job.sample(0)
    metrics, diagnostics = assess(config, job.gather()[1], job.layout)
    assert metrics["num_divergences"] > 0
    problems = diagnostics["problems"]
    assert any("transitions after the warm-up diverged, in" in problem for problem in problems), problems
    assert any("ESS is below 400" in problem for problem in problems), problems


def test_log_densities_agree_with_scipy() -> None:
    x, z = np.array([0.3, -1.2]), np.linspace(-1, 1, 9)
    normal = scipy.stats.norm.logpdf
    position = {"mu": 1.5, "log_tau": 0.7, "theta_raw": z[:8]}
    tau = np.exp(0.7)
    expected = {
        "gaussian": ({"x": x}, scipy.stats.multivariate_normal([0, 0], GAUSSIAN_COVARIANCE).logpdf(x)),
        "funnel": ({"v": 1.1, "x": z}, normal(1.1, 0, 3) + normal(z, 0, np.exp(0.55)).sum()),
        "eight-schools": (
            position,
            normal(1.5, 0, 5)
            + scipy.stats.halfcauchy(scale=5).logpdf(tau)
            + 0.7
            + normal(z[:8]).sum()
            + normal(SCHOOL_EFFECTS, 1.5 + tau * z[:8], SCHOOL_ERRORS).sum(),
        ),
    }
    assert set(expected) == set(MODELS)
    for name, (values, log_density) in expected.items():
        arrays = jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, jax.numpy.float32), values)
        assert float(MODELS[name].log_density(arrays)) == pytest.approx(log_density, rel=1e-5), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_samples": "10"}, "did you mean 'num_draws'"),
        ({"block_size": "1"}, "block_size=1: must be at least 2"),
        ({"model": "eight-school"}, "did you mean 'eight-schools'"),
        ({"sampler": "gibbs"}, "must be one of hmc, nuts"),
        ({"adapt_step_size": "true", "num_warmup": "1"}, "leaves no transition to adapt in"),
        ({"step_size": "0"}, "must be greater than 0"),
    ],
)
def test_mistakes_are_refused_with_what_would_fit(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(Config, settings)


def test_the_digest_sees_one_bit(small: Job) -> None:
    _, history = small.gather()
    before = digest(history)
    history.stats["lp"].view(np.uint32)[0, 0] ^= 1
    assert digest(history) != before
