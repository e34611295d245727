"""The context that a workload receives: made by hand in one process, and on two real ranks."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ranks import run_ranks
from workloads.compile_on_use import CompiledOnUse
from workloads.context import Context
from workloads.errors import ReplicaDivergenceError

Event = dict[str, Any]


@pytest.fixture
def context(tmp_path: Path, events: list[Event]) -> Context:
    return Context.local(tmp_path, seed=7, emit=events.append)


def test_a_local_context_is_the_only_rank(context: Context, tmp_path: Path) -> None:
    assert (context.rank, context.num_ranks, context.is_first) == (0, 1, True)
    assert context.results_folder() == tmp_path / "results" and context.results_folder().is_dir()
    assert context.plots_folder() == tmp_path / "plots" and context.plots_folder().is_dir()
    assert Context.local(tmp_path, check_every=5).check_every == 5


def test_the_base_key_is_the_seed(context: Context, tmp_path: Path) -> None:
    assert jnp.array_equal(jax.random.key_data(context.base_key), jax.random.key_data(jax.random.key(7)))
    others = [Context.local(tmp_path, seed=seed).base_key for seed in (0, 1, 2**31, 2**32 - 1)]
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in others}) == 4


def test_compile_tells_its_seconds_and_runs(context: Context, events: list[Event]) -> None:
    program, seconds = context.compile("double", jax.jit(lambda x: 2 * x), jnp.arange(3))
    assert program(jnp.arange(3)).tolist() == [0, 2, 4]
    assert seconds > 0
    assert [event["phase"] for event in events] == ["compile double", "run"]


def test_what_is_compiled_on_use_is_compiled_by_the_first_call_alone(context: Context, events: list[Event]) -> None:
    double = CompiledOnUse(context, "double", jax.jit(lambda x: 2 * x))
    assert (double.compile_s, events) == (0.0, [])
    assert [double(jnp.arange(3)).tolist() for _ in range(2)] == [[0, 2, 4]] * 2
    assert double.compile_s > 0
    assert [event["phase"] for event in events] == ["compile double", "run"]


def test_report_is_json_of_plain_numbers(context: Context, events: list[Event]) -> None:
    context.report(np.int64(10), 100, loss=jnp.float32(0.5), accept=np.float64(0.25))
    assert json.loads(json.dumps(events)) == [
        {
            "type": "report",
            "step": 10,
            "total": 100,
            "metrics": {"loss": 0.5, "accept": 0.25},
            "launches": 0,
            "launch_hash": "0" * 64,
            "tail": [],
        }
    ]


def test_a_phase_that_fails_stays_the_last_one_told(context: Context, events: list[Event]) -> None:
    with pytest.raises(ValueError, match="inside"), context.phase("load"):
        raise ValueError("inside")
    assert [event["phase"] for event in events] == ["load"]


def test_gather_gives_numpy(context: Context) -> None:
    tree = {"w": jnp.arange(3), "key": jax.random.key(1), "n": np.ones(2), "x": 1.5, "none": None}
    gathered = context.gather(tree)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(gathered))
    assert gathered["key"].tolist() == jax.random.key_data(jax.random.key(1)).tolist()
    assert gathered["none"] is None


def test_a_verdict_is_recorded_as_json(context: Context, events: list[Event]) -> None:
    verdict = context.assert_replicas_equal({"w": jnp.arange(3)}, step=9)
    assert verdict.status == "nothing-checked"
    assert json.loads(json.dumps(events[-1]))["status"] == "nothing-checked"
    assert (events[-1]["type"], events[-1]["step"], events[-1]["bytes_single_copy"]) == ("verdict", 9, 12)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks("tests.workloads.context_programs:services", num_hosts=2, devices_per_host=2, seed=3)


def test_trailing_mesh_axes_stay_inside_a_host(ranks: list[dict[str, Any]]) -> None:
    assert [rank["processes"] for rank in ranks] == [[[0, 0], [1, 1]]] * 2


def test_gather_gives_every_rank_the_whole(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        assert rank["gathered"] == [True] * 4
        assert set(rank["types"]) == {"ndarray"}
        assert rank["key"] == jax.random.key_data(jax.random.key(3)).tolist()
        assert rank["own"] == number
        assert rank["first"] == (number == 0)


def test_a_divergence_ends_the_workload_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    assert ReplicaDivergenceError.__mro__[1] is RuntimeError
    for rank in ranks:
        assert "at step 5" in rank["error"] and "host-0/memory" in rank["error"] and "host-1/memory" in rank["error"]
        assert rank["checked"] == ["ok", 96]
