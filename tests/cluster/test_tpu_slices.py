"""Slices asked for, waited for and deleted, through google's own client, at a server in this process."""

import dataclasses
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="the extra gcp is not installed")

from cluster import gcp_tpu_provider, tpu_cloud, tpu_delete, tpu_plan, tpu_slices, tpu_zones
from cluster.accelerators import Accelerator
from cluster.errors import ClusterError, NotGivenError
from cluster.gcp_spec import GcpTpuProviderSpec
from cluster.gcp_tpu_provider import GcpTpuProvider
from cluster.leftovers import leftovers, request_id
from cluster.place_code import Code
from cluster.plan import Action
from cluster.record import Cluster, cluster_folder, save_spec
from cluster.spec import ClusterSpec
from cluster.ssh_provider import SshProvider
from cluster.tpu_health import unhealthy
from cluster.tpu_key import make_key
from cluster.tpu_labelled import delete_labelled, labelled
from cluster.tpu_self_delete import delete_from_inside
from cluster.tpu_slice import Slice
from launcher.cli.plan_text import plan_text
from launcher.dry_run import plan_down, plan_up
from tests.provision.credentials import write_service_account
from tests.provision.fake_tpu import FakeTpu, NoMachines, TpuServer

NO_CODE = Code("", b"")


@dataclasses.dataclass
class Zone:
    """A fake cloud with a client in this process."""

    fake: FakeTpu
    spec: ClusterSpec
    said: list[str]

    def provider(self, **changes: Any) -> GcpTpuProvider:
        """As `up` has it for a cluster of the file, with some settings of the provider changed."""
        self.spec = dataclasses.replace(self.spec, provider=dataclasses.replace(self.spec.provider, **changes))
        save_spec(self.spec)
        return GcpTpuProvider(self.spec)

    def begin(self, provider: GcpTpuProvider) -> None:
        """As `up` does until all slices are there."""
        provider.slices.ask_for(make_key(provider.provider, self.spec.name), self.said.append)
        provider.slices.wait(self.said.append)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="slt-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[TpuServer]:
    """One for all tests: the roots that a process trusts are read once."""
    server = TpuServer(FakeTpu(NoMachines()), folder)
    write_service_account(folder / "account.json")
    os.environ["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(server.roots)
    yield server
    del os.environ["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"]
    server.close()


@pytest.fixture
def zone(server: TpuServer, folder: Path, state_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Zone:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "account.json"))
    for module in (tpu_slices, tpu_delete):
        monkeypatch.setattr(module, "FIRST_POLL_S", 0.02)
    monkeypatch.setattr(tpu_delete, "SURE_PAUSE_S", 0.02)
    server.fake = FakeTpu(NoMachines(), waiting_s=0.04, provisioning_s=0.04, deleting_s=0.04)
    provider = GcpTpuProviderSpec(
        project="test-project", zone="us-central2-b", user="root", endpoint=server.endpoint, spot=True
    )
    spec = ClusterSpec(
        name="pod", provider=provider, num_hosts=4, devices_per_host=4, accelerator="tpu-v4-16", emulate=True
    )
    return Zone(server.fake, spec, [])


def test_what_is_asked_for_is_what_the_file_says_and_is_marked_as_ours(zone: Zone) -> None:
    zone.fake._waiting_s = 2.0  # else it may be over before anybody has looked for the first time
    provider = zone.provider(service_account="vm@p.iam.gserviceaccount.com", network="net", use_internal_ips=True)
    zone.begin(provider)
    asked = zone.fake.request("pod-1")
    node = asked.tpu.node_spec[0].node
    assert "spot" in asked and asked.tpu.node_spec[0].node_id == "pod-1"
    assert (node.accelerator_type, node.runtime_version) == ("v4-16", "tpu-ubuntu2204-base")
    assert (node.network_config.network, node.network_config.enable_external_ips) == ("net", False)
    assert node.service_account.email == "vm@p.iam.gserviceaccount.com"
    assert dict(node.labels) == {
        "spmd-launch-cluster": "pod",
        "spmd-launch-id": provider.slices.request_id(),
        "spmd-launch-user": "root" if os.geteuid() == 0 else node.labels["spmd-launch-user"],
    }
    public = (cluster_folder("pod") / "ssh_key.pub").read_text().split()
    assert node.metadata["ssh-keys"] == f"root:{public[0]} {public[1]} root"
    assert (cluster_folder("pod") / "ssh_key").stat().st_mode & 0o777 == 0o600
    states = [line.split()[1] for line in zone.said if line.startswith("pod-0: ") and " since " in line]
    passed = ["WAITING_FOR_RESOURCES", "PROVISIONING", "READY"]
    assert states == [state for state in passed if state in states] and states[-1] == "READY" and len(states) > 1
    assert provider.delete(NO_CODE) == [] and zone.fake.there() == {} and not cluster_folder("pod").exists()


