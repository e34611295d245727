"""The transformer in one process: data, loss and products; and one whole run over two hosts."""

import dataclasses
import itertools
import json
import math
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import data_folder
from tests.ranks import run_ranks
from tests.workloads.transformer_programs import SMALL
from workloads import checkpoint
from workloads.context import Context
from workloads.errors import ConfigError
from workloads.params import parse
from workloads.transformer.config import Config
from workloads.transformer.corpus import write_default
from workloads.transformer.data import read_text, train_batches, train_starts, validation_batches
from workloads.transformer.dense import dense
from workloads.transformer.loop import chunks, compile_programs, train
from workloads.transformer.loss import token_sums
from workloads.transformer.train import Trainer

PROGRAMS = "tests.workloads.transformer_programs"
CONFIG = Config(context_length=8, batch_size=4, steps_per_dispatch=3, eval_batches=2)


@pytest.fixture(scope="module")
def text_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(chr(97 + number * number % 26) for number in range(1000)) + "é\n" * 50, encoding="utf-8")
    return path


def _mesh(tmp_path: Path) -> jax.sharding.Mesh:
    return Context.local(tmp_path).mesh({"data": 1, "model": 1})


def test_a_training_counts_no_compiling(text_path: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, steps=3, num_layers=1, width=16, ff_width=16, num_heads=1)
    context, text = Context.local(tmp_path), read_text(text_path, 8)
    trainer = Trainer(config=config, mesh=_mesh(tmp_path), vocab_size=text.vocab_size, padded_vocab_size=128)
    programs = compile_programs(trainer, text, context)
    before_s, began = programs.compile_s, time.perf_counter()
    training = train(trainer, programs, text, context.base_key, context)
    passed_s = time.perf_counter() - began
    compiled_s = programs.compile_s - before_s  # of what is compiled when it is first used
    assert compiled_s == programs.init.compile_s + programs.evaluate.compile_s > 0
    assert training.train_s < training.run_s <= passed_s - compiled_s


# --- data


def test_a_text_is_its_tokens_split_in_two(text_path: Path) -> None:
    text = read_text(text_path, 8)
    whole = text_path.read_text(encoding="utf-8")
    assert text.decode(np.concatenate([text.train, text.validation])) == whole
    assert (len(text.train), len(text.validation)) == (990, 110)
    assert text.vocabulary == "".join(sorted(set(whole)))
    assert (text.vocab_size, text.padded_vocab_size) == (len(set(whole)), 128)


def test_batches_depend_on_seed_and_step_alone(text_path: Path, tmp_path: Path) -> None:
    text, mesh = read_text(text_path, 8), _mesh(tmp_path)
    windows = np.asarray(train_batches(text, CONFIG, 7, 5, mesh))
    assert windows.shape == (3, 4, 9)
    np.testing.assert_array_equal(np.asarray(train_batches(text, CONFIG, 7, 6, mesh))[0], windows[1])
    for (step, row), start in np.ndenumerate(np.stack([train_starts(text, CONFIG, 7, step) for step in (5, 6, 7)])):
        np.testing.assert_array_equal(windows[step, row], text.train[start : start + 9])
    assert not np.array_equal(windows, np.asarray(train_batches(text, CONFIG, 8, 5, mesh)))
    assert not np.array_equal(windows[0], windows[1])


def test_validation_windows_do_not_overlap_and_what_is_beyond_the_end_is_masked(
    text_path: Path, tmp_path: Path
) -> None:
    text = read_text(text_path, 8)
    windows, weights = validation_batches(
        text, parse(Config, {"context_length": "8", "batch_size": "4"}), _mesh(tmp_path)
    )
    assert windows.shape == (20, 4, 9)
    rows, kept = np.asarray(windows).reshape(80, 9), np.asarray(weights).reshape(80, 8)
    count = (len(text.validation) - 1) // 8
    np.testing.assert_array_equal(kept.sum(axis=1), [8] * count + [0] * (80 - count))
    np.testing.assert_array_equal(rows[:count, 1:].ravel(), text.validation[1 : 1 + 8 * count])


def test_texts_that_cannot_be_learned_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"abc\xff")
    with pytest.raises(ConfigError, match=r"data=x.txt: is not UTF-8 text .* at byte 3"):
        read_text(path, 8)
    path.write_text("a" * 80)
    with pytest.raises(ConfigError, match=r"has 80 characters; context_length=8 needs 81"):
        read_text(path, 8)
    path.write_text("a" * 81)
    assert len(read_text(path, 8).validation) == 9


def test_tinyshakespeare_has_65_characters() -> None:
    path = data_folder() / "tinyshakespeare.txt"
    if not path.exists():
        pytest.skip(f"needs {path.name} in the folder named by SPMD_LAUNCH_TEST_DATA")
    text = read_text(path, 64)
    assert (text.vocab_size, len(text.train) + len(text.validation)) == (65, 1_115_394)


