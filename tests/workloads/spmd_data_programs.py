"""Runs on ranks: data to the devices of all hosts and back, bit for bit."""

import hashlib
import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.workloads.spmd_map_programs import AXIS, roll_dice
from workloads import spmd
from workloads.context import Context
from workloads.spmd import gathering, processes

NARROW = ["int4", "uint4", "float8_e4m3fn", "float8_e5m2"]
DTYPES = ["float32", "bfloat16", "float16", "int8", "int32", "uint16", "bool", "complex64", *NARROW]
TINY = 3 * 4096  # many pieces, none of which ends where an array does


def _bits(leaf: Any) -> str:
    """Dtype, shape and every bit."""
    if _is_key(leaf):
        return f"{leaf.dtype} " + _bits(jax.random.key_data(leaf))
    array = np.asarray(leaf)
    return f"{array.dtype}{list(array.shape)} {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]}"


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _prints(tree: Any) -> dict[str, str]:
    return {jax.tree_util.keystr(keys, simple=True): _bits(leaf) for keys, leaf in jax.tree.leaves_with_path(tree)}


def _nasty_floats(size: int) -> np.ndarray:
    """float32 (size,): NaN with payloads, both zeros, infinities, denormals among random ones."""
    words = np.random.default_rng(2).integers(0, 2**32, size, np.uint32)
    words[:5] = 0x7FC12345, 0xFFC00001, 0x80000000, 0x7F800000, 0x00000001
    return words.view(np.float32)


def _data() -> dict[str, np.ndarray]:
    """(48, 40) of every dtype, the same on all hosts."""
    words = np.random.default_rng(3).integers(0, 256, (48, 40 * 8)).astype(np.uint8)
    data = {}
    for name in DTYPES:
        dtype = jnp.dtype(name)
        raw = np.ascontiguousarray(words[:, : 40 * dtype.itemsize])
        data[name] = (raw & 1).astype(bool) if name == "bool" else raw.view(dtype)
        if name.endswith("int4"):
            data[name] = ((raw & 15).astype(np.int8) - 8 * (name == "int4")).astype(dtype)
    return data | {"nasty": _nasty_floats(64)}


def _texts(rank: int) -> np.ndarray:
    """(5000,) of 12 bytes each: pieces end within them."""
    return np.array([f"{number % 97 + rank:3}" for number in range(5000)])


def _structs(rank: int) -> np.ndarray:
    """(3000,) of 13 bytes each."""
    structs = np.zeros(3000, [("id", np.int32), ("value", np.float64), ("flag", bool)])
    structs["id"], structs["value"] = np.arange(3000) + rank, 0.1 * np.arange(3000)
    return structs


