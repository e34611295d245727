"""Slices that are there and answer, and are not well: what `status` and `up` say before a host is lost."""

from cluster.errors import ClusterError
from cluster.gcp_spec import GcpTpuProviderSpec
from cluster.spec import ClusterSpec
from cluster.tpu_cloud import TpuCloud
from cluster.tpu_slices import TpuSlices

PATIENCE_S = 5.0


def unhealthy(spec: ClusterSpec) -> list[str]:
    """One line for each, in the order of the cluster file; none where the cloud does not answer within seconds."""
    assert isinstance(spec.provider, GcpTpuProviderSpec)
    try:
        slices = TpuSlices(spec, TpuCloud(spec.provider, spec.accelerator, PATIENCE_S))
        found = [slice_ for slice_ in slices.look() if slices.is_ill(slice_)]
    except ClusterError:  # all hosts answer, and that is what was asked first
        return []
    return [
        f"slice {slice_.name}: {slice_.condition}, as its cloud says; should a host of it be lost, "
        "`spmd-launch up FILE` asks for another slice in its place"
        for slice_ in found
    ]