def test_chunks_of_a_resumed_run_begin_where_it_stopped() -> None:
    assert list(chunks(10, 23, 4, (7, 0))) == [(10, 14), (14, 18), (18, 21), (21, 23)]
    assert list(chunks(23, 23, 4, (7, 0))) == []


@pytest.mark.parametrize("stops", [(0, 0), (7, 0), (7, 5)])
def test_chunks_cover_all_steps_once_and_stop_where_they_must(stops: tuple[int, ...]) -> None:
    found = list(chunks(0, 23, 4, stops))
    assert [step for first, last in found for step in range(first, last)] == list(range(23))
    assert max(last - first for first, last in found) <= 4
    ends = {last for _, last in found}
    for stop in filter(None, stops):
        assert set(range(stop, 24, stop)) <= ends


# --- loss


def _sums(logits: list[list[float]], targets: list[int], weights: list[float], vocab_size: int = 3) -> dict[str, float]:
    sums = token_sums(jnp.array([logits]), jnp.array([targets]), jnp.array([weights]), vocab_size)
    return {name: float(value) for name, value in sums._asdict().items()}


def test_cross_entropy_and_log_z_are_the_textbooks_and_padding_counts_for_nothing() -> None:
    sums = _sums([[1.0, 2.0, 0.0, 50.0], [0.0, 0.0, 0.0, 50.0]], [1, 2], [1.0, 1.0])
    log_z = [math.log(math.exp(1) + math.exp(2) + 1), math.log(3)]
    assert sums["cross_entropy"] == pytest.approx(log_z[0] - 2 + log_z[1], rel=1e-6)
    assert sums["squared_log_z"] == pytest.approx(log_z[0] ** 2 + log_z[1] ** 2, rel=1e-6)
    assert sums["count"] == 2


def test_z_loss_sees_a_constant_added_to_all_logits_and_pulls_it_back() -> None:
    logits = jnp.array([[[1.0, 2.0, 0.0]]])

    def squared(logits: jax.Array) -> jax.Array:
        return token_sums(logits, jnp.array([[0]]), jnp.ones((1, 1)), 3).squared_log_z

    log_z = float(jax.scipy.special.logsumexp(logits))
    assert float(squared(logits + 1000)) == pytest.approx((log_z + 1000) ** 2, rel=1e-6)
    expected = 2 * log_z * jax.nn.softmax(logits)
    np.testing.assert_allclose(jax.grad(squared)(logits), expected, rtol=1e-6)


def test_accuracy_predicts_the_lowest_of_equal_logits_and_skips_masked_tokens() -> None:
    equal = [[0.0, 0.0, 0.0, 0.0]] * 3
    assert _sums(equal, [0, 1, 2], [1.0, 1.0, 1.0])["correct"] == 1
    assert _sums(equal, [0, 0, 0], [1.0, 0.0, 1.0]) == pytest.approx(
        {"cross_entropy": 2 * math.log(3), "squared_log_z": 2 * math.log(3) ** 2, "correct": 2, "count": 2}, rel=1e-6
    )
    assert _sums([[math.nan] * 4], [0], [1.0])["correct"] == 0


