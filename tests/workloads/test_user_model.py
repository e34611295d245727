"""A log density of the user's in `independent-chains`: right draws, any pytree, resume, and mistakes told in words."""

import itertools
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

from tests.conftest import ROOT
from tests.workloads.checkpoint_programs import forget_after
from workloads.context import Context
from workloads.errors import ConfigError
from workloads.independent_chains.config import Config
from workloads.independent_chains.job import start_job
from workloads.independent_chains.run import run
from workloads.independent_chains.user_model import check
from workloads.params import parse

EXAMPLE = "./examples/logdensity.py:logdensity"
SMALL: dict[str, Any] = {"num_chains": 6, "num_warmup": 20, "num_draws": 20, "draws_per_dispatch": 10}
STEMS = (f"density_{number}" for number in itertools.count())  # Python imports one file of each name

NORMAL = """
    import jax
    import jax.numpy as jnp

    def logdensity(position):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))
"""


class Density:
    """A file of the user's, and the folder that it is in."""

    def __init__(self, folder: Path, *parts: str):
        self.folder = folder
        stem = next(STEMS)
        (folder / f"{stem}.py").write_text("\n".join(textwrap.dedent(part) for part in parts))
        self.text = f"./{stem}.py:logdensity"

    def check(self) -> None:
        check(self.context().function(self.text))

    def context(self, **more: Any) -> Context:
        return Context.local(self.folder / "output", user_folder=self.folder, **more)

    def draws(self) -> dict[str, np.ndarray]:
        job = start_job(Config(model=self.text, **SMALL), self.context())
        job.check_start()
        job.sample(0)
        return job.gather()[1].draws


def test_the_example_agrees_with_its_exact_posterior(tmp_path: Path) -> None:
    context = Context.local(tmp_path, user_folder=ROOT, seed=2)
    found = context.function(EXAMPLE)
    check(found)
    result = run(Config(model=EXAMPLE), context)
    features = np.c_[np.ones(21), found.module.FEATURES].astype(np.float64)
    weights, (residual,), _, _ = np.linalg.lstsq(features, np.array(found.module.STACK_LOSS, np.float64), rcond=None)
    np.testing.assert_allclose(weights, [-39.9197, 0.7156, 1.2953, -0.1521], atol=1e-4)  # R's lm(stack.loss ~ .)
    # The weights' marginals are t with 17 degrees of freedom.
    sds = np.sqrt(np.diag(np.linalg.inv(features.T @ features)) * residual / 17 * 17 / 15)
    parameters = result.diagnostics["parameters"]
    for label, mean, sd in zip(("intercept", "slopes[0]", "slopes[1]", "slopes[2]"), weights, sds, strict=True):
        assert abs(parameters[label]["mean"] - mean) < 4 * parameters[label]["mcse_mean"], label
        assert parameters[label]["sd"] == pytest.approx(sd, rel=0.1), label
    with xarray.open_datatree(tmp_path / "results/chains.nc", engine="h5netcdf") as tree:
        slopes = tree["posterior"]["slopes"]
        assert slopes.dims == ("chain", "draw", "feature")
        assert list(slopes["feature"].values) == ["air flow", "water temperature", "acid concentration"]


STRUCT = "import flax.struct\n@flax.struct.dataclass\nclass State:\n    mean: jax.Array\n    more: dict\n"
MIXED = (
    "{'layer': {'w/x': jnp.zeros((2, 3)), 'b': 0.5}, 'pair': (jax.random.normal(key), [np.zeros(1)]),"
    " 'state': State(mean=jax.random.normal(key), more={'a': jnp.zeros(2, jnp.bfloat16)}), 'nothing': None}"
)
SHAPES = {"layer.b": (), "layer.w.x": (2, 3), "pair.0": (), "pair.1.0": (1,), "state.mean": (), "state.more.a": (2,)}


@pytest.mark.parametrize(
    ("tree", "shapes"), [(MIXED, SHAPES), ("jax.random.normal(key, (4,))", {"position": (4,)})], ids=["mixed", "array"]
)
def test_any_tree_of_real_arrays_is_sampled(tmp_path: Path, tree: str, shapes: dict[str, tuple[int, ...]]) -> None:
    density = Density(
        tmp_path, NORMAL, "import numpy as np", STRUCT, f"def initial_position(key):\n    return {tree}\n"
    )
    density.check()
    draws = density.draws()
    assert {name: array.shape[2:] for name, array in draws.items()} == shapes
    assert {array.shape[:2] for array in draws.values()} == {(6, 20)}
    assert {str(array.dtype) for array in draws.values()} == {"float32"}
    assert all(len(np.unique(array[:, -1].reshape(6, -1), axis=0)) == 6 for array in draws.values())


