"""The end of a cluster's slices from inside: called on its head, which is one of their machines."""

from collections.abc import Sequence

from cluster.errors import ClusterError
from cluster.labels import CLUSTER, ID
from cluster.tpu_cloud import TpuCloud
from cluster.tpu_delete import delete_until_gone
from cluster.tpu_slice import Slice


def delete_from_inside(cloud: TpuCloud, cluster: str, own_addresses: Sequence[str]) -> None:
    """Deletes all slices that one `up` has made; that of this machine last, as nobody tries again then.

    Args:
        cloud: where they are, asked with this machine's service account.
        cluster: its name.
        own_addresses: of this machine.

    Raises:
        ClusterError: this machine is none of the cluster's, or what is left of the others, or that the cloud refuses.
    """
    there = [slice_ for slice_ in cloud.slices() if slice_.labels.get(CLUSTER) == cluster]
    here = [slice_ for slice_ in there if any(internal in own_addresses for internal, _ in slice_.addresses)]
    if not here:
        raise ClusterError(f"this machine ({', '.join(own_addresses)}) is of no slice of a cluster {cluster!r} of ours")
    own = here[0]

    def is_other(slice_: Slice) -> bool:
        return slice_.is_of(cluster, own.labels[ID]) and (slice_.zone, slice_.name) != (own.zone, own.name)

    delete_until_gone(cloud, is_other, "the head tries")
    cloud.delete(own)