def test_machines_are_hosts_in_the_order_of_their_worker_ids(zone: Zone) -> None:
    provider = zone.provider()
    zone.begin(provider)
    targets = provider._reach(provider.slices.now()).access.targets
    assert [(target.name, target.address) for target in targets] == [
        ("pod-0-w0", "127.0.2.10"), ("pod-0-w1", "127.0.2.11"),
        ("pod-1-w0", "127.0.2.10"), ("pod-1-w1", "127.0.2.11"),
    ]  # fmt: skip


def test_a_plan_names_what_would_be_done_and_does_nothing(zone: Zone) -> None:
    provider = zone.provider()
    plan = [(action.verb, action.kind, action.name) for action in provider.plan_up()]
    assert plan[:2] == [("create", "queued resource", "pod-0"), ("create", "TPU VM", "pod-0")]
    assert plan[4:] == [("start", "host", f"pod-{k}-w{w}") for k in range(2) for w in range(2)]
    assert provider.plan_down() == [] and zone.fake.there() == {}
    zone.begin(provider)
    zone.fake.preempt("pod-1")
    again = provider.plan_up()
    assert again[:2] == [
        Action(verb="keep", kind="TPU VM", name="pod-0", detail="READY"),
        Action(verb="delete", kind="queued resource", name="pod-1", detail="PREEMPTED"),
    ]
    down = [(action.verb, action.kind, action.name) for action in provider.plan_down()]
    assert down == [("delete", kind, f"pod-{k}") for k in range(2) for kind in ("queued resource", "TPU VM")]
    going = Slice(name="pod-0", request="DELETING", node="READY")
    steps = [(action.verb, action.kind) for action in tpu_plan.plan_up(provider.slices, [going])]
    assert steps == [("delete", "queued resource"), ("create", "queued resource"), ("create", "TPU VM")]


def test_a_dead_slice_is_asked_for_again_and_no_other(zone: Zone) -> None:
    provider = zone.provider()
    zone.begin(provider)
    zone.fake.preempt("pod-1")
    [trouble] = provider.troubles()
    assert (trouble.text, trouble.head_is_gone) == ("slice pod-1: PREEMPTED", False)
    zone.fake.calls.clear()
    zone.begin(provider)
    assert [name for method, name in zone.fake.calls if method == "CreateQueuedResource"] == ["pod-1"]
    assert "pod-1: PREEMPTED; deleting it, to ask for it again" in zone.said
    assert provider.troubles() == []
    zone.fake.preempt("pod-0")
    assert [(trouble.head_is_gone, trouble.by_order) for trouble in provider.troubles()] == [(True, False)]
    zone.fake.health("pod-1", "UNHEALTHY_MAINTENANCE")
    assert [trouble.text for trouble in provider.troubles()][1:] == ["slice pod-1: READY UNHEALTHY_MAINTENANCE"]


def test_a_slice_that_cannot_be_mended_is_given_back_and_no_other(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcp_tpu_provider, "SSHD_TIMEOUT_S", 0.0)
    provider = zone.provider()
    zone.begin(provider)
    zone.fake.preempt("pod-1")
    [trouble] = provider.troubles()
    assert (trouble.gone, trouble.by_order) == (("pod-1-w0", "pod-1-w1"), False)
    plan = [(action.verb, action.kind, action.name) for action in provider.plan_mend(["pod-1-w0"])]
    assert plan == [
        ("delete", "queued resource", "pod-1"), ("create", "queued resource", "pod-1"), ("create", "TPU VM", "pod-1"),
        ("start", "host", "pod-1-w0"), ("start", "host", "pod-1-w1"),
    ]  # fmt: skip
    zone.fake.calls.clear()
    with pytest.raises(ClusterError, match="host pod-1-w"):  # nobody answers there
        provider.mend(cast(Cluster, None), ["pod-1-w0"], NO_CODE, zone.said.append)
    assert [name for method, name in zone.fake.calls if method == "CreateQueuedResource"] == ["pod-1"]
    assert "pod-1: PREEMPTED; deleting it, to ask for it again" in zone.said and provider.troubles() == []
    monkeypatch.setattr(SshProvider, "unmend", fail)
    with pytest.raises(ClusterError, match="ssh is at its end"):
        provider.unmend(NO_CODE)
    assert {key.rpartition("/")[2] for key in zone.fake.there()} == {"pod-0"}, "whatever ssh says"
    assert [trouble.by_order for trouble in provider.troubles()] == [True]
    provider.close()


