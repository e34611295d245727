"""`submit NAME` of a package that is installed: on the client alone, and on the hosts too."""

from pathlib import Path

import pytest

from tests.conftest import Cli, assert_nothing_left, cluster_file
from tests.user_package import python_with

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_it_is_refused_where_hosts_have_it_not_and_runs_where_they_have(cli: Cli, cluster: str, tmp_path: Path) -> None:
    user = Cli(cli.home, tmp_path, python_with(tmp_path / "environment", "lab-fit"))
    out = user("submit", "lab-fit", "--cluster", cluster, code=2)
    assert f"no package on {cluster}-0, {cluster}-1 offers a workload 'lab-fit', as one does here" in out
    user("up", str(cluster_file(tmp_path, "lab", num_hosts=1)))
    record = cli.record("lab")
    try:
        assert "size = 3  (whole number)" in user("workloads", "lab-fit", "--cluster", "lab")
        out = user("submit", "lab-fit", "--cluster", "lab", "--set", "size=0", code=2)
        assert "size=0: must be at least 1" in out
        done = user.json("submit", "lab-fit", "--cluster", "lab", "--set", "size=7")
        assert done["metrics"] == {"sum": 7.0} and user.job("lab-fit-1")["spec"]["files"] == {}
        assert user.json("submit", "--resume", "lab-fit-1", "--cluster", "lab")["metrics"] == {"sum": 7.0}
    finally:
        user("down", "lab", "--force")
    assert_nothing_left(record, cli.home)
