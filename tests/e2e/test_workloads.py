"""The three workloads through the launcher, small, on real input."""

import re

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from launcher.job_folder import JobFolder
from tests.conftest import Cli, data_folder, set_words

pytestmark = pytest.mark.cluster


@pytest.mark.slow
def test_independent_chains(cli: Cli, cluster: str) -> None:
    result = cli.json(
        "submit", "independent-chains", "--set", "model=eight-schools", "--set", "sampler=nuts",
        "--set", "num_warmup=200", "--set", "num_draws=200", "--seed", "1", "--name", "a",
    )  # fmt: skip
    assert result["state"] == "SUCCEEDED"
    assert result["metrics"]["max_rhat"] < 1.2
    assert {path.rpartition(".")[2] for path in result["plots"]} == {"png"}
    assert len(result["plots"]) >= 4
    assert any(path.endswith(".nc") for path in result["results"])
    assert result["integrity"]["status"] == "ok"
    assert result["checkpoints"]


def test_a_loss_that_is_not_finite_is_told_at_its_step_and_with_the_result(cli: Cli, cluster: str) -> None:
    small = ("steps=12", "num_layers=1", "width=32", "ff_width=64", "context_length=16", "sample_length=0")
    settings = set_words((*small, "learning_rate=1e30", "warmup_steps=1"))
    out = cli("submit", "transformer", *settings, "--name", "not-finite")
    (note,) = [text for text in cli.job("not-finite")["notes"] if text.startswith("train_loss")]
    assert re.fullmatch(r"train_loss is (nan|inf), first seen at step [2-9]", note)
    assert cli.json("results", "not-finite")["diagnostics"]["problems"][0] == note
    assert out.count(f"! {note}") >= 2, "while it ran, and with the result"
    assert cli.job("not-finite")["result"]["integrity"]["status"] == "ok"


def test_sharded_logistic_regression(cli: Cli, cluster: str) -> None:
    result = cli.json(
        "submit",
        "sharded-mcmc",
        "--set",
        "num_warmup=40",
        "--set",
        "num_draws=20",
        "--name",
        "b",
        "--check-every",
        "30",
    )
    assert result["metrics"]["test_accuracy_bma"] > 0.8
    assert result["integrity"]["status"] == "ok"
    assert result["integrity"]["bytes_single_copy"] >= 0
    assert len({verdict["step"] for verdict in result["verdicts"]}) >= 2
    assert result["plots"]


def test_sharded_logistic_regression_on_mnist(cli: Cli, cluster: str) -> None:
    data = data_folder() / "mnist.npz"
    if not data.exists():
        pytest.skip(f"the MNIST archive is not there: {data}")
    result = cli.json(
        "submit", "sharded-mcmc", "--set", f"data={data}", "--set", "num_warmup=5", "--set", "num_draws=5",
        "--set", "num_leapfrog_steps=5", "--set", "num_examples=5000", "--name", "b-mnist",
    )  # fmt: skip
    assert result["metrics"]["test_accuracy_bma"] > 0.5
    assert cli.job("b-mnist")["spec"]["files"]["data"]["name"] == "mnist.npz"


def test_matrix_factorization(cli: Cli, cluster: str) -> None:
    result = cli.json(
        "submit", "sharded-mcmc", "--set", "model=matrix-factorization", "--set", "num_warmup=30",
        "--set", "num_draws=30", "--name", "m",
    )  # fmt: skip
    assert result["state"] == "SUCCEEDED"
    assert np.isfinite(list(result["metrics"].values())).all()
    assert result["integrity"]["bytes_single_copy"] > 0  # the user factors, sharded


@pytest.mark.long  # test_transformer_on_the_standard_library has the same path
def test_transformer_on_shakespeare(cli: Cli, cluster: str) -> None:
    data = data_folder() / "tinyshakespeare.txt"
    if not data.exists():
        pytest.skip(f"the Shakespeare text is not there: {data}")
    result = cli.json(
        "submit", "transformer", "--set", f"data={data}", "--set", "mesh=data:2,model:2", "--set", "steps=40",
        "--checkpoint-every", "20", "--name", "c",
    )  # fmt: skip
    assert result["metrics"]["val_loss"] < 3.3  # ln(65) = 4.17 before the first step
    assert [checkpoint["step"] for checkpoint in result["checkpoints"]] == [20, 40]
    assert any(path.endswith("sample.txt") for path in result["results"])
    assert result["integrity"]["status"] == "ok"


@pytest.mark.slow
@pytest.mark.long  # tests/e2e/test_pages.py trains on it too
def test_transformer_on_the_standard_library(cli: Cli, cluster: str) -> None:
    result = cli.json("submit", "transformer", "--set", "mesh=2x2", "--set", "steps=20", "--name", "stdlib")
    assert result["metrics"]["val_loss"] < 4.0
    assert cli.job("stdlib")["spec"]["files"]["data"]["num_bytes"] > 100_000
    folder = JobFolder(cli.home / "jobs" / "stdlib")
    reported = [line["train_loss"] for line in folder.lines("metrics.jsonl") if line["rank"] == 0]
    drawn = EventAccumulator(str(folder.path)).Reload().Scalars("train_loss")
    assert [point.value for point in drawn] == pytest.approx(reported)
