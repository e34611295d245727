"""Where clouds are asked, and what is left over there; a cloud of this file stands for the real ones."""

import sys
import types
from pathlib import Path

import pytest

from cluster import leftovers as module
from cluster.errors import ClusterError
from cluster.labels import own_user
from cluster.leftovers import OF_PROJECT, Place, Resource, leftovers, places, remember
from cluster.record import cluster_folder
from launcher.errors import FailureError, UserError
from launcher.leftover_search import delete_leftover, search
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("state_folder")


def resource(name: str, cluster: str, where: str = "p/us-east5-b", user: str = "") -> Resource:
    return Resource(
        provider=OF_PROJECT, where=where, kind="queued resource", name=name, cluster=cluster, state="ACTIVE",
        created="", billable=True, user=user,
    )  # fmt: skip


class FakeCloud(types.ModuleType):
    """Resources by project; a project that it does not have cannot be asked."""

    def __init__(self, **projects: list[Resource]):
        super().__init__("fake_cloud")
        self.projects = projects

    def labelled(self, where: str) -> list[Resource]:
        if where not in self.projects:
            raise ClusterError(f"permission denied for {where}: gcloud auth login")
        return list(self.projects[where])

    def delete_labelled(self, resource: Resource) -> None:
        project = resource.where.partition("/")[0]
        self.projects[project].remove(resource)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    other = resource("pod-0", "pod", user="somebody-else")
    cloud = FakeCloud(p=[resource("old-0", "old"), resource("lab-0", "lab"), other], q=[])
    monkeypatch.setitem(sys.modules, "fake_cloud", cloud)
    monkeypatch.setattr(module, "CLOUDS", {OF_PROJECT: "fake_cloud"})
    return cloud


def test_places_are_remembered_once_each(state_folder: Path) -> None:
    assert places() == []
    for place in (Place("b", "us-east-1"), Place("a", "p"), Place("b", "us-east-1")):
        remember(place)
    assert places() == [Place("a", "p"), Place("b", "us-east-1")]


def test_what_belongs_to_a_known_cluster_is_no_leftover() -> None:
    found = [resource("b", "two"), resource("a", "two"), resource("c", "one")]
    assert leftovers(found, ["one"]) == [resource("a", "two"), resource("b", "two")]


def test_every_place_is_asked_and_one_that_cannot_be_is_named(cloud: FakeCloud) -> None:
    cluster_folder("lab").mkdir(parents=True)
    assert search().asked == []  # none was ever used
    remember(Place(OF_PROJECT, "p"))
    assert [found.name for found in search().found] == ["old-0", "pod-0"]
    seen = search("closed")
    assert [found.name for found in seen.found] == ["old-0", "pod-0"]
    assert seen.failures == ["gcp-tpu in closed cannot be asked: permission denied for closed: gcloud auth login"]


def test_a_leftover_is_deleted_by_its_name_and_a_colleagues_only_by_force(cloud: FakeCloud) -> None:
    cluster_folder("lab").mkdir(parents=True)
    remember(Place(OF_PROJECT, "p"))
    assert delete_leftover("old-0", None, force=False).cluster == "old"
    assert [left.name for left in cloud.projects["p"]] == ["lab-0", "pod-0"]
    for name, words in {
        "lab-0": "is none of what is left over",  # of a cluster that is known
        "old-0": "is none of what is left over",
        "pod-0": "was made by somebody-else, maybe for a cluster that is up: --force deletes it",
    }.items():
        with pytest.raises(UserError, match=words):
            delete_leftover(name, None, force=False)
    with pytest.raises(FailureError, match="where it could be asked\ngcp-tpu in closed cannot be asked"):
        delete_leftover("old-0", "closed", force=False)
    delete_leftover("pod-0", "q", force=True)
    assert [left.name for left in cloud.projects["p"]] == ["lab-0"]
    assert own_user() and own_user() == own_user().lower()


def test_list_without_anything(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    assert cli("list").startswith("no cluster is known here\n")
    assert "nothing is left over in clouds (asked: none, as none was ever used from here)" in cli("list", "--all")
    assert cli.json("list", "--all") == {"clusters": [], "leftovers": [], "asked": [], "failures": []}
    assert "--project belongs to --all" in cli("list", "--project", "p", code=2)
