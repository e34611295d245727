"""The workload in one process, without a cluster: `python -m pytest test_my_workload.py`."""

from pathlib import Path

import numpy as np
import pytest
from my_workload import Config, make_data, run

from workloads.context import Context
from workloads.errors import ConfigError
from workloads.layout import Layout


def test_it_finds_the_least_squares_with_a_penalty(tmp_path: Path) -> None:
    config = Config(num_steps=200)
    result = run(config, Context.local(tmp_path, seed=1))
    x, y = (array.reshape(config.num_rows, -1).astype(np.float64) for array in make_data(config, seed=1))
    exact = np.linalg.solve(x.T @ x / len(x) + config.penalty * np.eye(8), x.T @ y / len(x))[:, 0]
    np.testing.assert_allclose(result.diagnostics["weights"], exact, rtol=1e-4, atol=1e-4)


def test_a_run_that_goes_on_from_a_checkpoint_has_the_bits_of_one_that_never_stopped(tmp_path: Path) -> None:
    whole = run(Config(num_steps=40), Context.local(tmp_path / "whole"))
    run(Config(num_steps=20), Context.local(tmp_path / "parts"))
    resumed = run(Config(num_steps=40), Context.local(tmp_path / "parts"), resume=True)
    assert resumed.result_digest == whole.result_digest


def test_blocks_that_do_not_divide_over_the_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_blocks=8: must be a multiple of the 3 devices"):
        Config().check(Layout(num_hosts=3, devices_per_host=1))