def test_an_unhealthy_slice_is_told_and_asked_for_again_where_it_has_lost_a_host(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcp_tpu_provider, "SSHD_TIMEOUT_S", 0.0)
    provider = zone.provider()
    zone.begin(provider)
    assert unhealthy(zone.spec) == []
    zone.fake.health("pod-1", "UNHEALTHY_MAINTENANCE")
    [line] = unhealthy(zone.spec)
    assert line.startswith("slice pod-1: READY UNHEALTHY_MAINTENANCE, as its cloud says; should a host of it be lost")
    assert provider.plan_mend([]) == [], "it works yet"
    delete, create, *_ = provider.plan_mend(["pod-1-w1"])
    assert (delete.verb, delete.name, delete.detail) == ("delete", "pod-1", "READY UNHEALTHY_MAINTENANCE")
    assert (create.verb, create.name) == ("create", "pod-1")
    zone.fake.calls.clear()
    with pytest.raises(ClusterError, match="host pod-1-w"):  # nobody answers there
        provider.mend(cast(Cluster, None), ["pod-1-w1"], NO_CODE, zone.said.append)
    assert "pod-1: READY UNHEALTHY_MAINTENANCE; deleting it, to ask for it again" in zone.said
    assert [name for method, name in zone.fake.calls if method == "CreateQueuedResource"] == ["pod-1"]
    assert unhealthy(zone.spec) == []
    zone.fake.order("ListNodes", code="PERMISSION_DENIED", message="no", times=1)
    assert unhealthy(zone.spec) == []
    provider.close()


def fail(*_: Any) -> None:
    raise ClusterError("ssh is at its end")


def test_a_slice_that_is_taken_from_under_the_head_is_not_mended(zone: Zone) -> None:
    provider = zone.provider()
    zone.begin(provider)
    zone.fake.suspend("pod-0")  # the head answers yet
    zone.fake.calls.clear()
    with pytest.raises(ClusterError, match=r"slice pod-0 is SUSPENDING, and the head is on it: `up` again"):
        provider.mend(cast(Cluster, None), ["pod-0-w1"], NO_CODE, zone.said.append)
    provider.unmend(NO_CODE)
    assert {method for method, _ in zone.fake.calls} <= {"ListQueuedResources", "ListNodes"}


@pytest.mark.parametrize(
    ("happens", "state", "by_order"),
    [
        (lambda fake: fake.suspend("pod-1"), "SUSPENDING", False),
        (lambda fake: fake.suspend("pod-1", by="USER"), "SUSPENDING", True),
        (lambda fake: fake.stop("pod-1"), "STOPPED", True),
        (lambda fake: (fake.stop("pod-1"), fake.suspend("pod-1")), "STOPPED", False),
    ],
)
def test_what_a_person_has_ended_is_told_from_what_was_taken(
    zone: Zone, happens: Any, state: str, by_order: bool
) -> None:
    provider = zone.provider()
    zone.begin(provider)
    happens(zone.fake)
    [trouble] = provider.troubles()
    assert (trouble.text, trouble.by_order) == (f"slice pod-1: {state}", by_order)
    assert trouble.gone == ("pod-1-w0", "pod-1-w1")


