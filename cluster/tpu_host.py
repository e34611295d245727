"""Asks a TPU host of which slice it is, as Ray does: its environment on GKE, the metadata server on a TPU VM."""

from ray._private.accelerators import TPUAcceleratorManager

from cluster.slices import SlicePlace


def detect_place() -> SlicePlace:
    """This host's place.

    Raises:
        RuntimeError: it is no TPU host.
    """
    name = TPUAcceleratorManager.get_current_node_tpu_name()
    worker = TPUAcceleratorManager.get_current_node_tpu_worker_id()
    tpu_type = TPUAcceleratorManager.get_current_node_tpu_pod_type()
    if not name or worker is None or not tpu_type:
        raise RuntimeError(
            "this machine is no host of a TPU slice: neither its environment (TPU_NAME, TPU_WORKER_ID, "
            "TPU_ACCELERATOR_TYPE) nor Google's metadata server tells of which "
            f"(name {name!r}, worker {worker!r}, type {tpu_type!r})"
        )
    return SlicePlace(slice=name, worker=worker, tpu_type=tpu_type)
