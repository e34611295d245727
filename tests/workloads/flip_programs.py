"""Runs on ranks: one copy of an array is damaged, and the check says where; what it should say is worked out here."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workloads.context import Context
from workloads.exchange import Exchange
from workloads.faults import flip_bit
from workloads.faults.flip_bit import num_bits
from workloads.integrity import ReplicaChecker, Verdict

P = PartitionSpec
AXES = {"a": 2, "b": 2}
SHAPE = (6, 4)
SPECS = {"replicated": P(), "rows": P("a"), "columns": P(None, "b")}
NARROW = [
    "float32", "bfloat16", "float16", "int8", "int16", "int32", "uint8", "uint16", "uint32", "bool", "complex64",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e3m4",
    "float8_e4m3", "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint4", "int2", "uint2", "key", "key2",
]  # fmt: skip
WIDE = ["float64", "int64", "uint64", "complex128"]


class CountedExchange(Exchange):
    """Counts what this rank posts.

    Attributes:
        posted: bytes of JSON in each round.
    """

    def __init__(self, like: Exchange):
        super().__init__(like.rank, like.num_ranks, like.timeout_s)
        self.posted: list[int] = []

    def all_gather(self, topic: str, value: Any) -> list[Any]:
        self.posted.append(len(json.dumps(value)))
        return super().all_gather(f"counted {topic}", value)


def _values(dtype: str, shape: tuple[int, ...]) -> Any:
    """Random bits, made alike on every rank."""
    rng = np.random.default_rng(5)
    if dtype.startswith("key"):
        impl = {"key": "threefry2x32", "key2": "rbg"}[dtype]
        width = {"key": 2, "key2": 4}[dtype]
        return jax.random.wrap_key_data(rng.integers(0, 2**32, (*shape, width), np.uint32), impl=impl)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if jnp.dtype(dtype).kind in "Vf" and jnp.dtype(dtype).itemsize == 1 and "float4" in dtype:
        return rng.integers(-2, 3, shape).astype(jnp.dtype(dtype))
    if dtype in ("int4", "uint4", "int2", "uint2"):
        return rng.integers(0, 2, shape).astype(jnp.dtype(dtype))
    raw = rng.integers(0, 256, (*shape, jnp.dtype(dtype).itemsize), np.uint8)
    return raw.view(jnp.dtype(dtype))[..., 0]


def _global(mesh: Mesh, value: Any, spec: PartitionSpec, change: Callable[[int, Any], Any] | None = None) -> jax.Array:
    """A global array made of pieces of our own; `change(device number, piece)` may damage one."""
    sharding = NamedSharding(mesh, spec)
    numbers = {device: number for number, device in enumerate(mesh.devices.flat)}
    pieces = []
    for device, index in sharding.addressable_devices_indices_map(value.shape).items():
        piece = value[index]
        pieces.append(jax.device_put(change(numbers[device], piece) if change else piece, device))
    return jax.make_array_from_single_device_arrays(value.shape, sharding, pieces)


def known_dtypes(x64: bool) -> list[str]:
    """Those that this JAX can put on a device."""
    names = NARROW + (WIDE if x64 else [])
    return [name for name in names if name.startswith("key") or hasattr(jnp, name)]


def _report(verdict: Verdict) -> dict[str, Any]:
    """The one divergence and its one difference."""
    (divergence,) = verdict.divergences
    (difference,) = divergence.differences
    return {
        "leaf": divergence.leaf,
        "culprits": list(divergence.culprits),
        "how": divergence.how,
        "holders": sorted(difference.holders),
        "index": list(difference.index),
        "bits": list(difference.bits),
        "bad": [difference.bad_chunks, difference.num_chunks, difference.chunk_elements],
        "hexes": list(difference.hexes),
        "values": list(difference.values),
    }


def _holder(mesh: Mesh, number: int) -> str:
    device = mesh.devices.flat[number]
    return f"host-{device.process_index}/{device.platform}:{device.id}"


def flips(context: Context, seed_flips: int = 2) -> list[dict[str, Any]]:
    """Single-bit flips over all dtypes and ways to replicate: `{case, found, expected}`."""
    mesh = context.mesh(AXES)
    rng = np.random.default_rng(7)
    checker = ReplicaChecker(context.exchange, context.host)
    cases = []
    for dtype, (cut, spec) in itertools.product(known_dtypes(jax.config.jax_enable_x64), SPECS.items()):
        clean = _global(mesh, _values(dtype, SHAPE), spec)
        for _ in range(seed_flips):
            device, place = int(rng.integers(4)), int(rng.integers(clean.sharding.shard_shape(SHAPE)[0] * 2))
            bit = int(rng.integers(num_bits(clean)))
            verdict = checker.check({"fine": np.ones(3), "w": flip_bit(clean, device, place, bit)}, step=3)
            bounds = clean.sharding.devices_indices_map(SHAPE)[mesh.devices.flat[device]]
            starts = [part.indices(size)[0] for part, size in zip(bounds, SHAPE, strict=True)]
            local = np.unravel_index(place, clean.sharding.shard_shape(SHAPE))
            expected = {
                "index": [start + int(at) for start, at in zip(starts, local, strict=True)],
                "bits": [bit],
                "culprits": [_holder(mesh, device)] if cut == "replicated" else [],
            }
            found = _report(verdict)
            case = {"case": f"{dtype} {cut}", "found": {name: found[name] for name in expected}, "expected": expected}
            cases.append(case | {"named": _holder(mesh, device) in found["holders"], "all": found})
    return cases


def _add(bits: np.ndarray, place: int, number: int) -> np.ndarray:
    return bits + number * (np.arange(bits.size) == place)


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "swap": lambda bits: bits[[0, 1, 5, 3, 4, 2, *range(6, bits.size)]],
    "rotation": lambda bits: np.roll(bits, 1),
    "compensation": lambda bits: _add(_add(bits, 4, 1), 9, -1),
    "nan payload": lambda bits: np.where(bits == 0x7FC00000, 0x7FC00001, bits),
    "sign of nan": lambda bits: np.where(bits == 0x7FC00000, 0xFFC00000, bits),
    "sign of zero": lambda bits: np.where(bits == 0, 0x80000000, bits),
    "all": lambda bits: bits ^ 0x00010000,
}


def changes(context: Context) -> list[dict[str, Any]]:
    """Damage of many kinds to float32: `{case, found, expected}`."""
    mesh = context.mesh(AXES)
    base = np.random.default_rng(1).integers(0, 2**31, SHAPE, np.uint32)
    base[3, 1], base[4, 2] = 0x7FC00000, 0
    cases = []
    for name, change in CHANGES.items():
        bad = change(base.reshape(-1)).astype(np.uint32)

        def damage(number: int, piece: np.ndarray, bad: np.ndarray = bad) -> np.ndarray:
            return bad.view(np.float32).reshape(SHAPE) if number == 3 else piece

        tree = {"w": _global(mesh, base.view(np.float32), P(), damage), "fine": _global(mesh, base, P("a"))}
        found = _report(ReplicaChecker(context.exchange, context.host).check(tree, step=1))
        places = np.flatnonzero(bad != base.reshape(-1))
        changed = int(bad[places[0]] ^ base.reshape(-1)[places[0]])
        expected = {
            "index": [int(at) for at in np.unravel_index(places[0], SHAPE)],
            "bits": [bit for bit in range(32) if changed >> bit & 1],
            "bad": [len(places), base.size, 1],
            "culprits": [_holder(mesh, 3)],
        }
        cases.append({"case": name, "found": {key: found[key] for key in expected}, "expected": expected})
    return cases


def large(context: Context) -> dict[str, Any]:
    """100 MB a copy, three elements damaged: what is found, and what it cost on the wire."""
    mesh = context.mesh(AXES)
    make = jax.jit(lambda key: jax.random.normal(key, (5, 5_000_001)), out_shardings=NamedSharding(mesh, P()))
    clean = make(jax.random.key(0))
    bad = flip_bit(flip_bit(flip_bit(clean, 2, 17_000_003, 22), 2, 17_000_005, 3), 2, 25_000_004, 30)
    exchange = CountedExchange(context.exchange)
    checker = ReplicaChecker(exchange, context.host)
    assert checker.check({"w": clean}, step=1).status == "ok"
    clean_bytes = sum(exchange.posted)
    found = _report(checker.check({"w": bad}, step=2))
    rounds, posted = exchange.posted[3:], context.exchange.all_gather("posted", sum(exchange.posted))
    return {"clean_bytes": clean_bytes, "rounds": len(rounds), "posted": posted, **found}


def past(context: Context) -> dict[str, Any]:
    """Two copies, one of them damaged: what the past can tell, and what it must not. A history grows meanwhile."""
    mesh = context.mesh(AXES)
    value = np.arange(24, dtype=np.float32).reshape(SHAPE)
    checker = ReplicaChecker(context.exchange, context.host)
    frozen = _global(mesh, value, P("b"))  # one copy on each host

    def check(step: int, *, parameter: jax.Array, data: jax.Array) -> Verdict:
        for size in range(4 * step, 4 * step + 4):
            checker.check({"history": np.zeros(size)}, step=step)
        return checker.check({"data": data, "parameter": parameter}, step=step)

    def parameter(step: int) -> jax.Array:
        return _global(mesh, value + step, P("b"))

    once = checker.check({"once": frozen}, step=1)
    once_bad = checker.check({"once": flip_bit(frozen, 2, 5, 3)}, step=2)
    statuses = [check(step, parameter=parameter(step), data=frozen).status for step in (3, 4, 5)]
    data = check(6, parameter=parameter(6), data=flip_bit(frozen, 2, 5, 3))
    stale = check(7, parameter=_global(mesh, value, P("b"), lambda n, piece: piece + (5 if n == 0 else 7)), data=frozen)
    both = check(8, parameter=flip_bit(parameter(8), 0, 1, 7), data=frozen)
    return {
        "statuses": [once.status, *statuses],
        **{name: _report(verdict) for name, verdict in (("once", once_bad), ("data", data), ("both", both))},
        "stale": _report(stale),
        "bad holder": _holder(mesh, 2),
    }


def host_memory(context: Context) -> list[dict[str, Any]]:
    """NumPy arrays and numbers that differ between two hosts."""
    checker = ReplicaChecker(context.exchange, context.host)
    rank = context.rank
    big = np.zeros(200_000)
    big[123_456] = rank
    words = np.array(["same", f"rank {rank}"])
    trees = [{"n": big.reshape(2, -1)}, {"x": 1.5 + rank}, {"text": words}, {"half": np.array([rank], jnp.bfloat16)}]
    trees.append({"other order": np.array([0, rank], ">i8")})
    return [_report(checker.check(tree, step=1)) for tree in trees]


def clean(context: Context, num_checks: int) -> list[int]:
    """Checks of equal copies that change at every step: how many, how many were no `ok`, most bytes in one."""
    mesh = context.mesh(AXES)
    sharding = NamedSharding(mesh, P())
    state = {
        "w": _global(mesh, _values("float32", SHAPE), P("a")),
        "nan": _global(mesh, np.array([np.nan, -np.nan, 0.0, -0.0], np.float32), P()),
        "half": _global(mesh, _values("bfloat16", SHAPE), P()),
        "small": _global(mesh, _values("int4", SHAPE), P(None, "b")),
        "flags": _global(mesh, _values("bool", SHAPE), P()),
        "none": _global(mesh, np.ones((0, 3), np.float32), P()),
        "step": jax.device_put(jnp.int32(0), sharding),
        "key": jax.jit(lambda: jax.random.key(0), out_shardings=sharding)(),
    }
    # Integer and elementwise, without a collective: equal bits on all devices.
    advance = jax.jit(
        lambda state: (
            state
            | {
                "w": state["w"] * 1.0001,
                "step": state["step"] + 1,
                "half": -state["half"],
                "key": jax.random.fold_in(state["key"], 1),
            }
        )
    )
    exchange = CountedExchange(context.exchange)
    checker = ReplicaChecker(exchange, context.host)
    alarms = 0
    for step in range(num_checks):
        state = jax.block_until_ready(advance(state))
        alarms += checker.check(state | {"number": step}, step=step).status != "ok"
    return [num_checks, alarms, max(exchange.posted)]