QUOTA = "Quota limit 'TPUV4sPreemptiblePodPerProjectPerZone' has been exceeded. Limit: 0 in zone us-central2-b."
STOCK = "There is no more capacity in the zone"
OFF = "Cloud TPU API has not been used in project 1"
TYPES = "accelerator-types list --zone us-central2-b --project test-project"


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        ("RESOURCE_EXHAUSTED", QUOTA, "the preemptible (spot) quota of tpu-v4-16 in us-central2-b is used up"),
        ("RESOURCE_EXHAUSTED", STOCK, "the zone has none free: another zone that has tpu-v4-16, or later; or a `reser"),
        ("PERMISSION_DENIED", "Permission 'tpu.nodes.create' denied", "needs roles/tpu.admin in test-project"),
        ("PERMISSION_DENIED", OFF, "`gcloud services enable tpu.googleapis.com --project test-project`"),
        ("UNAUTHENTICATED", "invalid authentication credentials", "`gcloud auth application-default login`"),
        ("INVALID_ARGUMENT", "network nowhere not found", TYPES),
    ],
)
def test_a_refusal_says_what_to_do_and_is_not_repeated(zone: Zone, code: str, message: str, words: str) -> None:
    provider = zone.provider()
    zone.fake.order("CreateQueuedResource", code=code, message=message, times=9)
    with pytest.raises(ClusterError) as refused:
        zone.begin(provider)
    for word in (message, "CreateQueuedResource (test-project, us-central2-b)", words):
        assert word in str(refused.value)
    assert sum(method == "CreateQueuedResource" for method, _ in zone.fake.calls) == 1
    assert provider.delete(NO_CODE) == [] and zone.fake.there() == {}


@pytest.mark.parametrize(
    ("code", "reason"),
    [("UNAVAILABLE", ""), ("INTERNAL", ""), ("DEADLINE_EXCEEDED", ""), ("RESOURCE_EXHAUSTED", "RATE_LIMIT_EXCEEDED")],
)
@pytest.mark.parametrize("done_first", [False, True])
def test_what_may_pass_is_tried_again_and_a_lost_answer_makes_no_second_slice(
    zone: Zone, monkeypatch: pytest.MonkeyPatch, code: str, reason: str, done_first: bool
) -> None:
    monkeypatch.setattr(tpu_cloud, "FIRST_RETRY_S", 0.01)
    provider = zone.provider()
    for method in ("ListQueuedResources", "CreateQueuedResource", "DeleteQueuedResource"):
        zone.fake.order(method, code=code, message="later", reason=reason, done_first=done_first, times=2)
    zone.begin(provider)
    assert len([key for key in zone.fake.there() if "queuedResources" in key]) == 2
    assert provider.delete(NO_CODE) == [] and zone.fake.there() == {}