@pytest.mark.parametrize(
    ("x_shape", "weight_shape", "contracted"), [((2, 5, 3), (3, 4), 1), ((2, 5, 3, 4), (3, 4, 6), 2)]
)
def test_dense_and_its_gradients_are_tensordots(x_shape: tuple, weight_shape: tuple, contracted: int) -> None:
    x, weight = (jax.random.normal(jax.random.key(seed), shape) for seed, shape in ((0, x_shape), (1, weight_shape)))

    def ours(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.sin(dense(x, weight, contracted)).sum()

    def plain(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.sin(jnp.tensordot(x, weight, axes=contracted)).sum()

    np.testing.assert_allclose(ours(x, weight), plain(x, weight), rtol=1e-6)
    for got, expected in zip(jax.grad(ours, (0, 1))(x, weight), jax.grad(plain, (0, 1))(x, weight), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


# --- a whole run, two hosts of two devices, mesh 2x2

STEPS = 23


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict]:
    settings = {"mesh": "data:2,model:2", "steps": str(STEPS), "eval_every": "10", "sample_length": "40"}
    context = {"check_every": 8, "checkpoint_every": 20}
    return run_ranks(
        f"{PROGRAMS}:train", num_hosts=2, devices_per_host=2, folder=folder, settings=settings, context=context, seed=5
    )


def test_every_rank_has_the_result_and_the_first_alone_the_files(results: list[dict]) -> None:
    assert results[0]["digest"] == results[1]["digest"]
    assert results[0]["diagnostics"] == results[1]["diagnostics"]
    assert {"results/curves.csv", "results/sample.txt", "plots/loss.png", "plots/accuracy.png"} <= set(
        results[0]["files"]
    )
    assert not [name for name in results[1]["files"] if name.startswith(("results", "plots"))]


def test_metrics(results: list[dict]) -> None:
    metrics = results[0]["metrics"]
    names = "compile_s run_s train_loss val_loss val_token_accuracy tokens_per_s num_params"
    assert set(metrics) == set(names.split())
    vocabulary = 128
    per_layer = 64 * (2 + 3 * 64 + 64 + 2 * 128)
    assert metrics["num_params"] == vocabulary * 64 + 32 * 64 + 2 * per_layer + 64
    assert metrics["val_loss"] < 4.5
    assert 0 < metrics["val_token_accuracy"] < 1
    assert metrics["compile_s"] > 0
    assert metrics["run_s"] > STEPS * 16 * 32 / metrics["tokens_per_s"]  # steps are a part of the run


def test_curves_sample_and_plots(results: list[dict], folder: Path) -> None:
    output = folder / "rank-0"
    header, *rows = (output / "results/curves.csv").read_text().splitlines()
    assert header == "step,train_loss,train_accuracy,val_loss,val_accuracy"
    assert len(rows) == STEPS
    validated = [int(row.split(",")[0]) for row in rows if row.split(",")[3]]
    assert validated == [10, 20, 23]
    assert float(rows[-1].split(",")[3]) == pytest.approx(results[0]["metrics"]["val_loss"], rel=1e-8)
    assert (output / "results/sample.txt").read_text(encoding="utf-8") == results[0]["diagnostics"]["sample"]
    assert len(results[0]["diagnostics"]["sample"]) == 40
    for name in ("loss", "accuracy"):
        assert (output / f"plots/{name}.png").read_bytes().startswith(b"\x89PNG")


def test_memory_table_has_a_row_a_device_and_adds_up(results: list[dict]) -> None:
    rows = results[0]["diagnostics"]["memory_bytes"]
    assert [row["host"] for row in rows] == ["host-0", "host-0", "host-1", "host-1"]
    num_params = results[0]["metrics"]["num_params"]
    split = 128 * 64 + 2 * 64 * (3 * 64 + 64 + 2 * 128)  # embedding and matrices: half of each on a device
    for row in rows:
        assert row["params"] == 4 * (num_params - split // 2)
        assert 2 * row["params"] < row["opt"] < 2 * row["params"] + 64
        assert row["params"] + row["opt"] < row["live"] < 1.5 * (row["params"] + row["opt"])
        assert row["temporary"] > 0
        assert (row["peak"] is not None) == results[0]["memory_stats"]


def test_replicas_are_checked_on_time_and_before_each_checkpoint(results: list[dict], folder: Path) -> None:
    for rank in range(2):
        events = json.loads((folder / f"value-{rank}.json").read_text())["events"]
        found = [(event["type"], event["step"]) for event in events if event["type"] in ("verdict", "checkpoint")]
        verdicts, saves = [8, 16, 20, 23], [20, 23] if rank == 0 else []  # rank 0 commits
        assert [step for kind, step in found if kind == "verdict"] == verdicts
        assert [step for kind, step in found if kind == "checkpoint"] == saves
        assert all(found.index(("verdict", step)) < found.index(("checkpoint", step)) for step in saves)
        reports = [event for event in events if event["type"] == "report"]
        assert reports[-1]["step"] == reports[-1]["total"] == STEPS
        assert all(later["step"] > earlier["step"] for earlier, later in itertools.pairwise(reports))


def test_checkpoint_has_vocabulary_and_gives_the_same_validation_on_one_device(
    results: list[dict], folder: Path, tmp_path: Path
) -> None:
    assert Path(results[0]["diagnostics"]["checkpoint"]).name.startswith(f"step_{STEPS:08d}.")
    text = read_text(write_default(tmp_path), 32)
    config = parse(Config, {**SMALL, "steps": str(STEPS)})
    trainer = Trainer(config=config, mesh=_mesh(tmp_path), vocab_size=text.vocab_size, padded_vocab_size=128)
    curves = {"train": {"loss": STEPS, "accuracy": STEPS}, "validation": {"step": 3, "loss": 3, "accuracy": 3}}
    dtypes = {"train": {"loss": "f4", "accuracy": "f4"}, "validation": {"step": "i8", "loss": "f8", "accuracy": "f8"}}
    like = {"state": trainer.abstract_state, "curves": jax.tree.map(np.zeros, curves, dtypes)}
    context = dataclasses.replace(Context.local(tmp_path), storage=str(folder / "storage"))
    restored = checkpoint.restore(context, lambda *_: like)
    assert restored
    state, metadata = restored.state["state"], restored.metadata
    assert (restored.step, int(state["step"])) == (STEPS, STEPS)
    assert metadata["vocabulary"] == text.vocabulary
    assert metadata["text_sha256"] == text.sha256 == results[0]["diagnostics"]["text_sha256"]
    assert (metadata["seed"], metadata["config"]["width"]) == (5, 64)
    found = jax.jit(trainer.evaluate)(state["params"], *validation_batches(text, trainer.config, trainer.mesh))
    assert float(found["loss"]) == pytest.approx(results[0]["metrics"]["val_loss"], rel=1e-6)
    assert float(found["accuracy"]) == pytest.approx(results[0]["metrics"]["val_token_accuracy"], rel=1e-6)
