"""A host's look at a workload of the user's whose parameters are functions, without the host's devices."""

import asyncio
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

from launcher.user_process import inspect

WORKLOAD = """
    import dataclasses
    import jax.numpy as jnp
    from workloads.errors import ConfigError
    from workloads.params import param

    TABLE = jnp.arange(3)  # touches a device

    def is_documented(function):
        'Itself, for one.'
        if not function.function.__doc__:
            raise ConfigError(f"{function.text}: {function(0)} and no word about it")

    @dataclasses.dataclass(frozen=True)
    class Config:
        loss: str = param("losses:square", "of one residual", function=True)
        penalty: str = param("none", "of the weights", choices=("none",), function_check="inspected:is_documented")

    def run(config: Config, context, resume=False):
        pass
"""
LOSSES = """
    def square(x):
        return x ** 2
"""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "./losses.py:square", "penalty": "inspected:is_documented"}, ""),
        ({"loss": "./losses.py:cube"}, "losses.py has no function 'cube'"),
        ({"penalty": "losses:square"}, "losses:square: 0 and no word about it"),
        ({"penalty": "sum"}, "must be one of none, or a function as ./FILE.py:FUNCTION or MODULE:FUNCTION"),
    ],
)
def test_functions_of_parameters_are_found_and_checked(tmp_path: Path, settings: dict[str, str], words: str) -> None:
    for name, text in (("inspected.py", WORKLOAD), ("losses.py", LOSSES)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    question = {"workload": "./inspected.py:run", "settings": settings, "num_hosts": 1, "devices_per_host": 1}
    environment = {**os.environ, "JAX_PLATFORMS": "tpu"}  # whose chips a rank holds
    answer: dict[str, Any] = asyncio.run(inspect(question, environment, tmp_path, None))
    if "config" in answer:
        assert answer["config"] == {"loss": "losses:square", "penalty": "none", **settings}
        assert [param["is_function"] for param in answer["params"]] == [True, True]
    assert words in answer.get("refused", "")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0\nIt ends Python when it is imported"),
        ("import os; os._exit(0)", "its process ended with code 0"),
        ("import atexit; atexit.register(print, '{}', flush=True); print('[1]')", ""),
        ("import atexit, os; atexit.register(os._exit, 3)", ""),  # what it had to say it has said
    ],
)
def test_a_module_that_exits_or_prints_is_answered_for(tmp_path: Path, more: str, words: str) -> None:
    (tmp_path / "inspected.py").write_text(f"{more}\n{textwrap.dedent(WORKLOAD)}")
    question = {"workload": "./inspected.py:run", "settings": None, "num_hosts": 1, "devices_per_host": 1}
    answer: dict[str, Any] = asyncio.run(inspect(question, dict(os.environ), tmp_path, None))
    assert words in answer.get("refused", "")
    assert ("params" in answer) == (not words)