def test_a_resumed_run_of_a_nested_position_has_the_bits_of_the_unbroken_one(tmp_path: Path) -> None:
    density = Density(tmp_path, NORMAL, 'def initial_position(key):\n    return {"a": {"b": jnp.ones(2)}, "c": 0.0}\n')
    config = Config(model=density.text, **SMALL)
    whole = run(config, density.context(checkpoint_every=20))
    forget_after(str(tmp_path / "output/checkpoints"), 20)
    events: list[dict[str, Any]] = []
    resumed = run(config, density.context(emit=events.append), resume=True)
    assert resumed.result_digest == whole.result_digest
    assert min(event["step"] for event in events if event["type"] == "report") > 20


def test_what_is_reported_may_be_computed_and_whole_numbers(tmp_path: Path) -> None:
    density = Density(
        tmp_path, NORMAL, "def initial_position(key):\n    return 1.5\n",
        "def report(position):\n    return {'sign': {'up': (position > 0).astype(int)}, 'twice': 2 * position}\n"
    )  # fmt: skip
    density.check()
    draws = density.draws()
    assert set(draws) == {"sign.up", "twice"}
    assert np.array_equal(draws["sign.up"], draws["twice"] > 0)


JAX = "import jax, jax.numpy as jnp"
START = "def initial_position(key):\n    return {'x': jnp.zeros(3)}\n"


def start(value: str) -> list[str]:
    return [NORMAL, f"def initial_position(key):\n    return {value}"]


def density(value: str) -> list[str]:
    return [JAX, START, f"def logdensity(p):\n    return {value}"]


def report(value: str) -> list[str]:
    return [NORMAL, START, f"def report(p):\n    return {value}"]


MISTAKES = [
    ([NORMAL], "nothing says where chains start; beside it there must be, as\n    def initial_position(key):"),
    ([NORMAL, "initial_position = 3"], "nothing says where chains start"),
    ([NORMAL, "def initial_position():\n    return 0.0"], "initial_position raises TypeError"),
    (start("{'x': 1}"), "x of initial_position(key) is int32; what is sampled must be real"),
    (start("{'x': 1j * jnp.ones(2)}"), "x of initial_position(key) is complex64[2]; what is sampled must be real"),
    (start("{}"), "initial_position(key) returns no array"),
    (start("{'x': 'y'}"), "initial_position raises TypeError"),
    (start("{'a.b': 0.0, 'a': {'b': 0.0}}"), "two arrays would both be called 'a.b'"),
    (start("{'draw': 0.0}"), "no variable can be called 'draw'"),
    (density("-(p['x'] ** 2)"), "logdensity(position) returns float32[3]; it must be one real number"),
    (density("p['x'].sum().astype(int)"), "returns int32; it must be one real number"),
    (density("(p['x'].sum(), 0.0)"), "returns float32, float32; it must be one real number"),
    (density("None"), "returns nothing; it must be one real number"),
    (density("p['y'].sum()"), "logdensity raises KeyError, line 6: return p['y'].sum(): 'y'"),
    (density("0.0 if p['x'][0] > 0 else 1.0"), "logdensity raises TracerBoolConversionError, line 6: return 0.0 if"),
    (density("jax.pure_callback(float, jnp.float32(0), p['x'][0])"), "the gradient of logdensity raises ValueError"),
    ([NORMAL, START, "dims = {'x': ['a', 'b']}"], "dims and coords do not fit what is reported (x float32[3])"),
    ([NORMAL, START, "dims = {'x': ['k']}\ncoords = {'k': ['a', 'b']}"], "dims and coords do not fit"),
    (report("{'z': p['x'] + 1j}"), "z of report(position) is complex64[3]; it must be real"),
    (report("{'z': p['y']}"), "report raises KeyError, line"),
]


@pytest.mark.parametrize(("parts", "words"), MISTAKES)
def test_a_mistake_is_told_before_anything_is_compiled(tmp_path: Path, parts: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        Density(tmp_path, *parts).check()


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ("jax.random.normal(key)", "jnp.where(position > 0, jnp.nan, -position**2)", r"chain \d: log density nan"),
        (
            "0.0 * jax.random.normal(key)",
            "-jnp.sqrt(jnp.abs(position))",
            r"chain 0: gradient by position not finite; ch",
        ),
        ("1.0", "jnp.log(0 * position)", r"6 of 6 chains cannot start .*chain 3: log density -inf; \.\.\.\)"),
    ],
)
def test_a_chain_that_cannot_start_is_named(tmp_path: Path, where: str, value: str, words: str) -> None:
    source = f"def logdensity(position):\n    return {value}"
    with pytest.raises(ConfigError, match=words):
        Density(tmp_path, JAX, source, f"def initial_position(key):\n    return {where}").draws()


def test_a_model_is_one_of_ours_or_a_function() -> None:
    assert parse(Config, {"model": "my_pkg.models:f"}).model == "my_pkg.models:f"
    words = "must be one of gaussian, eight-schools, funnel, or a function as ./FILE.py:FUNCTION or MODULE:FUNCTION"
    with pytest.raises(ConfigError, match=re.escape(f"model='gausian': {words}; did you mean 'gaussian'?")):
        parse(Config, {"model": "gausian"})
