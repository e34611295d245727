"""Which host of which TPU slice a host is, and what Ray and libtpu are told of it. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.accelerators import Accelerator

MEGASCALE = "MEGASCALE_"
MEGASCALE_PORT = "8081"  # as in Ray (DEFAULT_MEGASCALE_PORT)
_PLACE_VARIABLES = (
    "TPU_NAME", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlicePlace:
    """Where a host is.

    Attributes:
        slice: name of the slice.
        worker: the host's number in it, from 0; the order of its chips follows from it.
        tpu_type: of the slice, as Google names it (`v4-16`).
    """

    slice: str
    worker: int
    tpu_type: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> "SlicePlace | None":
        """From what JSON made of a place, or of none."""
        return None if value is None else cls(**value)


def emulated_place(accelerator: Accelerator, cluster: str, index: int) -> SlicePlace | None:
    """The place of a cluster's host of that index, where slices are emulated; None if it is no TPU."""
    if accelerator.kind != "tpu":
        return None
    number, worker = divmod(index, accelerator.hosts_per_slice)
    return SlicePlace(slice=f"{cluster}-slice-{number}", worker=worker, tpu_type=accelerator.tpu_type)


def emulated_variables(accelerator: Accelerator, place: SlicePlace) -> dict[str, str]:
    """What a TPU host has in its environment."""
    return {
        "TPU_NAME": place.slice,
        "TPU_WORKER_ID": str(place.worker),
        "TPU_ACCELERATOR_TYPE": place.tpu_type,
        "TPU_TOPOLOGY": accelerator.topology,
        "TPU_VISIBLE_CHIPS": ",".join(str(chip) for chip in range(accelerator.chips_per_host)),
    }


def ray_resources(accelerator: Accelerator, place: SlicePlace | None) -> dict[str, float]:
    """What Ray counts on a host, but for GPUs, which have a setting of their own; as Ray's own detection names it."""
    resources: dict[str, float] = {}
    if accelerator.ray_type:
        resources[f"accelerator_type:{accelerator.ray_type}"] = 1
    if place is not None:
        resources |= {"TPU": accelerator.chips_per_host, place.slice: 1}
        if place.worker == 0:
            resources[f"TPU-{place.tpu_type}-head"] = 1
    return resources


def ray_labels(accelerator: Accelerator, place: SlicePlace | None) -> dict[str, str]:
    """Labels of a Ray node, as Ray's own detection sets them: `ray.util.tpu` places by them."""
    labels: dict[str, str] = {}
    if accelerator.ray_type:
        labels["ray.io/accelerator-type"] = accelerator.ray_type
    if place is not None:
        labels |= {
            "ray.io/tpu-slice-name": place.slice,
            "ray.io/tpu-worker-id": str(place.worker),
            "ray.io/tpu-topology": accelerator.topology,
            "ray.io/tpu-pod-type": place.tpu_type,
        }
    return labels


def slice_problems(accelerator: Accelerator, places: Mapping[str, SlicePlace | None]) -> list[str]:
    """Why these hosts are not whole slices of what was asked for, one line each; empty if they are.

    Args:
        accelerator: that was asked for.
        places: `{host: where it says it is}`.
    """
    if accelerator.kind != "tpu":
        return []
    known = {host: place for host, place in places.items() if place is not None}
    found = [f"{host}: does not say of which TPU slice it is" for host in places if host not in known]
    found += [
        f"{host}: is of a {place.tpu_type} slice ({place.slice}), expected {accelerator.tpu_type}"
        for host, place in known.items()
        if place.tpu_type != accelerator.tpu_type
    ]
    expected = list(range(accelerator.hosts_per_slice))
    for name in dict.fromkeys(place.slice for place in known.values()):
        workers = sorted(place.worker for place in known.values() if place.slice == name)
        if workers != expected:
            hosts = ", ".join(host for host, place in known.items() if place.slice == name)
            found.append(
                f"slice {name}: has workers {workers} here ({hosts}), expected {expected}: all of them or none"
            )
    return found


def rank_units(places: Mapping[str, SlicePlace | None]) -> list[tuple[str, ...]]:
    """Hosts in the order of ranks, in groups that a job gets as a whole: a slice, or a host that is of none.

    Inside a slice by worker id: libtpu numbers a slice's processes so, and a rank must have its process's number.

    Args:
        places: `{host: where it is}`, in the order of the cluster file; slices come as their first hosts do.
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    for host, place in places.items():
        key, worker = (f"host {host}", 0) if place is None else (f"slice {place.slice}", place.worker)
        groups.setdefault(key, []).append((worker, host))
    return [tuple(host for _, host in sorted(group)) for group in groups.values()]


def rank_variables(places: Sequence[SlicePlace | None], addresses: Sequence[str]) -> list[dict[str, str]]:
    """The variables by which the processes of an attempt find the other slices, one dict a rank.

    A job on one slice needs none: its hosts know their slice. Over several, all that tells a process of its place comes
    from here, because what a host's environment says may be of an earlier gang, with which libtpu would wait for ever.

    Args:
        places: of the hosts, in the order of ranks.
        addresses: of the hosts, likewise.
    """
    slices = list(dict.fromkeys(place.slice for place in places if place is not None))
    if len(slices) < 2:
        return [{} for _ in places]
    members = {name: [k for k, place in enumerate(places) if place and place.slice == name] for name in slices}
    return [
        {}
        if place is None
        else {
            "MEGASCALE_COORDINATOR_ADDRESS": addresses[0],
            "MEGASCALE_PORT": MEGASCALE_PORT,
            "MEGASCALE_NUM_SLICES": str(len(slices)),
            "MEGASCALE_SLICE_ID": str(slices.index(place.slice)),
            "TPU_WORKER_ID": str(place.worker),
            "TPU_WORKER_HOSTNAMES": ",".join(addresses[k] for k in members[place.slice]),
        }
        for place in places
    ]


def is_our_variable(name: str) -> bool:
    """Whether a variable tells of a process's place in slices, which no cluster file may."""
    return name in _PLACE_VARIABLES or name.startswith(MEGASCALE)
