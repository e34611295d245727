"""What `status` prints of a cluster."""

from pathlib import Path
from typing import Any

import pytest

from launcher.cli.status import _print_cluster
from launcher.job_folder import JobFolder
from tests.conftest import job_spec


@pytest.mark.parametrize(("told", "name"), [({"job_id": "0c"}, "j.0c"), ({"job_id": "b7"}, "j"), ({}, "j")])
def test_a_job_has_the_name_by_which_commands_here_take_it(
    state_folder: Path, capsys: pytest.CaptureFixture[str], told: dict[str, str], name: str
) -> None:
    """Another cluster's job, of id b7, may have its name here; a supervisor of an older version tells no id."""
    JobFolder.create(job_spec("j"), "another").close()
    job = {"name": "j", "state": "RUNNING", "ranks": [], "message": ""} | told
    cluster: dict[str, Any] = {"name": "c", "state": "READY", "troubles": [], "age_s": 1.0, "cost": None, "hosts": [],
                               "jobs": [job]}  # fmt: skip
    _print_cluster(cluster)
    out = capsys.readouterr().out
    assert f"  job {name} RUNNING" in out and f"  spmd-launch status {name} --watch\n" in out