def round_trip(context: Context) -> dict[str, Any]:
    """Fingerprints of what went in, and of what came back by every way."""
    mesh, grid = jax.make_mesh((8,), (AXIS,)), jax.make_mesh((4, 2), ("d", "m"))
    data = _data()
    keys = jax.random.split(jax.random.key(7), 16)
    specs = {name: jax.P("d", "m") for name in data} | {"nasty": jax.P("d"), "bool": jax.P(None, ("m", "d"))}
    tree = {
        "cut": spmd.shard(data, grid, specs),
        "copied": spmd.shard(data, mesh, jax.P()),
        "keys": spmd.shard(keys, mesh, jax.P(AXIS)),
        "key": spmd.shard(jax.random.key(5), mesh, jax.P()),
        "scalar": spmd.shard(np.float32(-0.0), mesh, jax.P()),
        "moved": spmd.shard(spmd.shard(data["int32"], mesh, jax.P(AXIS)), grid, jax.P("m", "d")),
        "partly": spmd.shard(data, grid, jax.P("m")),  # each half on all hosts
        "no rows": spmd.shard(np.zeros((0, 4), np.float32), mesh, jax.P(AXIS)),
        "no width": spmd.shard(np.zeros((8, 0), jnp.bfloat16), mesh, jax.P(AXIS)),
    }
    expected = {
        "cut": data, "copied": data, "keys": keys, "key": jax.random.key(5), "scalar": np.float32(-0.0),
        "moved": data["int32"], "partly": data, "no rows": np.zeros((0, 4), np.float32),
        "no width": np.zeros((8, 0), jnp.bfloat16),
    }  # fmt: skip
    own = {
        "rows": np.full((context.rank + 1, 3), context.rank, np.float64),
        "none": np.zeros((5 if context.rank == context.num_ranks - 1 else 0, 2), jnp.bfloat16),
        "number": 0.1 + context.rank,
        "strided": np.arange(12.0).reshape(3, 4).T[:, : 1 + context.rank % 2].T,
        "unaligned": np.frombuffer(b"." + np.full(9000, context.rank, np.float32).tobytes(), np.float32, offset=1),
        "texts": _texts(context.rank),
        "structs": _structs(context.rank),
        "text": np.array(f"a{context.rank}\0b"),
        "device": jnp.arange(2 + context.rank),
        "key": jax.random.key(context.rank),
        "keys": jax.random.split(jax.random.key(context.rank), context.rank + 1),
        "local": jax.device_put(np.arange(8 * (context.rank + 1)), _local_sharding()),
    }
    ranks = range(context.num_ranks)
    expected_own = {
        "rows": np.concatenate([np.full((rank + 1, 3), rank, np.float64) for rank in ranks]),
        "none": np.zeros((5, 2), jnp.bfloat16),
        "number": np.array([0.1 + rank for rank in ranks]),
        "strided": np.concatenate([np.arange(12.0).reshape(3, 4).T[:, : 1 + rank % 2].T for rank in ranks]),
        "unaligned": np.concatenate([np.full(9000, rank, np.float32) for rank in ranks]),
        "texts": np.concatenate([_texts(rank) for rank in ranks]),
        "structs": np.concatenate([_structs(rank) for rank in ranks]),
        "text": np.array([f"a{rank}\0b" for rank in ranks]),
        "device": np.concatenate([np.arange(2 + rank, dtype=np.int32) for rank in ranks]),
        "key": jnp.stack([jax.random.key(rank) for rank in ranks]),
        "keys": jnp.concatenate([jax.random.split(jax.random.key(rank), rank + 1) for rank in ranks]),
        "local": np.concatenate([np.arange(8 * (rank + 1), dtype=np.int32) for rank in ranks]),
    }
    both, first = {"global": tree, "own": own}, context.rank == 0
    driver = spmd.gather(both, to="driver", chunk_bytes=TINY)
    rank0 = spmd.gather(both, to="rank0", chunk_bytes=TINY)
    again = spmd.gather(both, to="rank0")
    plain = jax.tree.map(
        lambda leaf: np.asarray(jax.random.key_data(leaf)) if _is_key(leaf) else leaf,
        {"global": expected, "own": expected_own},
    )
    return {
        "expected": _prints({"global": expected, "own": expected_own}),
        "all": _prints(spmd.gather(both)),
        "tiny": _prints(spmd.gather(both, chunk_bytes=TINY)),
        "rank0": _prints(rank0) if first else rank0,
        "again": _prints(again) if first else again,
        "plain": _prints(plain),
        "driver": _prints(driver) if first else driver,
        "writable": all(leaf.flags.writeable for leaf in jax.tree.leaves(driver)) if first else True,
    }


def _local_sharding() -> jax.sharding.Sharding:
    """Over the devices of this host."""
    devices = np.array(jax.local_devices())
    return jax.sharding.NamedSharding(jax.sharding.Mesh(devices, ("l",)), jax.P("l"))


def hosts_parts(context: Context) -> dict[str, Any]:
    """Each host brings its own rows; then data that do not fit together, in words."""
    mesh = jax.make_mesh((8,), (AXIS,))
    rows = np.arange(32, dtype=np.float32).reshape(16, 2)
    keys = jax.random.split(jax.random.key(0), 16)
    count = 16 // context.num_ranks
    ours = slice(context.rank * count, (context.rank + 1) * count)
    parts = spmd.shard({"x": rows[ours], "k": keys[ours]}, mesh, jax.P(AXIS), host_local=True)
    grid = jax.make_mesh((4, 2), ("d", "m"))
    copies = {"all": np.arange(8), "half": np.arange(6), "none": np.zeros((0, 2))}
    specs = {"all": jax.P(), "half": jax.P("m"), "none": jax.P(AXIS)}
    alike = spmd.gather({
        name: spmd.shard(copies[name], mesh if name == "none" else grid, specs[name], host_local=True)
        for name in copies
    })  # fmt: skip
    wrong: dict[str, Any] = {
        "parts": lambda: spmd.shard({"x": np.ones((8 * (context.rank + 1), 2))}, mesh, jax.P(AXIS), host_local=True),
        "data": lambda: spmd.shard({"p": {"w": np.full(8, context.rank, np.int32)}}, mesh, jax.P(AXIS)),
        "uneven": lambda: spmd.shard({"x": np.ones((13, 2))}, mesh, jax.P(AXIS)),
        "axes": lambda: spmd.shard(np.ones(8), mesh, jax.P(None, AXIS)),
        "dtype": lambda: spmd.gather({"a": 1, "b": np.ones(2, np.float32 if context.rank else np.int8)}),
        "trailing": lambda: spmd.gather(np.ones((2, 3 + context.rank))),
        "leaves": lambda: spmd.gather({str(n): 1 for n in range(1 + context.rank)}),
        "to": lambda: spmd.gather(1, to="rank1"),  # type: ignore[arg-type]
        "object": lambda: spmd.gather({"f": object()}),
        "copies": lambda: spmd.shard({"w": np.full(8, context.rank, np.int32)}, mesh, jax.P(), host_local=True),
        "partly": lambda: spmd.shard({"w": np.full(8, context.rank, np.int32)}, grid, jax.P("m"), host_local=True),
        "bytes": lambda: spmd.broadcast({"w": b"." * (2 + context.rank)}),
        "broadcast": lambda: spmd.broadcast({"w": np.ones(2 + context.rank)}),
        "root": lambda: spmd.broadcast(1, root=9),
        "global": lambda: spmd.broadcast({"x": parts["x"]}),
    }
    messages = {}
    for name, call in wrong.items():
        try:
            messages[name] = f"no error: {call()}"
        except (ValueError, TypeError, spmd.ValueMismatchError) as error:
            messages[name] = f"{type(error).__name__}: {error}"
    same = spmd.gather(parts)
    expected = {"x": rows, "k": keys, **{name: copy.astype(alike[name].dtype) for name, copy in copies.items()}}
    found = {**same, **alike}
    return {"same": [_bits(found[name]) == _bits(expected[name]) for name in expected], "messages": messages}


