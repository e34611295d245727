"""Asks every cloud that was ever used from here for what it has of ours, and deletes what is left over."""

import concurrent.futures
import dataclasses
from collections.abc import Sequence

from cluster.errors import ClusterError
from cluster.farewell import kept_farewell
from cluster.labels import own_user
from cluster.leftovers import OF_PROJECT, Place, Resource, cloud_of, leftovers, places
from cluster.record import cluster_names
from launcher.errors import FailureError, UserError


@dataclasses.dataclass(frozen=True)
class Search:
    """What was found.

    Attributes:
        asked: places.
        found: what belongs to no cluster that is known here.
        failures: one line for each place that could not be asked.
    """

    asked: Sequence[Place]
    found: Sequence[Resource]
    failures: Sequence[str]


def search(project: str | None = None) -> Search:
    """Looks in all places at once.

    Args:
        project: one more, which may never have been used from here.
    """
    asked = sorted({*places(), *([Place(OF_PROJECT, project)] if project else [])})

    def ask(place: Place) -> list[Resource] | str:
        try:
            return cloud_of(place.provider).labelled(place.where)
        except ClusterError as error:
            return f"{place} cannot be asked: {error}"

    with concurrent.futures.ThreadPoolExecutor(max(1, len(asked))) as pool:
        answers = list(pool.map(ask, asked))
    found = [resource for answer in answers if not isinstance(answer, str) for resource in answer]
    failures = [answer for answer in answers if isinstance(answer, str)]
    known = [name for name in cluster_names() if kept_farewell(name) is None]  # one that went down has nothing any more
    return Search(asked, leftovers(found, known), failures)


def delete_leftover(name: str, project: str | None, *, force: bool) -> Resource:
    """Deletes one thing that `search` finds.

    Args:
        name: its own.
        project: as for `search`.
        force: whoever has made it.

    Raises:
        UserError: there is none of that name, or it is somebody else's and `force` is not set.
        FailureError: it could not be deleted, or not every place could be asked and it is in none of the others.
    """
    seen = search(project)
    named = [resource for resource in seen.found if resource.name == name]
    if not named and seen.failures:
        raise FailureError("\n".join([f"no {name!r} where it could be asked", *seen.failures]))
    if len(named) != 1:
        known = ", ".join(resource.name for resource in seen.found) or "nothing is left over"
        what = "is there several times" if named else f"is none of what is left over ({known})"
        raise UserError(f"{name!r} {what}: see `spmd-launch list --all`")
    (resource,) = named
    if resource.user not in ("", own_user()) and not force:
        raise UserError(f"{name!r} was made by {resource.user}, maybe for a cluster that is up: --force deletes it")
    try:
        cloud_of(resource.provider).delete_labelled(resource)
    except ClusterError as error:
        raise FailureError(f"{resource.kind} {name} could not be deleted: {error}") from error
    return resource
