"""Workloads of the user's: `submit ./file.py:run`, on a real cluster."""

import textwrap
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli, set_words
from workloads.context import Context
from workloads.independent_chains.config import Config
from workloads.independent_chains.run import run

pytestmark = pytest.mark.cluster

EXAMPLE = "./examples/my_workload.py:run"

SMALL = """
    import dataclasses
    import numpy as np
    from helper import twice
    from workloads.result import Result, digest_arrays

    @dataclasses.dataclass(frozen=True)
    class Config:
        size: int = 3
        scale: float = 1.5

        def check(self, layout):
            from workloads.errors import ConfigError
            if self.size % layout.num_devices:
                raise ConfigError(f"size={self.size}: must be a multiple of {layout.num_devices} devices")

    def run(config: Config, context, resume=False):
        value = twice(config.size * config.scale)
        return Result(metrics={"value": value}, diagnostics={}, result_digest=digest_arrays({"v": np.asarray(value)}))

    def not_annotated(config, context, resume=False):
        pass

    def never_resumes(config: Config, context):
        pass

    NUMBER = 3
"""

NEEDS = """
    import dataclasses
    from typing import Literal

    @dataclasses.dataclass(frozen=True)
    class Config:
        steps: int
        norm: Literal["layer", "batch"] = "layer"
        rate: float = dataclasses.field(default_factory=float)

    def run(config: Config, context, resume=False): ...
"""

LOOP = """
    import dataclasses
    import numpy as np
    import jax, jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec
    from workloads.result import Result, digest_arrays

    @dataclasses.dataclass(frozen=True)
    class Config:
        steps: int = 300

    def run(config: Config, context, resume=False):
        mesh = jax.make_mesh((jax.device_count(),), ("data",))
        rows = np.random.default_rng(0).normal(size=(4096, 8)).astype(np.float32)
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        x = jax.make_array_from_callback(rows.shape, sharding, lambda index: rows[index])
        step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w - x.sum(1)) ** 2))(w))
        w = jax.device_put(np.zeros(8, np.float32), NamedSharding(mesh, PartitionSpec()))
        for _ in range(config.steps):
            w = step(w, x)
        return Result(metrics={}, diagnostics={}, result_digest=digest_arrays({"w": np.asarray(w)}))
"""

UNWAITED = """
    import dataclasses
    import numpy as np
    from workloads import checkpoint
    from workloads.result import Result, digest_arrays

    @dataclasses.dataclass(frozen=True)
    class Config:
        differ: bool = False

    def run(config: Config, context, resume=False):
        weights = np.full(3, 1.0 + config.differ * context.rank)
        checkpoint.Saver(context).save(1, {"weights": weights}, {})
        return Result(metrics={}, diagnostics={}, result_digest=digest_arrays({}))
"""


@pytest.fixture
def here(cli: Cli, cluster: str) -> Cli:
    """The command line in the project's folder."""
    return Cli(cli.home, ROOT)


