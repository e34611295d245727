"""The parts of `sharded-mcmc`, and one whole run, in one plain process."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from jax.sharding import PartitionSpec as P

from workloads import checkpoint
from workloads.context import Context
from workloads.errors import ConfigError
from workloads.layout import Layout
from workloads.params import parse
from workloads.sharded_mcmc import logistic, matrix_factorization
from workloads.sharded_mcmc.config import Config
from workloads.sharded_mcmc.datasets import load_digits, load_npz, synthetic_watch_matrix
from workloads.sharded_mcmc.history import MIB, History
from workloads.sharded_mcmc.model import Array, Model
from workloads.sharded_mcmc.placement import DATA_AXIS, shard_row_mask, shard_rows
from workloads.sharded_mcmc.program import Program
from workloads.sharded_mcmc.run import next_stop, run
from workloads.sharded_mcmc.sampler import Sampler


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    return Context.local(tmp_path_factory.mktemp("mesh")).mesh({DATA_AXIS: 1})


def image_arrays(**changed):
    arrays = {
        "train_images": np.zeros((5, 3, 3), np.uint8),
        "train_labels": np.array([0, 1, 2, 1, 0]),
        "test_images": np.zeros((2, 3, 3), np.uint8),
        "test_labels": np.array([1, 3]),
    }
    return {name: array for name, array in (arrays | changed).items() if array is not None}


def test_config_fits_every_layout():
    Config(num_users=1).check(Layout(num_hosts=4, devices_per_host=8))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "logistics"}, "did you mean 'logistic'"),
        ({"num_samples": "5"}, "did you mean 'num_draws'"),
        ({"step_size": "0"}, "greater than 0"),
        ({"target_accept": "1"}, "at most 0.99"),
        ({"model": "matrix-factorization", "data": "x.npz"}, "only model=logistic reads it"),
        ({"model": "matrix-factorization", "num_examples": "3"}, "only model=logistic reads it"),
    ],
)
def test_config_refuses(settings, words):
    with pytest.raises(ConfigError, match=words):
        parse(Config, settings)


def test_digits_are_split_without_overlap():
    digits = load_digits()
    assert (len(digits.train_labels), len(digits.test_labels), digits.num_classes) == (1437, 360, 10)
    assert digits.train_images.max() == digits.max_pixel


def test_npz_is_read(tmp_path):
    np.savez(tmp_path / "images.npz", **image_arrays())
    images = load_npz(str(tmp_path / "images.npz"))
    assert (images.train_images.shape, images.test_labels.tolist(), images.num_classes) == ((5, 9), [1, 3], 4)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"test_labels": None}, r"has no array test_labels .*it has: train_images"),
        ({"train_images": np.zeros((5, 3, 3))}, r"train_images is float64\(5, 3, 3\), must be uint8"),
        ({"train_labels": np.zeros(4, int)}, r"train_labels is int64\(4,\).*each of 5 train_images"),
        ({"test_labels": np.array([0, -1])}, "whole numbers from 0"),
        ({"test_images": np.zeros((2, 4), np.uint8)}, "test_images"),
    ],
)
def test_npz_of_another_form_is_refused(tmp_path, changed, words):
    np.savez(tmp_path / "images.npz", **image_arrays(**changed))
    with pytest.raises(ConfigError, match=words):
        load_npz(str(tmp_path / "images.npz"))


def test_no_npz_is_refused(tmp_path):
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(ConfigError, match=r"is no \.npz file"):
        load_npz(str(tmp_path / "text.npz"))


def test_watch_matrix_is_always_the_same():
    first, second = synthetic_watch_matrix(30, 40, 3), synthetic_watch_matrix(30, 40, 3)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert 0.1 < first.watched.mean() < 0.35
    assert 0.05 < first.held_out.mean() < 0.15


def test_logistic_density_and_gradient_are_the_formula(mesh):
    generator = np.random.default_rng(1)
    x, y = generator.random((50, 6)), generator.integers(0, 3, 50)
    weights, biases = generator.standard_normal((6, 3)), generator.standard_normal(3)
    train = logistic.Examples(jnp.asarray(x, jnp.float32), jnp.asarray(y), jnp.arange(50) < 47)
    position = {"weights": jnp.asarray(weights, jnp.float32), "biases": jnp.asarray(biases, jnp.float32)}
    value, gradient = jax.value_and_grad(logistic.log_density)(position, logistic.Split(train, train))

    x, y = x[:47], y[:47]  # the last three are padding
    scores = x @ weights + biases
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    prior = sum(-0.5 * np.sum(part**2) - 0.5 * part.size * np.log(2 * np.pi) for part in (weights, biases))
    residual = np.eye(3)[y] - probabilities
    assert float(value) == pytest.approx(prior + np.log(probabilities[np.arange(47), y]).sum(), rel=1e-6)
    np.testing.assert_allclose(gradient["weights"], x.T @ residual - weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient["biases"], residual.sum(axis=0) - biases, rtol=1e-4, atol=1e-5)


def test_padded_users_and_held_out_entries_have_no_say(mesh):
    generator = np.random.default_rng(2)
    seen = generator.random((4, 5)) < 0.8
    seen[3] = False
    data = matrix_factorization.Ratings(
        watched=jnp.asarray(generator.random((4, 5)) < 0.4),
        is_seen=jnp.asarray(seen),
        is_held_out=jnp.zeros((4, 5), bool),
        is_real=jnp.arange(4) < 3,
    )
    position = {
        name: jnp.asarray(generator.standard_normal(shape), jnp.float32)
        for name, shape in {"user_factors": (4, 2), "movie_factors": (5, 2), "intercept": ()}.items()
    }
    value, gradient = jax.value_and_grad(matrix_factorization.log_density)(position, data)
    users, movies, intercept = (np.asarray(part, np.float64) for part in position.values())
    probability = 1 / (1 + np.exp(-(intercept + users @ movies.T)))
    likelihood = np.log(np.where(data.watched, probability, 1 - probability))[seen].sum()
    parts = (users[:3], movies, intercept)
    prior = sum(-0.5 * np.sum(part**2) - 0.5 * part.size * np.log(2 * np.pi) for part in parts)
    assert float(value) == pytest.approx(prior + likelihood, rel=1e-6)
    assert not np.asarray(gradient["user_factors"][3]).any()
    assert np.asarray(gradient["user_factors"][:3]).all()


def test_area_under_curve_counts_ties_half():
    scores, positive = np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, True, False, True])
    pairs = [(a, b) for a in scores[positive] for b in scores[~positive]]
    expected = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs])
    assert matrix_factorization.area_under_curve(scores, positive) == pytest.approx(expected)
    assert np.isnan(matrix_factorization.area_under_curve(scores, np.ones(4, bool)))


def test_rows_are_placed_whole(mesh):
    rows = np.arange(10.0).reshape(5, 2)
    placed = shard_rows(rows, mesh, lambda local: local * 2)
    np.testing.assert_array_equal(placed, rows * 2)
    assert np.asarray(shard_row_mask(5, mesh)).all()


def gaussian_program(mesh, num_chains):
    """Two independent normals, N(3, 1) and N(-1, 0.5)."""
    mean, scale = jnp.array([3.0, -1.0]), jnp.array([1.0, 0.5])
    model = Model(
        name="gaussian",
        parts={"x": Array.replicated(axis=2)},
        identified=("x",),
        prediction=Array(dims=("axis",), shape=(2,), placed_shape=(2,), spec=P()),
        data=(mean, scale),
        log_density=lambda position, data: -0.5 * jnp.sum(((position["x"] - data[0]) / data[1]) ** 2),
        predict=lambda position, data: position["x"],
        score=lambda prediction, data: {"first": prediction[0]},
        assess=lambda prediction: {},
        outcomes=lambda prediction: (prediction, prediction > 0),
    )
    sampler = Sampler(
        log_density=lambda position: jnp.zeros(()),
        part_names=("x",),
        step_size=0.1,
        num_leapfrog_steps=5,
        num_adaptation_steps=100,
        target_accept=0.8,
    )
    return Program(
        model=model,
        sampler=sampler,
        mesh=mesh,
        num_chains=num_chains,
        num_warmup=150,
        init_scale=1.0,
        draws_per_dispatch=400,
    )


@pytest.fixture(scope="module")
def gaussian_chains(mesh):
    """`{number of chains: (state, trace as NumPy)}` after 150 + 250 transitions."""
    found = {}
    for num_chains in (16, 2):
        program = gaussian_program(mesh, num_chains)
        data, key = program.model.data, np.asarray(jax.random.key_data(jax.random.key(7)))
        state = jax.jit(program.init)(data, key)
        state, trace = jax.jit(program.advance)(state, data, key, np.int32(0), np.int32(400))
        found[num_chains] = state, jax.tree.map(np.asarray, trace)
    return found


def test_sampler_finds_the_moments_of_a_gaussian(gaussian_chains):
    state, trace = gaussian_chains[16]
    draws = trace["position"]["x"][150:]
    of_chains = draws.mean(axis=0)  # 16 independent estimates, from which the error follows
    error = of_chains.std(axis=0, ddof=1) / np.sqrt(16)
    np.testing.assert_array_less(np.abs(of_chains.mean(axis=0) - [3.0, -1.0]), 4 * error)
    np.testing.assert_allclose(draws.std(axis=(0, 1)), [1.0, 0.5], rtol=0.08)
    np.testing.assert_allclose(state["prediction_sum"], draws.sum(axis=(0, 1)), rtol=1e-4)


def test_step_size_adapts_then_stays(gaussian_chains):
    stats = gaussian_chains[16][1]["stats"]
    assert 0.7 < stats["accept_ratio"][150:].mean() < 0.95
    assert (stats["step_size"][100:] == stats["step_size"][100]).all()
    assert np.ptp(stats["step_size"][:100], axis=0).min() > 0.1
    assert not stats["diverging"][100:].any()


def test_chains_do_not_depend_on_how_many_there_are(gaussian_chains):
    many, few = (gaussian_chains[number][1]["position"]["x"] for number in (16, 2))
    np.testing.assert_allclose(many[:20, :2], few[:20], rtol=1e-4, atol=1e-4)
    assert not np.allclose(few[:, 0], few[:, 1])


def test_the_gradient_at_the_start_of_a_transition_is_not_computed_anew(mesh):
    """Three products: forward and backward at a leapfrog step, and the prediction; two more if it were."""
    model = logistic.logistic_model(load_digits(), mesh)
    program = dataclasses.replace(
        gaussian_program(mesh, 2),
        model=model,
        sampler=dataclasses.replace(gaussian_program(mesh, 2).sampler, part_names=tuple(model.parts)),
    )
    key, zero = np.asarray(jax.random.key_data(jax.random.key(7))), np.int32(0)
    state = jax.eval_shape(program.init, model.data, key)
    compiled = jax.jit(program.advance).lower(state, model.data, key, zero, zero).compile()
    assert len(re.findall(r" dot\(", compiled.as_text())) == 3


def history(num_draws=10, max_draws_mib=1, size=4):
    return History.empty(
        num_warmup=3,
        num_draws=num_draws,
        num_chains=2,
        parts={"x": Array.replicated(axis=size)},
        stats={"log_density": np.dtype(np.float32)},
        max_draws_mib=max_draws_mib,
    )


def test_history_keeps_every_draw_where_they_fit():
    record = history()
    for start in (0, 4, 8, 12):
        stop = min(start + 4, 13)
        rows = record.rows_to_keep(start, stop)
        values = np.arange(start, start + 4)[:, None, None] * np.ones((4, 2, 4))
        record.record_draws(start, rows, {"x": values})
    np.testing.assert_array_equal(record.posterior()["x"][1, :, 2], np.arange(3, 13))


def test_history_thins_draws_that_do_not_fit():
    record = history(num_draws=10, size=MIB // 4)  # 1 MiB a draw of each of two chains
    assert record.keep_every == 10
    assert record.draws["x"].nbytes == 2 * MIB
    record = history(num_draws=10, size=MIB // 4, max_draws_mib=7)
    assert (record.keep_every, len(record.draws["x"])) == (3, 4)
    assert record.rows_to_keep(0, 13).tolist() == [3, 6, 9, 12]
    assert record.sample_stats()["log_density"].shape == (2, 4)


def test_dispatches_end_where_something_is_due():
    assert next_stop(0, 100, (10, 0, 7)) == 7
    assert next_stop(7, 100, (10, 0, 7)) == 10
    assert next_stop(98, 99, (10, 0, 7)) == 99


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    events = []
    context = Context.local(folder, seed=3, emit=events.append)
    result = run(Config(num_warmup=40, num_draws=30, num_leapfrog_steps=8), context)
    return result, folder, events


def test_digits_are_learned(digits_run):
    metrics = digits_run[0].metrics
    assert metrics["test_accuracy_mean"] > 0.9
    assert metrics["test_accuracy_bma"] > metrics["test_accuracy_mean"]
    assert 0.4 < metrics["accept_rate"] <= 1.0
    assert {"max_rhat", "min_ess_bulk", "compile_s", "run_s", "gradients_per_s", "step_size"} <= metrics.keys()


def test_result_files(digits_run):
    result, folder, _ = digits_run
    with xarray.open_datatree(folder / "results" / "posterior.nc", engine="h5netcdf") as tree:
        posterior, stats = tree["posterior"].to_dataset(), tree["sample_stats"].to_dataset()
        assert posterior["weights"].dims == ("chain", "draw", "feature", "label")
        assert posterior["weights"].shape == (2, 30, 64, 10)
        assert {"lp", "acceptance_rate", "step_size", "diverging", "test_accuracy"} <= set(stats)
        # The last draw's log density, computed anew.
        last = {name: jnp.asarray(posterior[name][0, -1].values) for name in ("weights", "biases")}
        lp = float(stats["lp"][0, -1])
    digits = load_digits()
    images = jnp.asarray(digits.train_images / 16.0, jnp.float32)
    train = logistic.Examples(images, jnp.asarray(digits.train_labels), jnp.ones(len(images), bool))
    assert float(logistic.log_density(last, logistic.Split(train, train))) == pytest.approx(lp, rel=1e-5)
    names = {path.name for path in (folder / "plots").iterdir()}
    assert names == {"log_density.png", "sampler.png", "trace.png", "rank.png", "calibration.png"}
    assert len(result.result_digest) == 64


def test_progress_and_checkpoint(digits_run):
    _, folder, events = digits_run
    reports = [event for event in events if event["type"] == "report"]
    assert [event["step"] for event in reports] == [10, 20, 30, 40, 50, 60, 70]
    assert {"accept_ratio", "step_size", "log_density", "test_accuracy"} <= reports[0]["metrics"].keys()
    assert checkpoint.latest_step(str(folder / "checkpoints")) == 70
