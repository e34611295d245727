"""The memory table's bytes: each buffer once, and nothing of what is gone."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

from workloads.transformer.outputs import bytes_by_device


def test_a_buffer_counts_once_and_a_deleted_one_not_at_all() -> None:
    kept, gone = (jax.device_put(np.zeros(size, np.float32)) for size in (10, 1000))
    pieces = [shard.data for array in (kept, gone) for shard in array.addressable_shards]
    gone.delete()  # after it was listed, as a thread does that has saved it
    assert bytes_by_device([kept, gone, *pieces]) == {jax.devices()[0]: 40}


def test_other_threads_run_while_an_array_is_waited_for() -> None:
    """They renew the lease and tell where a rank is; JAX holds Python's lock while it waits for an address."""
    longest, ended = 0.0, threading.Event()

    def tick() -> None:
        nonlocal longest
        last = time.monotonic()
        while not ended.wait(0.01):
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        longest = max(longest, time.monotonic() - last)

    compute = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda _, x: jnp.sin(x @ x), x))
    x = np.ones((400, 400), np.float32)
    compute(x).block_until_ready()
    ticking = threading.Thread(target=tick)
    ticking.start()
    array = compute(x)
    started = time.monotonic()
    assert not array.is_ready() and sum(bytes_by_device([array]).values()) == x.nbytes
    waited_s = time.monotonic() - started
    ended.set()
    ticking.join()
    assert longest < waited_s / 2
