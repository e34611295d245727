"""What lies in clouds under our label and belongs to no cluster that is known here; and where to look for it.

`places.json` in the state folder remembers every project or region that `up` has ever used; `down` does not remove it.
"""

import contextlib
import dataclasses
import importlib
import json
from collections.abc import Iterable, Mapping
from typing import Protocol, cast, runtime_checkable

from cluster.record import cluster_folder, home, write_json

# By provider: the module that asks its cloud, a `Cloud`. Imported when it is asked.
CLOUDS: Mapping[str, str] = {"gcp-tpu": "cluster.tpu_labelled", "ray-launcher": "cluster.aws_leftovers"}
OF_PROJECT = "gcp-tpu"  # whose clouds are told apart by `--project`
REQUESTS = ("slices.json", "launcher.json")  # of providers, in a cluster's folder: the id of what it has asked for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resource:
    """Something in a cloud that carries our label.

    Attributes:
        provider: type of the provider that made it.
        where: its project and zone, or its region.
        kind: of thing, as its users call it.
        name: its own, under which it is found again.
        cluster: that it was made for, by its label.
        id: of the request that it was made for, by its label, or ''.
        state: as the cloud tells it.
        created: ISO 8601, or ''.
        billable: whether it costs money.
        user: who made it, by its label, or ''.
    """

    provider: str
    where: str
    kind: str
    name: str
    cluster: str
    id: str
    state: str
    created: str
    billable: bool
    user: str = ""


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """Where a cloud is asked.

    Attributes:
        provider: type of the provider.
        where: a project, or a region.
    """

    provider: str
    where: str

    def __str__(self) -> str:
        return f"{self.provider} in {self.where}"


@runtime_checkable
class InPlace(Protocol):
    """The spec of a provider whose resources lie in one place of a cloud."""

    @property
    def place(self) -> str:
        """Its project, or its region: what `Cloud.labelled` is asked with."""
        ...


class Cloud(Protocol):
    """What a module of `CLOUDS` has."""

    def labelled(self, where: str) -> list[Resource]:
        """Everything with our label in a project or region, whoever made it.

        Raises:
            ClusterError: it cannot be asked, and what to do.
        """
        ...

    def delete_labelled(self, resource: Resource) -> None:
        """Deletes what `labelled` has told; returns when it is gone.

        Raises:
            ClusterError: it cannot be deleted, and what to do.
        """
        ...


def cloud_of(provider: str) -> Cloud:
    """The cloud of a provider's type."""
    return cast(Cloud, importlib.import_module(CLOUDS[provider]))


def remember(place: Place) -> None:
    """Keeps a place in mind for ever, before anything is made there."""
    home().mkdir(parents=True, exist_ok=True, mode=0o700)
    known = {*places(), place}
    write_json(home() / "places.json", [dataclasses.asdict(one) for one in sorted(known)])


def places() -> list[Place]:
    """All places that were ever used from this state folder."""
    try:
        return [Place(**value) for value in json.loads((home() / "places.json").read_text())]
    except FileNotFoundError:
        return []


def request_id(name: str) -> str:
    """What marks all that the cluster of that name, on record here, has asked for; '' if it has asked for nothing."""
    for file in REQUESTS:
        with contextlib.suppress(FileNotFoundError):
            found: str = json.loads((cluster_folder(name) / file).read_text())["request_id"]
            return found
    return ""


def leftovers(found: Iterable[Resource], known: Iterable[str]) -> list[Resource]:
    """Those that belong to no known cluster; of its name alone is not enough: there may be another in another zone.

    Args:
        found: in clouds.
        known: names of clusters that are on record here.
    """
    ours = {(name, request_id(name)) for name in known}
    left = (one for one in found if not one.id or (one.cluster, one.id) not in ours)
    return sorted(left, key=lambda one: (one.cluster, one.name))