def test_an_api_that_does_not_get_better_is_given_up(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_cloud, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(tpu_cloud, "RETRY_FOR_S", 2.0)
    zone.fake.order("ListNodes", code="UNAVAILABLE", message="the service is down", times=1000)
    with pytest.raises(ClusterError, match="the service is down\n  the API did not get better while we tried"):
        zone.provider().find()
    assert len(zone.fake.calls) > 3


def test_an_api_that_does_not_answer_is_given_up(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_cloud, "CALL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(tpu_cloud, "RETRY_FOR_S", 0.2)
    zone.fake.order("ListNodes", delay_s=0.4, times=5)
    with pytest.raises(ClusterError, match="Deadline Exceeded"):
        zone.provider().find()


def test_a_request_that_fails_while_it_is_waited_for_says_why(zone: Zone) -> None:
    provider = zone.provider()
    provider.slices.ask_for({}, zone.said.append)
    zone.fake.fail("pod-1", 8, "There is no more capacity in the zone")
    with pytest.raises(NotGivenError, match="slice pod-1 is FAILED: There is no more capacity") as failed:
        provider.slices.wait(zone.said.append)
    assert "the zone has none free" in str(failed.value)
    assert "us-central2-b has v4-16; no other zone that answers has it" in str(failed.value)
    zone.begin(provider)  # again: the failed one is deleted and asked for anew, the other is kept
    assert sum(method == "CreateQueuedResource" for method, _ in zone.fake.calls) == 3


def test_a_request_that_is_refused_after_its_answer_says_why(zone: Zone) -> None:
    provider = zone.provider()
    provider.slices.ask_for({}, zone.said.append)
    zone.fake.refuse_operation(7, "service account vm@x does not exist or cannot be used")
    with pytest.raises(NotGivenError, match=r"slice pod-1 was refused: .*vm@x does not exist"):
        provider.slices.wait(zone.said.append)


def test_a_slice_that_stays_in_parts_is_given_up(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_slices, "WHOLE_TIMEOUT_S", 0.1)
    zone.fake.make_partial("pod-0")
    with pytest.raises(ClusterError, match="slice pod-0: its TPU VM is READY with 1 of 2 machines"):
        zone.begin(zone.provider())


def test_a_zone_without_the_type_says_how_to_see_what_it_has(zone: Zone) -> None:
    with pytest.raises(ClusterError, match="has us-west4-a tpu-v4-16, that image and that network") as refused:
        zone.begin(zone.provider(zone="us-west4-a"))
    told = re.fullmatch(r"  us-west4-a has no v4-16; elsewhere: us-central2-b \((.+) USD an hour\)", last_line(refused))
    assert told is not None and float(told[1]) > 0


def test_zones_that_do_not_answer_cost_seconds_and_what_the_others_say_is_told(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone.fake.zone_delay_s = {"us-west4-a": 6.0, "us-central2-b": 6.0}
    monkeypatch.setattr(tpu_zones, "TIMEOUT_S", 2.0)  # which those that answer need to be within, too
    start = time.monotonic()
    with pytest.raises(ClusterError, match="CreateQueuedResource") as refused:
        zone.begin(zone.provider(zone="us-west4-a"))
    assert last_line(refused) == "  us-west4-a does not say whether it has v4-16; no other zone that answers has it"
    zone.fake.zone_delay_s["us-east5-b"] = 6.0
    with pytest.raises(ClusterError, match="CreateQueuedResource") as refused:
        zone.begin(zone.provider(zone="us-west4-a"))
    assert last_line(refused).startswith("  has us-west4-a tpu-v4-16, that image and that network? `gcloud compute")
    assert time.monotonic() - start < 12, "to wait for their answers would take so long"


def test_a_zone_that_is_not_there_is_told_with_those_that_have_the_type(zone: Zone) -> None:
    with pytest.raises(ClusterError, match="Location us-nowhere1-a is not found") as refused:
        zone.provider(zone="us-nowhere1-a").find()
    assert "the project has no zone us-nowhere1-a with TPUs; elsewhere: us-central2-b (" in last_line(refused)


def last_line(refused: pytest.ExceptionInfo[ClusterError]) -> str:
    return str(refused.value).splitlines()[-1]


@pytest.mark.parametrize(
    ("zones", "words"),
    [
        ({}, ""),
        ({"us-west4-a": True}, "us-west4-a has v5litepod-8; no other zone that answers has it"),
        ({"us-west4-a": None}, ""),
        (
            {"us-west4-a": False, "us-east5-b": None},
            "us-west4-a has no v5litepod-8; no other zone that answers has it",
        ),
        (
            {"us-west4-a": True, "us-east5-b": True, "europe-west4-b": True, "us-nowhere1-a": True},
            "us-west4-a has v5litepod-8; elsewhere: us-east5-b (1.00 USD an hour), europe-west4-b (2.00 USD an hour), "
            "us-nowhere1-a",
        ),
        (
            {f"us-nowhere{number}-a": True for number in range(1, 10)},
            "the project has no zone us-west4-a with TPUs; elsewhere: "
            + ", ".join(f"us-nowhere{number}-a" for number in range(1, 9)) + " and 1 more",
        ),
    ],
)  # fmt: skip
def test_other_zones_are_told_the_cheapest_first(zones: dict[str, bool | None], words: str, state_folder: Path) -> None:
    state_folder.mkdir()
    (state_folder / "prices.toml").write_text(
        '[[list]]\nsource = "ours"\ndate = 2026-01-02\nprices = [\n'
        '  { product = "gcp/tpu-v5litepod", usd_per_hour = 0.125, regions = ["us-east5"] },\n'
        '  { product = "gcp/tpu-v5litepod", usd_per_hour = 0.25, regions = ["europe-west4"] },\n]\n'
    )
    provider = GcpTpuProviderSpec(project="test-project", zone="us-west4-a")
    assert tpu_zones.in_words(zones, provider, Accelerator.parse("tpu-v5e-8")) == words


def test_a_name_that_somebody_else_has_is_refused_and_never_deleted(zone: Zone) -> None:
    zone.fake.make_node("pod-1", "v4-16", "us-central2-b", {})
    provider = zone.provider()
    with pytest.raises(ClusterError, match=r"there is a pod-1 already .*choose another `name`, or adopt it"):
        zone.begin(provider)
    assert provider.delete(NO_CODE) == []
    assert [key.rpartition("/")[2] for key in zone.fake.there()] == ["pod-1"]


def test_a_cluster_of_that_name_from_another_state_folder_is_not_taken_over(
    zone: Zone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone.begin(zone.provider())
    monkeypatch.setenv("SPMD_LAUNCH_HOME", str(tmp_path / "other"))
    other = zone.provider()
    with pytest.raises(ClusterError, match=r"slice pod-0 was made by .* from another machine or state folder"):
        zone.begin(other)
    assert other.delete(NO_CODE) == [] and len(zone.fake.there()) == 4


def test_a_cluster_that_could_not_be_joined_is_not_on_record_as_asked_for_from_here(
    zone: Zone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next `up` would go on with another client's slices as with its own, and delete them when that fails."""

    def no_way(self: SshProvider, cluster: Cluster) -> Cluster:
        raise ClusterError("no way to its head could be opened")

    zone.begin(zone.provider())
    monkeypatch.setenv("SPMD_LAUNCH_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(SshProvider, "find", lambda self: cast(Cluster, "theirs"))
    monkeypatch.setattr(SshProvider, "attach", no_way)
    other = zone.provider()
    found = other.find()
    assert found is not None
    with pytest.raises(ClusterError, match="no way to its head"):
        other.attach(found)
    assert other.slices.request_id() == ""


def test_adopted_machines_are_neither_made_nor_deleted(zone: Zone) -> None:
    zone.fake.make_node("mine", "v4-16", "us-central2-b", {})
    zone.fake.make_node("small", "v4-8", "us-central2-b", {})
    zone.spec = dataclasses.replace(zone.spec, num_hosts=2)
    changes = {"spot": False, "adopt": ("mine",)}
    provider = dataclasses.replace(zone.spec.provider, **changes)
    zone.spec = dataclasses.replace(zone.spec, provider=provider)
    adopted = zone.provider()
    assert [(a.verb, a.name) for a in adopted.plan_up()][:1] == [("keep", "mine")]
    assert [a.verb for a in adopted.plan_down()] == ["keep"]
    down = plan_down("pod")
    assert not down.quotes and down.notes[-1] == "adopted, and billed on, whether the cluster is up or not: mine"
    assert "an hour, whether it is up or not" in plan_text(plan_up(zone.spec))
    adopted.slices.delete()
    assert list(zone.fake.there().values()) == ["READY", "READY"]
    with pytest.raises(ClusterError, match="slice small is there as v4-8, and v4-16 is asked for"):
        zone.provider(adopt=("small",)).slices.now()
    with pytest.raises(ClusterError, match="TPU VM gone is not there"):
        zone.provider(adopt=("gone",)).slices.now()


def test_what_cannot_be_deleted_is_named_and_stays_on_record(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_delete, "DELETE_TIMEOUT_S", 0.2)
    provider = zone.provider()
    zone.begin(provider)
    zone.fake.order("DeleteQueuedResource", code="PERMISSION_DENIED", message="no", times=100)
    [left] = provider.delete(NO_CODE)
    assert "and maybe billed: pod-0 (READY), pod-1 (READY); `spmd-launch down pod` again" in left
    assert cluster_folder("pod").exists() and len(zone.fake.there()) == 4


def test_without_credentials_it_says_how_to_get_some(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/account.json")
    provider = zone.provider()
    with pytest.raises(ClusterError, match="no valid credentials: `gcloud auth application-default login`"):
        provider.find()
    assert [action.verb for action in provider.plan_anew()] == ["create"] * 4 + ["start"] * 4
    plan = plan_up(zone.spec)
    assert plan.actions == provider.plan_anew() and "the cloud cannot be asked, so this is as if" in plan.notes[0]


def test_a_head_deletes_its_own_cluster_and_its_own_slice_last(zone: Zone) -> None:
    zone.fake.make_node("other", "v4-16", "us-central2-b", {})
    provider = zone.provider()
    zone.begin(provider)
    with pytest.raises(ClusterError, match="is of no slice of a cluster 'pod' of ours"):
        delete_from_inside(provider.slices.cloud, "pod", ["10.9.9.9"])
    zone.fake.calls.clear()
    delete_from_inside(provider.slices.cloud, "pod", ["127.0.0.1", "127.0.1.10"])
    [head, other] = provider.troubles()
    assert head.text in ("slice pod-0: DELETING", "slice pod-0: ABSENT")
    assert other.text == "slice pod-1: ABSENT", "the head's is deleted when the others are gone"
    assert (head.head_is_gone, head.by_order) == (True, True)
    deleted = [name.rpartition("/")[2] for method, name in zone.fake.calls if method == "DeleteQueuedResource"]
    assert deleted == ["pod-1", "pod-0"]
    assert provider.delete(NO_CODE) == [] and [key.rpartition("/")[2] for key in zone.fake.there()] == ["other"]


def test_a_head_that_cannot_delete_another_slice_stays_to_try_again(zone: Zone, monkeypatch: Any) -> None:
    monkeypatch.setattr(tpu_delete, "DELETE_TIMEOUT_S", 0.1)
    provider = zone.provider()
    zone.begin(provider)
    zone.fake.order("DeleteQueuedResource", code="PERMISSION_DENIED", message="no", times=100)
    with pytest.raises(ClusterError, match=r"and maybe billed: pod-1 \(READY\); the head tries again"):
        delete_from_inside(provider.slices.cloud, "pod", ["127.0.1.10"])
    assert not [name for method, name in zone.fake.calls if method.startswith("Delete") and name.endswith("pod-0")]


def test_nothing_of_the_credentials_is_on_record_or_said(zone: Zone, folder: Path, state_folder: Path) -> None:
    provider = zone.provider()
    plan = str(provider.plan_up())
    zone.begin(provider)
    secrets = [*zone.fake.secrets, json.loads((folder / "account.json").read_text())["private_key"].splitlines()[5]]
    assert len(secrets) == 2 and all(len(secret) > 40 for secret in secrets)
    texts = [path.read_text() for path in state_folder.rglob("*") if path.is_file()]
    for text in (plan, *zone.said, *texts):
        assert not any(secret in text for secret in secrets)


def test_what_has_our_label_is_found_in_all_zones_and_can_be_deleted(zone: Zone) -> None:
    zone.fake.make_node("somebodys", "v4-16", "us-central2-b", {})
    zone.begin(zone.provider())
    assert isinstance(zone.spec.provider, GcpTpuProviderSpec)
    found = labelled(zone.spec.provider.place)
    assert [(one.name, one.cluster, one.state, one.billable) for one in found] == [
        ("pod-0", "pod", "READY", True), ("pod-1", "pod", "READY", True)
    ]  # fmt: skip
    assert found[0].where == f"test-project@{zone.spec.provider.endpoint}/us-central2-b" and found[0].created
    assert {one.id for one in found} == {request_id("pod")} and leftovers(found, ["pod"]) == []
    delete_labelled(dataclasses.replace(found[0], id="0ther"))
    assert len(labelled(zone.spec.provider.place)) == 2, "it is of another request of that name"
    delete_labelled(found[0])
    assert sorted(key.rpartition("/")[2] for key in zone.fake.there()) == ["pod-1", "pod-1", "somebodys"]
    with pytest.raises(ClusterError, match=r"needs roles/tpu\.admin in other-project"):
        labelled(f"other-project@{zone.spec.provider.endpoint}")


def test_a_zone_that_does_not_answer_is_named_and_nothing_is_taken_for_gone(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tpu_cloud, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(tpu_cloud, "RETRY_FOR_S", 0.2)
    provider = zone.provider()
    zone.begin(provider)
    assert isinstance(zone.spec.provider, GcpTpuProviderSpec)
    zone.fake.silent_zones = {"us-west4-a"}
    with pytest.raises(ClusterError, match="no answer from us-west4-a: what is there is not known"):
        labelled(zone.spec.provider.place)
    assert len(provider.slices.now()) == 2, "of a zone that answers"
    zone.fake.silent_zones = {"us-central2-b"}
    [left] = provider.delete(NO_CODE)
    assert "no answer from us-central2-b" in left and len(zone.fake._nodes) == 2
