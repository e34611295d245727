"""Where clouds are asked, and what is left over there; a cloud of this file stands for the real ones."""

import shutil
import sys
import types
from pathlib import Path

import pytest

from cluster import leftovers as module
from cluster.errors import ClusterError
from cluster.farewell import Farewell
from cluster.labels import own_user
from cluster.leftovers import OF_PROJECT, Place, Resource, leftovers, places, remember
from cluster.processes import ProcessId
from cluster.record import Cluster, cluster_folder, write_json
from cluster.spec import ClusterSpec, LocalProviderSpec
from launcher.errors import FailureError, UserError
from launcher.leftover_search import delete_leftover, search
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("state_folder")


def resource(name: str, cluster: str, where: str = "p/us-east5-b", user: str = "", id_: str = "a1") -> Resource:
    return Resource(
        provider=OF_PROJECT, where=where, kind="queued resource", name=name, cluster=cluster, id=id_, state="ACTIVE",
        created="", billable=True, user=user,
    )  # fmt: skip


def record(name: str, id_: str = "a1", file: str = "slices.json") -> None:
    """A cluster that has asked for something here."""
    cluster_folder(name).mkdir(parents=True)
    write_json(cluster_folder(name) / file, {"request_id": id_})


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
    record("one")
    cluster_folder("local").mkdir()
    found = [resource("b", "two"), resource("a", "two"), resource("c", "one")]
    assert leftovers(found, ["one"]) == [resource("a", "two"), resource("b", "two")]
    unmarked, older, of_local = resource("d", "one", id_=""), resource("e", "one", id_="b2"), resource("f", "local")
    assert leftovers([older, of_local, unmarked], ["one", "local"]) == [of_local, unmarked, older], "names may be alike"
    record("gpus", "c3", "launcher.json")
    assert leftovers([resource("g", "gpus", id_="c3")], ["gpus"]) == []


def test_what_a_cluster_that_took_itself_down_has_left_is_found(cloud: FakeCloud) -> None:
    record("lab")
    remember(Place(OF_PROJECT, "p"))
    assert [found.name for found in search().found] == ["old-0", "pod-0"]
    shutil.copytree(cluster_folder("lab"), cluster_folder("old"))
    write_json(cluster_folder("old") / "cluster.json", went_down().to_json())
    assert [found.name for found in search().found] == ["pod-0"]
    Farewell(name="old", cluster_id="c1", ended="2026-11-22T14:00:00+00:00", why="after 30m", jobs={}).save()
    assert [found.name for found in search().found] == ["old-0", "pod-0"]


def went_down() -> Cluster:
    return Cluster(
        spec=ClusterSpec(name="old", provider=LocalProviderSpec(), num_hosts=1, devices_per_host=1), cluster_id="c1",
        holder=ProcessId.current(), gcs_address="10.0.0.0:1", run_folder="/tmp/spl-x", hosts=(), created="",
    )  # fmt: skip


def test_every_place_is_asked_and_one_that_cannot_be_is_named(cloud: FakeCloud) -> None:
    record("lab")
    assert search().asked == []  # none was ever used
    remember(Place(OF_PROJECT, "p"))
    assert [found.name for found in search().found] == ["old-0", "pod-0"]
    seen = search("closed")
    assert [found.name for found in seen.found] == ["old-0", "pod-0"]
    assert seen.failures == ["gcp-tpu in closed cannot be asked: permission denied for closed: gcloud auth login"]


def test_a_leftover_is_deleted_by_its_name_and_a_colleagues_only_by_force(cloud: FakeCloud) -> None:
    record("lab")
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