def broadcast(context: Context) -> dict[str, Any]:
    """Every rank brings its own; the root's arrive."""
    root = context.num_ranks - 1

    def tree(rank: int) -> dict[str, Any]:
        return {
            "nasty": _nasty_floats(64) if rank == root else np.zeros(64, np.float32),
            "half": np.array([rank, -0.0], jnp.bfloat16),
            "bool": np.array([rank == root] * 3),
            "key": jax.random.key(rank, impl="rbg"),
            "keys": jax.random.split(jax.random.key(rank), 3),
            "legacy": jax.random.PRNGKey(rank),
            "number": 0.1 * rank,
            "count": 2**40 + rank,
            "flag": rank == root,
            "numpy": np.float64(rank / 3),
            "device": jnp.full((1000,), rank, jnp.float32),
            "large": np.full(10_000, rank, np.int64),
            "empty": np.zeros((0, 3)),
            "texts": _texts(rank),
            "structs": _structs(rank),
            "digest": bytes([7, rank, 0, 0]),
            "name": f"rank {rank}\0é",
            **{name: np.full((3, 5), rank + 1, jnp.dtype(name)) for name in NARROW},
            **{f"device {name}": jnp.full((3, 5), rank + 1, jnp.dtype(name)) for name in NARROW},
        }

    got = spmd.broadcast(tree(context.rank), root=root, chunk_bytes=4 * 4096)
    return {
        "expected": _prints(tree(root)),
        "got": _prints(got),
        "kinds": [type(got[name]).__name__ for name in ("number", "count", "flag", "numpy")],
        "count": got["count"],
        "text": [got["digest"] == tree(root)["digest"], got["name"] == tree(root)["name"]],
    }


def dice(context: Context) -> dict[str, Any]:
    """The guide's cell: what each shard has rolled, in plain Python; then the cell about values of processes."""
    mesh = jax.make_mesh((8,), (AXIS,))
    results = spmd.spmd_map(roll_dice, mesh, AXIS, ("static", "rng"))(10, jax.random.key(0))
    shards = spmd.unshard(results)
    keys = spmd.unshard(spmd.spmd_map(lambda key: key, mesh, AXIS, ("rng",))(jax.random.key(0)))
    trees: dict[str, Any] = {
        "scalar": {"a": np.ones(8), "b": spmd.shard(1.0, mesh, jax.P())},
        "lengths": {"a": spmd.shard(np.ones(8), mesh, jax.P()), "b": spmd.shard(np.ones(4), mesh, jax.P())},
        "empty": {},
    }
    messages = {}
    for name, tree in trees.items():
        try:
            messages[name] = str(spmd.unshard(tree))
        except ValueError as error:
            messages[name] = str(error)
    return {
        "classes": sorted({type(result).__name__ for result in shards}),
        "six_rates": [float(result.six_count / result.roll_count) for result in shards],
        "keys": [_bits(key) == _bits(jax.random.fold_in(jax.random.key(0), n)) for n, key in enumerate(keys)],
        "processes": spmd.gather({"loss": 0.5 + context.rank})["loss"].tolist(),
        "messages": messages,
    }


