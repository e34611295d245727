"""Programs that know nothing of us (`programs/`), unmodified, on two layouts: the values of a single process.

They are written after the pages of JAX's own documentation that they name, and use Orbax and Flax as theirs do.
"""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Cli, assert_nothing_left, cluster_file

pytestmark = pytest.mark.cluster

PROGRAMS = Path(__file__).parent / "programs"
SHORT = ["process_spanning", "multihost_utilities"]
SLOW = ["device_subset"]
LONG = ["data_loading", "flax_training", "shard_map_collectives"]
NUM_DEVICES = 4
RTOL = 1e-4  # sums are taken in another order
numbers = itertools.count()


def alone(program: str, *arguments: str) -> Any:
    """What it prints in one process with all devices, which a Slurm of one task seems to have started."""
    task = {"JOB_ID": str(os.getpid()), "STEP_NODELIST": "localhost", "NTASKS": "1", "PROCID": "0", "LOCALID": "0"}
    environment = os.environ | {f"SLURM_{name}": value for name, value in task.items()}
    environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={NUM_DEVICES}"}
    done = subprocess.run(
        [sys.executable, f"{program}.py", *arguments], cwd=PROGRAMS, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (value,) = values(done.stdout)
    return value


def on_hosts(cli: Cli, cluster: str, program: str, *arguments: str) -> Any:
    """What all ranks print, which is the same."""
    job = f"program-{next(numbers)}-{cluster}"
    words = ["run", "--cluster", cluster, "--name", job, "--", "python", f"{program}.py", *arguments]
    out = Cli(cli.home, PROGRAMS)(*words)
    num_hosts = cli.record(cluster)["spec"]["num_hosts"]
    assert "exit codes     " + ", ".join(f"0 of rank {rank}" for rank in range(num_hosts)) in out
    logs = [(cli.home / "jobs" / job / "logs" / f"attempt-1.rank-{rank}.log") for rank in range(num_hosts)]
    told = [value for log in logs for value in values(log.read_text())]
    assert len(told) == num_hosts
    for value in told[1:]:
        np.testing.assert_allclose(flat(value), flat(told[0]), rtol=RTOL)
    return told[0]


def values(output: str) -> list[Any]:
    """What stands after "value " in a line, before which a part of one of gloo's can stand."""
    return [json.loads(line) for line in re.findall(r"\bvalue (.*)$", output, re.MULTILINE)]


def flat(value: Any) -> list[float]:
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [value]


@pytest.fixture(scope="module")
def four_hosts(cli: Cli) -> Iterator[str]:
    """Four emulated hosts x one device."""
    name = "four"
    cli("up", str(cluster_file(cli.home, name, num_hosts=4, devices_per_host=1)))
    record = cli.record(name)
    yield name
    cli("down", name, "--force")
    assert_nothing_left(record, cli.home)


@pytest.mark.parametrize("program", SHORT)
def test_short_programs_on_two_hosts(cli: Cli, cluster: str, program: str) -> None:
    np.testing.assert_allclose(flat(on_hosts(cli, cluster, program)), flat(alone(program)), rtol=RTOL)


@pytest.mark.slow
@pytest.mark.parametrize("program", [*SLOW, *(pytest.param(one, marks=pytest.mark.long) for one in [*SHORT, *LONG])])
def test_programs_on_both_layouts(cli: Cli, cluster: str, four_hosts: str, program: str) -> None:
    expected = flat(alone(program))
    for layout in (four_hosts,) if program in SHORT else (cluster, four_hosts):
        np.testing.assert_allclose(flat(on_hosts(cli, layout, program)), expected, rtol=RTOL)


@pytest.mark.slow
def test_what_orbax_has_saved_is_restored_on_the_other_layout(
    cli: Cli, cluster: str, four_hosts: str, tmp_path: Path
) -> None:
    program, hosts, single = "orbax_checkpoints", str(tmp_path / "hosts"), str(tmp_path / "single")
    for layout, begun in ((cluster, 0), (four_hosts, 3), (cluster, 6)):
        value = on_hosts(cli, layout, program, hosts)
        assert value[:2] == [begun, [begun + 2, begun + 3]]
        np.testing.assert_allclose(flat(value), flat(alone(program, single)), rtol=RTOL)