@pytest.fixture
def user(cli: Cli, cluster: str, tmp_path: Path) -> Cli:
    """The command line in a folder of the user's."""
    (tmp_path / "small.py").write_text(textwrap.dedent(SMALL))
    (tmp_path / "needs.py").write_text(textwrap.dedent(NEEDS))
    (tmp_path / "helper.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "inside.py").write_text("from small import Config, run\n")
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    (tmp_path / "script.py").write_text("import jax\njax.distributed.initialize()\n\ndef run(config, context): ...\n")
    return Cli(cli.home, tmp_path)


def test_what_new_writes_has_all_that_the_shipped_ones_have(user: Cli) -> None:
    user("new", "ridge")
    submit = ["submit", "./ridge.py:run", "--set", "num_steps=60"]
    calm = user.json(*submit, "--name", "ridge-calm")
    assert calm["config"]["num_steps"] == 60 and calm["config"]["learning_rate"] == 0.05
    assert calm["integrity"]["status"] == "ok" and calm["metrics"]["loss"] > 0
    assert [Path(file).name for file in calm["results"]] == ["summary.json", "weights.npy"]
    killed = user.json(*submit, "--name", "ridge-killed", "--checkpoint-every", "10", "--inject", "kill rank=1 step=40")
    assert user.job("ridge-killed")["attempt"] == 2
    assert user.events("ridge-killed", "resumed")[-1]["step"] in (10, 20, 30)  # the newest that was committed by then
    assert killed["result_digest"] == calm["result_digest"]
    user("submit", "--resume", "ridge-calm", "--set", "num_steps=70", "--set", "penalty=0.5")
    made = "goes on from a checkpoint (step 60) that was made with num_steps=60 (now 70), penalty="
    assert [note for note in user.job("ridge-calm")["notes"] if note.startswith(made) and note.endswith(" (now 0.5)")]


def test_a_loop_that_waits_for_no_step_ends(user: Cli, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(textwrap.dedent(LOOP))
    user("submit", "./loop.py:run")


def test_a_save_that_a_workload_does_not_wait_for_counts_before_its_result(user: Cli, tmp_path: Path) -> None:
    (tmp_path / "unwaited.py").write_text(textwrap.dedent(UNWAITED))
    user("submit", "./unwaited.py:run", "--name", "unwaited")
    assert [event["step"] for event in user.events("unwaited", "checkpoint")] == [1]
    differs = ["--set", "differ=true", "--on-divergence", "stop", "--name", "unwaited-differs"]
    out = user("submit", "./unwaited.py:run", *differs, code=1)
    assert "the checkpoint of step 1 was not saved: copies differ" in out
    assert not user.events("unwaited-differs", "result") and not user.events("unwaited-differs", "checkpoint")


@pytest.mark.slow
def test_a_log_density_killed_and_resumed_has_the_draws_of_one_process(here: Cli, user: Cli, tmp_path: Path) -> None:
    model, chains = "./examples/logdensity.py:logdensity", {"num_chains": 8, "num_warmup": 100}
    settings = [f"{name}={value}" for name, value in {"model": model, "num_draws": 100, **chains}.items()]
    fault = ["--checkpoint-every", "50", "--inject", "kill rank=1 step=100"]
    here("submit", "independent-chains", *set_words(settings), "--set",
         "draws_per_dispatch=50", "--name", "density", *fault)  # fmt: skip
    assert here.job("density")["attempt"] == 2 and here.job("density")["spec"]["config"]["model"] == model
    longer = user.json("submit", "--resume", "density", "--set", "num_draws=150")  # in the folder that it had
    assert here.events("density", "resumed")[-1]["step"] == 200
    assert longer["integrity"]["status"] == "ok"
    alone = run(Config(model=model, num_draws=150, **chains), Context.local(tmp_path / "alone", user_folder=ROOT))
    assert longer["result_digest"] == alone.result_digest


def test_by_default_a_job_has_the_files_name_and_can_be_resumed_with_other_parameters(user: Cli) -> None:
    out = user("submit", "./small.py:run", "--set", "size=4")
    assert "value   12" in out and "small-1" in out
    again = Cli(user.home, ROOT)("submit", "--resume", "small-1", "--set", "scale=2")  # the folder that it had
    assert "value   16" in again


def test_a_function_of_a_module_of_the_folder(user: Cli) -> None:
    assert "value   24" in user("submit", "pkg.inside:run", "--set", "size=8", "--name", "of-a-module")


def test_a_workloads_parameters_are_told_by_a_host(user: Cli, here: Cli) -> None:
    out = user("workloads", "./small.py:run")
    assert "size = 3  (whole number)" in out and "scale = 1.5  (number)" in out
    assert "gradient steps" in here("workloads", EXAMPLE)
    out = user("workloads", "./needs.py:run")
    assert "steps = (must be set)  (whole number)" in out and "norm = layer  (text, one of layer | batch)" in out
    assert "rate = 0.0  (number)" in out and "spmd-launch submit ./needs.py:run --set steps=..." in out


@pytest.mark.parametrize(
    ("workload", "settings", "words"),
    [
        ("./small.py:run", ["size=3"], "size=3: must be a multiple of 4 devices"),
        ("./needs.py:run", [], "steps: must be set, there is no default: --set steps=..."),
        ("./needs.py:run", ["steps=2", "norm=bach"], "must be one of layer, batch; did you mean 'batch'?"),
        ("./small.py:run", ["size=many"], "size='many': must be a whole number"),
        ("./small.py:run", ["scales=1"], "no parameter 'scales'; did you mean 'scale'?"),
        ("./small.py:walk", [], "small.py has no function 'walk'"),
        ("./small.py:NUMBER", [], "has no function 'NUMBER'"),
        ("./small.py:not_annotated", [], "must be annotated with its config, a frozen dataclass"),
        ("./small.py:never_resumes", [], "never_resumes(config: small.Config, context)`"),
        ("./absent.py:run", [], "there is no file absent.py in"),
        ("../outside.py:run", [], "lies outside of"),
        ("pkg.absent:run", [], "there is no module 'pkg.absent'"),
        ("./broken.py:run", [], "No module named 'no_such_package'"),
        ("./script.py:run", [], "leave that line out, or run the file as a script"),
        ("independent-chains", ["model=./absent.py:f"], "there is no file absent.py in"),
        ("independent-chains", ["model=./small.py:run"], "nothing says where chains start"),
    ],
)
def test_a_mistake_is_refused_with_exit_code_2_and_no_job(
    user: Cli, workload: str, settings: list[str], words: str
) -> None:
    before = {path.name for path in (user.home / "jobs").glob("*")}
    out = user("submit", workload, *set_words(settings), code=2)
    assert words in out and "inspect_workload" not in out
    assert {path.name for path in (user.home / "jobs").glob("*")} == before
