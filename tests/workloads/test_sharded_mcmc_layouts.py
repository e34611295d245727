"""The same posterior on 1 x 1, 1 x 4, 2 x 2 and 4 x 1 hosts x devices, by real processes."""

import json
import re

import numpy as np
import pytest
import xarray

from tests.conftest import data_folder
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

GRADIENTS = "tests.workloads.sharded_gradient_programs:gradients"
PROGRAMS = "tests.workloads.sharded_mcmc_programs"
LAYOUTS = ((1, 4), (2, 2), (4, 1))
COUNTS = [1000, 1001, 3]  # a multiple of four, not one, and fewer examples than devices
USERS, MOVIES, RANK, CHAINS = 21, 20, 2, 2
SHORT = {
    "model": "matrix-factorization",
    "num_users": USERS,
    "num_movies": MOVIES,
    "rank": RANK,
    "num_chains": CHAINS,
    "num_warmup": 5,
    "num_draws": 7,
    "num_leapfrog_steps": 4,
    "draws_per_dispatch": 4,
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Path of an .npz of 1,001 images of 8 x 8 noise."""
    generator = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("images") / "images.npz"
    splits = {"train": 1001, "test": 101}
    np.savez(
        path,
        **{f"{split}_images": generator.integers(0, 256, (size, 8, 8), np.uint8) for split, size in splits.items()},
        **{f"{split}_labels": generator.integers(0, 10, size) for split, size in splits.items()},
    )
    return str(path)


def gradients(num_hosts, devices_per_host, data, **more):
    return run_ranks(
        GRADIENTS, num_hosts=num_hosts, devices_per_host=devices_per_host, data=data, num_examples=COUNTS, **more
    )


@pytest.fixture(scope="module")
def one_device(images):
    return gradients(1, 1, images)[0]


def relative_error(found, expected):
    found, expected = (np.concatenate([np.ravel(part) for part in tree.values()]) for tree in (found, expected))
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout[0]}x{layout[1]}")
def test_gradient_is_that_of_one_device(one_device, images, layout):
    ranks = gradients(*layout, images)
    for name, expected in one_device.items():
        for rank in ranks:
            assert rank[name]["log_density"] == pytest.approx(expected["log_density"], rel=1e-6), name
            assert relative_error(rank[name]["gradient"], expected["gradient"]) < 1e-6, name
        assert sum(rank[name]["local_rows"] for rank in ranks) == ranks[0][name]["global_rows"]
    assert ranks[0]["logistic 1001"]["global_rows"] == 1004
    assert ranks[0]["matrix"]["global_rows"] == 24


@pytest.mark.long
def test_gradient_in_float64(one_device, images):
    (wide,) = gradients(1, 1, images, x64=True)
    for name, narrow in one_device.items():
        assert (wide[name]["dtype"], narrow["dtype"]) == ("float64", "float32")
        assert 0.0 < relative_error(narrow["gradient"], wide[name]["gradient"]) < 2e-6


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    """Folder of the short run on one device."""
    folder = tmp_path_factory.mktemp("1x1")
    run_ranks(f"{PROGRAMS}:run", num_hosts=1, devices_per_host=1, folder=folder, **SHORT)
    return folder


@pytest.fixture(scope="module")
def two_by_two(tmp_path_factory):
    """`(what each rank returned, folder)` of the short run on 2 x 2: unbroken, and resumed at transition 6."""
    folder = tmp_path_factory.mktemp("2x2")
    values = run_ranks(
        f"{PROGRAMS}:unbroken_and_resumed",
        num_hosts=2,
        devices_per_host=2,
        folder=folder,
        context={"checkpoint_every": 6, "check_every": 5},
        resume_step=6,
        **SHORT,
    )
    return values, folder


def events_of(folder, rank, kind):
    events = json.loads((folder / f"value-{rank}.json").read_text())["events"]
    return [event for event in events if event["type"] == kind]


def read_posterior(folder):
    with xarray.open_datatree(folder / "rank-0" / "results" / "posterior.nc", engine="h5netcdf") as tree:
        return tree.load()


@pytest.mark.long
def test_resumed_run_gives_the_same_bits(two_by_two):
    values, folder = two_by_two
    assert len({run["digest"] for rank in values for run in rank}) == 1
    unbroken, resumed = (run["metrics"] for run in values[0])
    exact = [name for name in unbroken if name not in ("compile_s", "run_s", "gradients_per_s")]
    assert {name: unbroken[name] for name in exact} == {name: resumed[name] for name in exact}
    # 12 transitions, at most 4 in a dispatch, and an end where a check (5, 10) or a checkpoint (6) is due.
    steps = [event["step"] for event in events_of(folder, 1, "report")]
    unbroken, resumed = [4, 5, 6, 8, 10, 12], [8, 10, 12]
    assert steps == unbroken + resumed


def test_draws_with_sharded_users_are_those_of_one_device(one_by_one, two_by_two):
    one, four = read_posterior(one_by_one), read_posterior(two_by_two[1])
    assert four["posterior"]["user_factors"].dims == ("chain", "draw", "user", "rank")
    assert four["posterior"]["user_factors"].shape == (CHAINS, 7, USERS, RANK)
    assert float(four["posterior"]["user_factors"].std("draw").min()) > 0.0
    for name in ("user_factors", "movie_factors", "intercept"):
        np.testing.assert_allclose(four["posterior"][name], one["posterior"][name], rtol=1e-4, atol=1e-4)
    for name in ("acceptance_rate", "step_size"):
        np.testing.assert_allclose(four["sample_stats"][name], one["sample_stats"][name], atol=1e-3)


def test_verdict_counts_sharded_state_as_single_copies_and_the_history_as_copied(two_by_two):
    users = 24  # 21, padded to a multiple of four
    # Of each chain: position and gradient of the movie factors and of the intercept, and four scalars.
    replicated = 4 * CHAINS * (2 * (MOVIES * RANK + 1) + 4)
    sharded = 4 * CHAINS * 2 * users * RANK + 4 * users * MOVIES  # and the sum of the predictions
    stats, draw = CHAINS * (4 * 4 + 1), 4 * CHAINS * ((USERS + MOVIES) * RANK + 1)  # of a transition, in host memory
    for rank in (0, 1):
        verdicts = events_of(two_by_two[1], rank, "verdict")
        assert [verdict["step"] for verdict in verdicts] == [5, 6, 10, 12, 10, 12]
        for verdict in verdicts:
            history = verdict["step"] * stats + (verdict["step"] - SHORT["num_warmup"]) * draw
            assert (verdict["bytes_checked"], verdict["bytes_single_copy"]) == (replicated + history, sharded)


@pytest.mark.long
def test_mnist_comes_near_the_guide():
    """TFP's guide: 0.9189 and 0.9264, after a longer run than these 40 transitions."""
    data = data_folder() / "mnist.npz"
    if not data.exists():
        pytest.skip(f"{data} is absent (SPMD_LAUNCH_TEST_DATA names its folder)")
    ranks = run_ranks(
        f"{PROGRAMS}:run",
        num_hosts=2,
        devices_per_host=2,
        data=str(data.resolve()),
        num_warmup=20,
        num_draws=20,
        num_leapfrog_steps=10,
    )
    metrics = ranks[0]["metrics"]
    assert metrics["test_accuracy_mean"] == pytest.approx(0.9189, abs=0.005)
    assert metrics["test_accuracy_bma"] == pytest.approx(0.9264, abs=0.01)
    assert metrics["test_accuracy_bma"] > metrics["test_accuracy_mean"]


def test_a_flip_in_the_history_of_one_host_is_told_with_host_place_and_bit():
    settings = SHORT | {"num_warmup": 2, "num_draws": 4, "draws_per_dispatch": 3}
    told = run_ranks(
        f"{PROGRAMS}:with_a_flip_in_the_history", num_hosts=3, devices_per_host=1, step=4,
        context={"check_every": 3}, **settings,
    )  # fmt: skip
    for found in told:
        assert (found["suspects"], found["files"]) == (["host-2"], [])
        assert "replicas differ at step 6, in 1 of " in found["said"]
        assert (
            "history/stats/log_density: 2 x (host-0/memory, host-1/memory) against 1 x (host-2/memory)" in found["said"]
        )
        assert "first at [4, 1]: " in found["said"] and "bit 20; 1 of 12 elements differ" in found["said"]


def test_the_host_with_other_data_is_named_by_majority():
    for message in run_ranks(f"{PROGRAMS}:other_data_on_first_rank", num_hosts=3, devices_per_host=1):
        words = r"sha256 of the data: rank 0 \(host-0\): got \w+, expected \w+ as on ranks 1, 2 \(host-1, host-2\)\."
        assert re.search(words, message), message
