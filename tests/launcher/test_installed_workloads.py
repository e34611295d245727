"""Workloads that installed packages offer: listed, found, and never mistaken for another. The packages are real."""

from pathlib import Path

import pytest

from launcher.rank.inspect_workload import look
from launcher.user_submission import disagreement
from tests.conftest import Cli
from tests.user_package import install
from workloads.errors import ConfigError
from workloads.installed import find_installed, name_clashes
from workloads.registry import WORKLOADS, find


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = install(tmp_path_factory.mktemp("packages"), "lab-fit", "transformer", "twice")
    return install(folder, "twice", package="other-models", version="2.1")


@pytest.fixture
def installed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(packages))
    return packages


def test_they_are_listed_beside_ours_and_clashes_are_told(packages: Path, tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.environment["PYTHONPATH"] += f":{packages}"
    out = cli("workloads")
    assert "lab-fit             lab_models.fit:run, of lab-models 1.0" in out
    said = " ".join(out.replace("! ", "").split())
    assert "'transformer' is ours; that of lab-models 1.0 can be submitted as lab_models.fit:run" in said
    assert "'twice' is offered by lab-models 1.0 and other-models 2.1: submit lab_models.fit:run or" in said
    listed = {one["name"]: one.get("package") for one in cli.json("workloads")}
    assert listed["lab-fit"] == "lab-models 1.0" and listed["transformer"] is None
    assert "no workload 'lab-fits'; did you mean 'lab-fit'?" in cli("workloads", "lab-fits", code=2)
    assert "'twice' is offered by lab-models 1.0 and" in cli("workloads", "twice", code=2)


def test_a_host_finds_it_with_its_parameters(installed: Path, tmp_path: Path) -> None:
    question = {"settings": {"size": "5"}, "folder": str(tmp_path), "num_hosts": 1, "devices_per_host": 1}
    answer = look({**question, "workload": "lab-fit"})
    assert answer["config"] == {"size": 5} and answer["package"] == "lab-models 1.0"
    assert [param["name"] for param in answer["params"]] == ["size"]
    assert look({**question, "workload": "lab-fits"}) == {"absent": True}
    with pytest.raises(ConfigError, match="size=0: must be at least 1"):
        look({**question, "workload": "lab-fit", "settings": {"size": "0"}})
    with pytest.raises(ConfigError, match="'twice' is offered by"):
        look({**question, "workload": "twice"})


def test_a_name_of_ours_stays_ours(installed: Path) -> None:
    assert find("transformer").run == "workloads.transformer.run:run"
    assert len(name_clashes(list(WORKLOADS))) == 2
    assert find_installed("nothing") is None


def test_hosts_that_have_it_not_or_another_are_named() -> None:
    good = {"params": [], "package": "lab-models 1.0"}
    assert disagreement("lab-fit", {"a": good, "b": good}) == ""
    assert "no package on b, c offers a workload 'lab-fit'" in disagreement(
        "lab-fit", {"a": good, "b": {"absent": True}, "c": {"absent": True}}
    )
    assert disagreement("lab-fit", {"a": good, "b": {"refused": "no"}}) == "no"
    other = disagreement("lab-fit", {"a": good, "b": {**good, "package": "lab-models 1.1"}})
    assert other.endswith("every host must have the same package; it is of lab-models 1.0 on a, lab-models 1.1 on b")