def integrity(context: Context) -> dict[str, Any]:
    """Equal copies, then one whose bit has flipped on the last device."""
    mesh = jax.make_mesh((8,), (AXIS,))
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    good = spmd.shard({"w": weights, "key": jax.random.key(0)}, mesh, jax.P())
    clean = spmd.assert_replicas_equal(good, step=3)
    flipped = weights.copy()
    flipped.view(np.uint32)[3, 2] ^= 1 << 24
    last = jax.devices()[-1]
    pieces = [
        jax.device_put(flipped if shard.device == last else weights, shard.device)
        for shard in good["w"].addressable_shards
    ]
    bad = good | {"w": jax.make_array_from_single_device_arrays((4, 3), good["w"].sharding, pieces)}
    report = spmd.replica_report(bad, step=4)
    try:
        spmd.assert_replicas_equal(bad, step=4)
        message = ""
    except spmd.ReplicaDivergenceError as error:
        message = str(error)
    (difference,) = report.divergences[0].differences
    return {
        "clean": [clean.status, clean.bytes_checked],
        "status": report.status,
        "culprits": list(report.divergences[0].culprits),
        "index": list(difference.index),
        "bits": list(difference.bits),
        "message": message,
    }


def narrow(context: Context) -> dict[str, Any]:
    """Dtypes of a byte and less: through a mapped function, and with one element that differs on the last device."""
    mesh, grid = jax.make_mesh((8,), (AXIS,)), jax.make_mesh((4, 2), ("d", "m"))
    numbers = np.arange(26).reshape(13, 2) % 5
    changed = np.where(np.arange(26).reshape(13, 2) == 3, 1, numbers)
    last, found = jax.devices()[-1], {}
    for name in NARROW:
        array = numbers.astype(jnp.dtype(name))
        mapped = spmd.spmd_map(lambda a, mask: a, mesh, AXIS, ("shard",), uneven="pad", wrap_return="rows")(array)
        copied = spmd.shard(array, grid, jax.P(None, "m"))
        pieces = [
            jax.device_put(
                changed.astype(array.dtype)[shard.index] if shard.device == last else shard.data, shard.device
            )
            for shard in copied.addressable_shards
        ]
        report = spmd.replica_report(
            {"w": jax.make_array_from_single_device_arrays(array.shape, copied.sharding, pieces)}
        )
        differences = [(one.index, one.values) for found in report.divergences for one in found.differences]
        found[name] = [
            _bits(spmd.gather(mapped)) == _bits(array),
            [_bits(part) for part in spmd.unshard(mapped)] == [_bits(row) for row in array],
            [spmd.assert_replicas_equal(copied).bytes_checked, report.status],
            differences,
        ]
    empty = spmd.shard({"rows": np.zeros((0, 4)), "width": np.zeros((8, 0))}, mesh, jax.P(AXIS))
    return {"found": found, "empty": [spmd.replica_report(empty).status, len(spmd.unshard(empty["width"]))]}


def memory(context: Context) -> dict[str, float]:
    """How many MiB a gather of 64 MiB a host needs at its peak, beyond what was there before."""
    mesh = jax.make_mesh((jax.device_count(),), (AXIS,))
    array = spmd.shard(
        np.full((1024, 16384), context.rank, np.float32), mesh, jax.P(AXIS), host_local=True
    )  # 64 MiB a host
    array.block_until_ready()
    grown = {}
    for to in ("rank0", "all"):
        spmd.gather(np.zeros(100_000), to=to, chunk_bytes=2**22)  # what is compiled once
        before = _peak_mib(reset=True)
        whole = spmd.gather(array, to=to, chunk_bytes=2**22)
        grown[to] = _peak_mib() - before
        assert whole is None or whole[-1, 0] == context.num_ranks - 1
        del whole
    return grown


def _peak_mib(*, reset: bool = False) -> float:
    """The most memory that this process has had; forgotten first, if told."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def slow_turns(context: Context) -> dict[str, Any]:
    """Rank 1 sends for longer than anybody waits for what does not move, and rank 2 waits for its turn."""
    processes.TIMEOUT_S, gathering.TELL_PERIOD_S = 5.0, 0.0
    send = gathering.start_send

    def send_slowly(*arguments: Any) -> jax.Array:
        time.sleep(0.3)
        return send(*arguments)

    gathering.start_send = send_slowly
    context.exchange.all_gather("start", None)
    start = time.monotonic()
    size = 2 * 16384 if context.rank < 2 else 64
    whole = spmd.gather(np.full(size, context.rank, np.float32), to="rank0", chunk_bytes=2**15)
    return {"seconds": time.monotonic() - start, "sum": None if whole is None else float(whole.sum())}
