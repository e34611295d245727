"""All three workloads end with the bits of an unbroken run, wherever killed; finished ones can be extended."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.workloads.checkpoint_programs import forget_after
from tests.workloads.transformer_programs import SMALL as SMALL_NET

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAMS = "tests.workloads.resume_programs"

# Total steps, then the settings; checkpoints are due every 4 steps: in the warm-up, in the adaptation, among the draws.
SHORT: dict[str, tuple[int, dict[str, str]]] = {
    "independent-chains": (
        22, {"model": "eight-schools", "num_chains": "6", "num_warmup": "10", "num_draws": "12",
             "adapt_step_size": "true", "draws_per_dispatch": "5"},
    ),
    "sharded-mcmc": (
        22, {"model": "matrix-factorization", "num_users": "21", "num_movies": "20", "rank": "2", "num_warmup": "10",
             "num_draws": "12", "num_leapfrog_steps": "4", "draws_per_dispatch": "5"},
    ),
    "transformer": (
        22, {**SMALL_NET, "mesh": "data:2,model:2", "steps": "22", "eval_every": "6", "sample_length": "20",
             "steps_per_dispatch": "5"},
    ),
}  # fmt: skip
CONTEXT = {"checkpoint_every": 4, "keep": 9}


def all_but_one_long(workload: str) -> list[Any]:
    """All workloads, as parameters; only `workload` where time is short."""
    return [one if one == workload else pytest.param(one, marks=pytest.mark.long) for one in SHORT]


def _run(target: str, workload: str, folder: Path, num_hosts: int = 1, **arguments: Any) -> list[Any]:
    return run_ranks(
        f"{PROGRAMS}:{target}", num_hosts=num_hosts, devices_per_host=4 // num_hosts, timeout_s=600.0, folder=folder,
        context=CONTEXT, seed=2, workload=workload, **arguments,
    )  # fmt: skip


def _resumed_at(folder: Path) -> list[int]:
    events = json.loads((folder / "value-0.json").read_text())["events"]
    return [event["step"] for event in events if event["type"] == "resumed"]


def _compiled(folder: Path, rank: int) -> list[str]:
    """Names of the programs that a rank compiled, in their order."""
    events = json.loads((folder / f"value-{rank}.json").read_text())["events"]
    return [event["phase"].removeprefix("compile ") for event in events if event.get("phase", "").startswith("compile")]


# What three resumes compile, the first of them at the end: never `init`, and of the rest only what they come to.
COMPILED = {
    "sharded-mcmc": ["advance", "init", "score", *["advance", "score"] * 3],
    "transformer": ["train", "init", "validate", "sample", "train", "sample", *["train", "validate", "sample"] * 2],
}


@pytest.mark.parametrize(
    ("workload", "num_hosts"),
    [
        ("independent-chains", 1),
        ("sharded-mcmc", 1),
        ("transformer", 2),
        pytest.param("transformer", 1, marks=pytest.mark.long),
    ],
)
def test_resumed_from_any_checkpoint_it_ends_with_the_same_bits(workload: str, num_hosts: int, tmp_path: Path) -> None:
    total, settings = SHORT[workload]
    steps = [total, 16, 4]
    ranks = _run("resumed", workload, tmp_path, num_hosts, settings=settings, steps=steps)
    unbroken = ranks[0][0]
    for outcomes in ranks:
        assert outcomes == [unbroken] * 4
    assert _resumed_at(tmp_path) == steps
    for rank in range(num_hosts):
        assert workload not in COMPILED or _compiled(tmp_path, rank) == COMPILED[workload]


@pytest.mark.parametrize("workload", all_but_one_long("transformer"))  # `make faults` kills all
def test_killed_again_and_again_it_ends_with_the_same_bits(workload: str, tmp_path: Path) -> None:
    """Killed at a random event, in the middle of saves too, until it comes through."""
    _, settings = SHORT[workload]
    (calm,) = _run("run", workload, _fresh(tmp_path / "calm"), settings=settings)
    chance = random.Random(workload)
    stormy = _fresh(tmp_path / "stormy")
    for _ in range(2):
        with pytest.raises(AssertionError, match=r"exit codes \[9\]"):
            _run("die", workload, stormy, settings=settings, events=chance.randint(12, 24))
        shutil.rmtree(stormy / "rank-0")
    (found,) = _run("run", workload, stormy, settings=settings, resume=True)
    assert found == calm
    assert _resumed_at(stormy)[0] > 0


def test_independent_chains_resume_on_any_layout(tmp_path: Path) -> None:
    _, settings = SHORT["independent-chains"]
    outcomes = _run("resumed", "independent-chains", _fresh(tmp_path / "four"), settings=settings, steps=[12])[0]
    for num_hosts, devices_per_host in ((2, 2), (1, 1)):
        folder = _copied_until(12, tmp_path / "four", tmp_path / f"{num_hosts}x{devices_per_host}")
        ranks = run_ranks(
            f"{PROGRAMS}:run", num_hosts=num_hosts, devices_per_host=devices_per_host, timeout_s=600.0, folder=folder,
            context=CONTEXT, seed=2, workload="independent-chains", settings=settings, resume=True,
        )  # fmt: skip
        assert ranks == [outcomes[0]] * num_hosts
        assert _resumed_at(folder) == [12]


def test_the_others_resume_on_fewer_devices(tmp_path: Path) -> None:
    """Four devices to one; not bit for bit, as sums are taken in another order, but the same to five digits."""
    for workload, metric in (("transformer", "val_loss"), ("sharded-mcmc", "accept_rate")):
        _, settings = SHORT[workload]
        four = _fresh(tmp_path / f"{workload}-4")
        expected = _run("resumed", workload, four, settings=settings, steps=[16])[0][0]["metrics"]
        folder = _copied_until(16, four, tmp_path / f"{workload}-1")
        mesh = {"mesh": "data:-1"} if workload == "transformer" else {}
        (found,) = run_ranks(
            f"{PROGRAMS}:run", num_hosts=1, devices_per_host=1, timeout_s=600.0, folder=folder, context=CONTEXT,
            seed=2, workload=workload, settings=settings | mesh, resume=True,
        )  # fmt: skip
        assert _resumed_at(folder) == [16]
        assert found["metrics"][metric] == pytest.approx(expected[metric], rel=1e-5), workload


@pytest.mark.parametrize("workload", all_but_one_long("sharded-mcmc"))
def test_a_finished_job_extended_is_a_long_one(workload: str, tmp_path: Path) -> None:
    _, short = SHORT[workload]
    if workload == "transformer":
        short = short | {"final_fraction": "1.0", "warmup_steps": "5"}
        long = short | {"steps": "31"}
    else:
        long = short | {"num_draws": "21"}
    (outcomes,) = _run("extended", workload, tmp_path, short=short, long=long)
    assert outcomes[2] == outcomes[0] != outcomes[1]
    assert _resumed_at(tmp_path) == [22]


REFUSED = {
    "independent-chains": [
        ({"step_size": "0.2"}, "made with step_size=0.1; resume with the same"),
        ({"num_draws": "8"}, "num_draws=8: the checkpoint has 12; it may only grow"),
    ],
    "sharded-mcmc": [
        ({"step_size": "0.2"}, "made with step_size=0.01; resume with the same"),
        ({"num_users": "22"}, "data_sha256="),
        ({"num_draws": "8"}, "num_draws=8: the checkpoint has 12; it may only grow"),
    ],
    "transformer": [
        ({"learning_rate": "0.1"}, "made with learning_rate=0.001; resume with the same"),
        ({"steps": "30"}, "the learning rate follows a cosine to the last step; resume with steps=22"),
        ({"steps": "12"}, "steps=12: the checkpoint has 22 steps behind it"),
    ],
}


@pytest.mark.parametrize("workload", all_but_one_long("transformer"))
def test_another_config_is_refused_with_the_difference(workload: str, tmp_path: Path) -> None:
    _, settings = SHORT[workload]
    others = [settings | change for change, _ in REFUSED[workload]]
    (said,) = _run("refused", workload, tmp_path, first=settings, others=others)
    for text, (_, expected) in zip(said, REFUSED[workload], strict=True):
        assert expected in text


def _fresh(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _copied_until(step: int, source: Path, folder: Path) -> Path:
    """A fresh folder with those checkpoints of `source` that are not after `step`."""
    shutil.copytree(source / "storage", _fresh(folder) / "storage")
    forget_after(str(folder / "storage"), step)
    return folder
