"""Processor time by threads of a process: real ones of Python, of tensorstore and of XLA."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore

from launcher.rank import background_cpu
from launcher.rank.background_cpu import BackgroundCpu

# With one device JAX runs a callback in the main thread; with two, each in a thread of XLA's: a dummy to Python.
CALLBACKS = """
import threading, time
import jax
from jax.sharding import PartitionSpec as P
from launcher.rank.background_cpu import BackgroundCpu
def on_host(shard):
    names.append(threading.current_thread().name)
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        pass
    looks.append(background.seconds())
    return shard
background, names, looks = BackgroundCpu(), [], []
over = jax.make_mesh((2,), ("device",))
called = jax.shard_map(lambda shard: jax.pure_callback(on_host, shard, shard), mesh=over, in_specs=P("device"),
                       out_specs=P("device"))
called = jax.jit(called)
array = jax.device_put(jax.numpy.arange(2.0), jax.sharding.NamedSharding(over, P("device")))
for _ in range(2):
    called(array).block_until_ready()
assert len(names) == 4 and all(name.startswith("Dummy-") for name in names), names
assert max(looks) - looks[0] < 0.1, looks
"""


def burn(seconds: float) -> None:
    """Uses that much processor time in this thread, however busy the machine is."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def used(background: BackgroundCpu) -> float:
    """In threads that were there at the look before: one is known by its name at the second look."""
    background.seconds()
    return background.seconds()


def test_a_thread_of_python_counts_the_main_one_and_callbacks_of_xla_do_not() -> None:
    background = BackgroundCpu()
    before = used(background)
    burn(0.3)
    assert background.seconds() - before < 0.1

    burnt, done = threading.Event(), threading.Event()

    def work() -> None:
        burn(0.3)
        burnt.set()
        done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    burnt.wait()
    in_thread = background.seconds() - before
    done.set()
    thread.join()
    assert 0.3 <= in_thread < 0.6
    assert background.seconds() - before == in_thread, "of a thread that has ended nothing is taken back"

    burnt.clear()
    done.clear()
    callback = threading.Thread(target=work, name="Dummy-7")
    callback.start()
    burnt.wait()
    assert background.seconds() - before - in_thread < 0.1
    done.set()
    callback.join()


def test_a_callback_of_a_real_program_over_two_devices_does_not_count() -> None:
    devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    child = [sys.executable, "-c", CALLBACKS]
    ran = subprocess.run(child, env=os.environ | devices, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_what_writes_a_checkpoint_counts_and_what_computes_does_not(tmp_path: Path) -> None:
    background = BackgroundCpu()
    matrix = jnp.ones((1500, 1500))
    before, cpu_before = used(background), time.process_time()
    for _ in range(4):
        matrix = (matrix @ matrix / 1500).block_until_ready()
    assert time.process_time() - cpu_before > 0.1
    assert used(background) - before < 0.1

    before = used(background)
    spec = {
        "driver": "zarr", "kvstore": {"driver": "file", "path": str(tmp_path)},
        "metadata": {"shape": [4000, 1000], "chunks": [400, 1000], "dtype": "<f8"},
    }  # fmt: skip
    array = tensorstore.open(spec, create=True).result()
    noise = np.random.default_rng(0).normal(size=(4000, 1000))
    for _ in range(3):
        array.write(noise).result()
    assert used(background) - before > 0.05, "noise takes time to compress"


def test_where_the_system_does_not_tell_it_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(background_cpu, "TASKS", str(tmp_path / "none"))
    assert used(BackgroundCpu()) == 0.0


def test_of_a_thread_that_ends_during_a_look_nothing_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(background_cpu, "TASKS", str(tmp_path))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "comm").write_text("ts_pool_worker\n")
    (tmp_path / "7" / "schedstat").write_text("500000000 0 1\n")
    background = BackgroundCpu()
    assert used(background) == 0.5
    (tmp_path / "7" / "schedstat").unlink()  # it was listed, and has ended
    assert background.seconds() == 0.5
