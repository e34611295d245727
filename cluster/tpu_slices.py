"""The slices of a cluster in the cloud: asked for, waited for, found again by name, deleted until none is left."""

import datetime
import json
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from google.api_core.operation import Operation

from cluster.errors import ClusterError, NotGivenError
from cluster.gcp_spec import GcpTpuProviderSpec
from cluster.labels import CLUSTER, ID, USER, own_user
from cluster.provider import Say
from cluster.record import cluster_folder, write_json
from cluster.spec import ClusterSpec
from cluster.tpu_cloud import TakenError, TpuCloud
from cluster.tpu_delete import FIRST_POLL_S, LAST_POLL_S, POLL_GROWTH, delete_until_gone
from cluster.tpu_slice import ABSENT, Slice

WHOLE_TIMEOUT_S = 900.0  # from ACTIVE until all machines of a slice are there
REQUEST = "slices.json"  # in the cluster's folder, before the first call that makes anything


class TpuSlices:
    """The slices of one cluster.

    Args:
        spec: of the cluster.
        cloud: where they are.
    """

    def __init__(self, spec: ClusterSpec, cloud: TpuCloud):
        assert isinstance(spec.provider, GcpTpuProviderSpec)
        self.spec, self.cloud, self.provider = spec, cloud, spec.provider
        self.adopted = bool(self.provider.adopt)
        self._operations: dict[str, Operation] = {}
        self.names = list(self.provider.adopt) or [f"{spec.name}-{number}" for number in range(spec.all_slices)]

    # -- what is there

    def now(self) -> list[Slice]:
        """Those of the cluster file, in its order, as the cloud shows them.

        Raises:
            ClusterError: one is of another type, or is not ours.
        """
        found = self.look()
        for slice_ in found:
            self._require_good(slice_)
        return found

    def look(self) -> list[Slice]:
        """As `now`, of whatever type and whoever's they are."""
        there = {slice_.name: slice_ for slice_ in self.cloud.slices()}
        return [there.get(name, Slice(name=name)) for name in self.names]

    def _require_good(self, slice_: Slice) -> None:
        where = f"{self.provider.project}, {self.provider.zone}"
        if self.adopted:
            if not slice_.node:
                raise ClusterError(f"TPU VM {slice_.name} is not there ({where}); `adopt` names those that are")
            if slice_.is_dead:
                raise ClusterError(f"TPU VM {slice_.name} is {slice_.state} ({where}): it cannot be used")
        elif slice_.is_there and slice_.labels.get(CLUSTER) != self.spec.name:
            raise ClusterError(
                f"there is a {slice_.name} already ({where}), which is not of a cluster {self.spec.name!r} of ours: "
                f"choose another `name`, or adopt it ({{adopt: [{slice_.name}]}})"
            )
        wanted = self.spec.hardware.tpu_type
        if slice_.tpu_type not in ("", wanted):
            raise ClusterError(
                f"slice {slice_.name} is there as {slice_.tpu_type}, and {wanted} is asked for"
                + ("" if self.adopted else f": `spmd-launch down {self.spec.name}` first")
            )

    def is_ready(self, slice_: Slice) -> bool:
        return slice_.is_ready(self.spec.hardware.hosts_per_slice)

    def is_ill(self, slice_: Slice) -> bool:
        """Whether all its machines are there, and the cloud says that it is not well."""
        return self.is_ready(slice_) and slice_.health != ""

    def is_given_up(self, slice_: Slice, *, is_lost: bool) -> bool:
        """Whether it ends, to be asked for again; of an unhealthy one, whether a host of it is lost already decides."""
        return slice_.is_dead or slice_.is_going or (is_lost and self.is_ill(slice_))

    def ours(self) -> list[Slice]:
        """All that this cluster's `up` has made, those of an earlier cluster file too."""
        request_id = self.request_id()
        return [slice_ for slice_ in self.cloud.slices() if slice_.is_of(self.spec.name, request_id)]

    # -- the record, without which nothing is asked for

    def request_id(self) -> str:
        """What marks our slices; '' if none was ever asked for from here."""
        try:
            found: str = json.loads((cluster_folder(self.spec.name) / REQUEST).read_text())["request_id"]
        except FileNotFoundError:
            return ""
        return found

    def remember(self, request_id: str) -> None:
        write_json(cluster_folder(self.spec.name) / REQUEST, {"request_id": request_id})

    # -- up

    def ask_for(self, metadata: Mapping[str, str], say: Say, only: Collection[str] | None = None) -> list[str]:
        """Asks for those that are not there, and for dead ones again; returns the names of those that it asked for.

        Args:
            metadata: of their machines.
            say: receives one line for each.
            only: names of slices, of which unhealthy ones are asked for again, too; None: all.

        Raises:
            ClusterError: the cloud refuses.
        """
        if not self.request_id():
            self.remember(secrets.token_hex(4))
        found = [slice_ for slice_ in self.now() if only is None or slice_.name in only]
        self._require_ours(found)
        bad = [slice_ for slice_ in found if self.is_given_up(slice_, is_lost=only is not None)]
        for slice_ in bad:
            say(f"{slice_.name}: {slice_.condition}{_because(slice_)}; deleting it, to ask for it again")
        names = [slice_.name for slice_ in found if slice_ in bad or not slice_.is_there]
        if bad:
            self._delete(lambda slice_: slice_.name in names)
        for name in names:
            say(f"{name}: asking for {self.what()}, in {self.provider.zone}")
            try:
                self._operations[name] = self.cloud.request(name, self.spec, self._labels(), metadata)
            except TakenError:  # by an earlier try of this very call, or by somebody else just now: `now` tells
                self._require_ours(self.now())
        return names

    def _labels(self) -> dict[str, str]:
        return {
            CLUSTER: self.spec.name,
            ID: self.request_id(),
            USER: own_user(),
        }

    def what(self) -> str:
        """What is asked for, in words."""
        tier = "spot" if self.provider.spot else "reserved" if self.provider.reservation else "on demand"
        return f"{self.spec.hardware.tpu_type}, {tier}"

    def _require_ours(self, found: Sequence[Slice]) -> None:
        for slice_ in found:
            if slice_.is_there and not slice_.is_of(self.spec.name, self.request_id()):
                who = slice_.labels.get(USER, "somebody")
                raise ClusterError(
                    f"slice {slice_.name} was made by {who} from another machine or state folder, and its cluster does "
                    f"not run: `spmd-launch down {self.spec.name}` there, or `gcloud compute tpus queued-resources "
                    f"delete {slice_.name} --force --zone {self.provider.zone} --project {self.provider.project}`"
                )

    def wait(self, say: Say, only: Collection[str] | None = None) -> list[Slice]:
        """Waits until all are whole, as long as it takes; says each change.

        Args:
            say: receives one line for each.
            only: names of slices; None: all.

        Returns:
            All slices of the cluster file.

        Raises:
            ClusterError: one will never be.
        """
        said: dict[str, str] = {}
        incomplete_since: dict[str, float] = {}
        pause = FIRST_POLL_S
        while True:
            found = self.now()
            awaited = [slice_ for slice_ in found if only is None or slice_.name in only]
            for slice_ in awaited:
                if slice_.state == ABSENT and said.get(slice_.name, ABSENT) != ABSENT:
                    raise ClusterError(f"slice {slice_.name} was {said[slice_.name]}, and somebody has deleted it")
                if said.get(slice_.name) != slice_.state:
                    said[slice_.name] = slice_.state
                    pause = FIRST_POLL_S
                    say(f"{slice_.name}: {slice_.state} since {datetime.datetime.now():%H:%M:%S}")
                self._require_hope(slice_, incomplete_since)
            if all(self.is_ready(slice_) for slice_ in awaited):
                return found
            time.sleep(pause)
            pause = min(pause * POLL_GROWTH, LAST_POLL_S)

    def _require_hope(self, slice_: Slice, incomplete_since: dict[str, float]) -> None:
        """Raises ClusterError for a slice that is dead, refused, or stays in parts; NotGivenError if it never was."""
        if slice_.is_dead:
            elsewhere = self.cloud.elsewhere if slice_.is_short else ""
            error = ClusterError if slice_.node else NotGivenError
            raise error(f"slice {slice_.name} is {slice_.state}{_because(slice_)}{elsewhere}")
        operation = self._operations.get(slice_.name)
        if slice_.state == ABSENT and operation is not None and (problem := self.cloud.failure(operation)):
            raise NotGivenError(f"slice {slice_.name} was refused: {problem}")
        if slice_.request in ("", "ACTIVE") and slice_.node and not self.is_ready(slice_):
            since = incomplete_since.setdefault(slice_.name, time.monotonic())
            if time.monotonic() - since > WHOLE_TIMEOUT_S:
                raise ClusterError(
                    f"slice {slice_.name}: its TPU VM is {slice_.state} with {len(slice_.addresses)} of "
                    f"{self.spec.hardware.hosts_per_slice} machines after {WHOLE_TIMEOUT_S / 60:.0f} min, and a slice "
                    f"works only whole: try again, or another zone"
                )

    # -- down

    def delete(self, only: Collection[str] | None = None) -> None:
        """Deletes all that this cluster's `up` has made, those of an earlier file too; returns when none is left.

        Args:
            only: names of slices; None: all.

        Raises:
            ClusterError: what is left, or that the cloud cannot be asked.
        """
        if self.request_id() and not self.adopted:
            self._delete(lambda slice_: only is None or slice_.name in only)

    def _delete(self, is_meant: Callable[[Slice], bool]) -> None:
        """Deletes those of ours."""
        request_id = self.request_id()
        delete_until_gone(
            self.cloud,
            lambda slice_: slice_.is_of(self.spec.name, request_id) and is_meant(slice_),
            f"`spmd-launch down {self.spec.name}`",
        )


def _because(slice_: Slice) -> str:
    return f": {slice_.problem}" if slice_.problem else ""
