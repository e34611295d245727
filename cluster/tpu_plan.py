"""What `up` and `down` would do with the slices of a cluster, as the cloud shows them now."""

from collections.abc import Collection, Sequence

from cluster.plan import Action
from cluster.tpu_slice import Slice
from cluster.tpu_slices import TpuSlices

REQUEST = "queued resource"


def plan_up(slices: TpuSlices, found: Sequence[Slice], lost: Collection[str] = ()) -> list[Action]:
    """What `up` would ask for, delete or keep.

    Args:
        slices: of the cluster.
        found: them, as they are.
        lost: names of slices that have lost hosts: unhealthy ones are asked for again.
    """
    return [action for slice_ in found for action in _plan_slice(slices, slice_, slice_.name in lost)]


def _plan_slice(slices: TpuSlices, slice_: Slice, is_lost: bool) -> list[Action]:
    name, spec = slice_.name, slices.spec
    ends = not slices.adopted and slices.is_given_up(slice_, is_lost=is_lost)
    if slice_.is_there and not ends:
        return [Action(verb="keep", kind="TPU VM" if slice_.node else REQUEST, name=name, detail=slice_.state)]
    hosts = f"{spec.hardware.hosts_per_slice} host(s) x {spec.devices_per_host} device(s)"
    old = [Action(verb="delete", kind=REQUEST, name=name, detail=slice_.condition)] if ends else []
    return [
        *old,
        Action(verb="create", kind=REQUEST, name=name, detail=f"{slices.what()}, {slices.provider.zone}"),
        Action(verb="create", kind="TPU VM", name=name, detail=hosts),
    ]


def plan_down(slices: TpuSlices) -> list[Action]:
    """What `down` would delete; adopted ones stay."""
    if slices.adopted:
        return [Action(verb="keep", kind="TPU VM", name=name, detail="adopted") for name in slices.names]
    ours = sorted(slices.ours(), key=lambda slice_: slice_.name) if slices.request_id() else []
    return [
        Action(verb="delete", kind=kind, name=slice_.name, detail=slice_.state)
        for slice_ in ours
        for kind, there in ((REQUEST, slice_.request), ("TPU VM", slice_.node))
        if there
    ]
