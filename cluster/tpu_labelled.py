"""Slices with our label, wherever in a project they are and whoever has made them. See `cluster.leftovers.Cloud`."""

from cluster.gcp_spec import EVERYWHERE, GcpTpuProviderSpec
from cluster.labels import CLUSTER, ID, USER
from cluster.leftovers import Resource
from cluster.tpu_cloud import TpuCloud
from cluster.tpu_delete import delete_until_gone
from cluster.tpu_slice import Slice


def labelled(where: str) -> list[Resource]:
    """All slices with our label in a project.

    Args:
        where: PROJECT or PROJECT@ENDPOINT, as `cluster.gcp_spec.GcpTpuProviderSpec.place`.

    Raises:
        ClusterError: it cannot be asked, and what to do.
    """
    return [_resource(where, slice_) for slice_ in _cloud(where, EVERYWHERE).slices() if CLUSTER in slice_.labels]


def delete_labelled(resource: Resource) -> None:
    """Deletes what `labelled` has told; returns when it is gone.

    Raises:
        ClusterError: it cannot be deleted, and what to do.
    """
    where, _, zone = resource.where.rpartition("/")
    marks = (resource.name, resource.cluster, resource.id)
    delete_until_gone(
        _cloud(where, zone),
        lambda slice_: (slice_.name, slice_.labels.get(CLUSTER), slice_.labels.get(ID, "")) == marks,
        "the same command",
    )


def _cloud(where: str, zone: str) -> TpuCloud:
    project, _, endpoint = where.partition("@")
    return TpuCloud(GcpTpuProviderSpec(project=project, zone=zone, endpoint=endpoint or None))


def _resource(where: str, slice_: Slice) -> Resource:
    return Resource(
        provider=GcpTpuProviderSpec.type,
        where=f"{where}/{slice_.zone}",
        kind="queued resource" if slice_.request else "TPU VM",
        name=slice_.name,
        cluster=slice_.labels[CLUSTER],
        id=slice_.labels.get(ID, ""),
        state=slice_.state,
        created=slice_.created,
        billable=bool(slice_.node) and not slice_.is_dead,
        user=slice_.labels.get(USER, ""),
    )
