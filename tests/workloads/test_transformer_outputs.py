"""The memory table's bytes: each buffer once, and nothing of what is gone."""

import jax
import numpy as np

from workloads.transformer.outputs import bytes_by_device


def test_a_buffer_counts_once_and_a_deleted_one_not_at_all() -> None:
    kept, gone = (jax.device_put(np.zeros(size, np.float32)) for size in (10, 1000))
    pieces = [shard.data for array in (kept, gone) for shard in array.addressable_shards]
    gone.delete()  # after it was listed, as a thread does that has saved it
    assert bytes_by_device([kept, gone, *pieces]) == {jax.devices()[0]: 40}
