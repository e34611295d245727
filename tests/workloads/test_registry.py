"""The table of workloads: complete, cheap to read, and helpful about a wrong name."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from workloads.errors import ConfigError
from workloads.params import describe, parse
from workloads.registry import WORKLOADS, find

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("jax", "tensorflow_probability", "flax", "numpy")


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_keeps_its_promises(name: str) -> None:
    spec = find(name)
    assert spec.name == name and spec.summary
    config_class = spec.config_class()
    config = parse(config_class, {})
    assert config_class.__dataclass_params__.frozen
    assert list(inspect.signature(config_class.check).parameters) == ["self", "layout"]
    parameters = {info.name: info for info in describe(config_class)}
    assert parameters["x64"].default is False
    assert set(parameters["precision"].choices) == {"default", "high", "highest"}
    assert all(info.help for info in parameters.values())
    assert config_class(**dataclasses.asdict(config)) == config


@pytest.mark.parametrize("name", WORKLOADS)
def test_configs_are_read_without_jax(name: str) -> None:
    code = f"import sys; from workloads.registry import find; find({name!r}).config_class()(); print(*sys.modules)"
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert not {module.partition(".")[0] for module in ran.stdout.split()} & set(HEAVY)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("transfomer", "; did you mean 'transformer'?"),
        ("Transformer", "; did you mean 'transformer'?"),
        ("independent_chains", "; did you mean 'independent-chains'?"),
        ("mcmc", "; did you mean 'sharded-mcmc'?"),
        ("qqq", ""),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find(name)
    assert str(refused.value) == (
        f"no workload {name!r}{hint} "
        "(there are: independent-chains, sharded-mcmc, transformer, psum-check, bandwidth-check)"
    )
