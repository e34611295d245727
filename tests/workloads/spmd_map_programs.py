"""Runs on ranks: functions mapped over eight shards, however these are spread over hosts."""

import contextlib
import io
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from launcher.rank.error_details import error_details
from workloads import spmd
from workloads.context import Context

AXIS = "i"


class Result(flax.struct.PyTreeNode):
    """What a roll of many dice comes to."""

    roll_count: jax.Array
    six_count: jax.Array


def noisy_matmul(matrix: jax.Array, xs: jax.Array, key: jax.Array) -> jax.Array:
    """Of one shard: matrix (8, 5), xs (rows, 8); says which shard it is."""
    noise = 0.1 * jax.random.normal(key, (1, matrix.shape[-1]))
    jax.debug.print("shard {i}: matrix {m}, data {d}", i=jax.lax.axis_index(AXIS), m=str(matrix.shape), d=str(xs.shape))
    return jnp.dot(xs, matrix) + noise


def roll_dice(count: int, key: jax.Array) -> Result:
    """Of one shard: scalars."""
    value = jax.random.randint(key, (count,), minval=1, maxval=7)
    return Result(six_count=(value == 6).astype(np.float32).sum(), roll_count=jnp.full((), count))


def loss(w: jax.Array, x: jax.Array, *, mask: jax.Array) -> jax.Array:
    """Mean square of the rows that count; padded rows would spoil it. w (3,), x (rows, 3), mask (rows,)."""
    squares = jnp.where(mask, jnp.log(x @ w) ** 2, 0.0)
    return jax.lax.psum(squares.sum(), AXIS) / jax.lax.psum(mask.sum(), AXIS)


def local_rows(array: jax.Array) -> list[Any]:
    """`[start, values]` of what lies here, in order."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [[shard.index[0].start or 0, np.asarray(shard.data).tolist()] for shard in shards]


def guide(context: Context) -> dict[str, Any]:
    """The cells about mapped functions."""
    mesh = jax.make_mesh((8,), (AXIS,))
    rng = np.random.default_rng(0)
    matrix, data = rng.normal(size=(8, 5)), rng.normal(size=(16, 8))
    lines = io.StringIO()
    matmul = spmd.spmd_map(noisy_matmul, mesh, AXIS, ("broadcast", "shard", "rng"), wrap_return="rows")
    with contextlib.redirect_stdout(lines):
        typed, legacy = matmul(matrix, data, jax.random.key(0)), matmul(matrix, data, jax.random.PRNGKey(0))
        jax.effects_barrier()
    stacked = spmd.spmd_map(noisy_matmul, mesh, AXIS, ("broadcast", "shard", "rng"))(matrix, data, jax.random.key(0))
    dice = spmd.spmd_map(roll_dice, mesh, AXIS, ("static", "rng"))(10, jax.random.key(0))
    reshaped = spmd.spmd_map(
        noisy_matmul, mesh, AXIS, ("broadcast", "shard", "rng"), wrap_return=lambda y: y.reshape(-1, y.shape[-1])
    )(matrix, data, jax.random.key(0))
    expected = [
        data[2 * n : 2 * n + 2] @ matrix + 0.1 * jax.random.normal(jax.random.fold_in(jax.random.key(0), n), (1, 5))
        for n in range(8)
    ]
    ours = [shard.index for shard in typed.addressable_shards]
    difference = [
        float(np.abs(np.asarray(shard.data) - np.concatenate(expected)[index]).max())
        for shard, index in zip(typed.addressable_shards, ours, strict=True)
    ]
    return {
        "rank": context.rank,
        "lines": sorted(lines.getvalue().splitlines()),
        "shapes": [list(array.shape) for array in (typed, stacked, reshaped, dice.six_count, dice.roll_count)],
        "typed": local_rows(typed),
        "legacy": local_rows(legacy),
        "reshaped": local_rows(reshaped),
        "difference": max(difference),
        "dice": [type(dice).__name__, local_rows(dice.six_count), local_rows(dice.roll_count)],
    }


def more(context: Context) -> dict[str, Any]:
    """What the guide does not have: gradients, uneven batches, verified results, further kinds and meshes."""
    mesh = jax.make_mesh((8,), (AXIS,))
    rng = np.random.default_rng(1)
    w, x = rng.uniform(1, 2, size=3).astype(np.float32), rng.uniform(1, 2, size=(13, 3)).astype(np.float32)
    whole = lambda w, x: (jnp.log(x @ w) ** 2).mean()  # noqa: E731
    mapped = spmd.spmd_map(loss, mesh, AXIS, ("broadcast", "shard"), out="replicated", uneven="pad")
    gradients = {
        "whole": jax.grad(whole, (0, 1))(w, x),
        "mapped": jax.grad(mapped, (0, 1))(w, x),
        "jitted": jax.jit(jax.grad(mapped, (0, 1)))(w, x),
    }
    square = spmd.spmd_map(lambda x, mask: x**2, mesh, AXIS, ("shard",), uneven="pad", wrap_return="rows")
    rows = spmd.spmd_map(lambda k: jax.random.normal(k[0]), mesh, AXIS, ("shard",))(
        jax.random.split(jax.random.key(3), 8)
    )
    thru = spmd.spmd_map(lambda a, *, scale: a * scale, mesh, AXIS, ("thru",), {"scale": "static"})
    given = spmd.shard(np.arange(8.0, dtype=np.float32), mesh, jax.P(AXIS))
    entries = [local_rows(thru(given, scale=scale)) for scale in (2, 2.5, True)]
    donated = spmd.spmd_map(lambda a: a + 1, mesh, AXIS, ("shard",), donate=(0,), wrap_return="rows")(given)
    mixed = spmd.spmd_map(
        lambda a, count, *, b, key: a + b["x"] * count + 0 * jax.random.normal(key),
        mesh, AXIS, ("shard", "static"), {"b": "broadcast", "key": "rng"}, wrap_return="rows",
    )(np.arange(8.0), 3, b={"x": 1.0}, key=jax.random.key(0))  # fmt: skip
    grid = jax.make_mesh((4, 2), ("d", "m"))
    both = spmd.spmd_map(lambda a: jax.lax.axis_index(("d", "m")) + 0 * a[0], grid, ("d", "m"), ("shard",))
    first = spmd.spmd_map(lambda a: jax.lax.psum(a.sum(), "d"), grid, "d", ("shard",), out="replicated")
    gathered = spmd.spmd_map(lambda a: jax.lax.all_gather(a, AXIS), mesh, AXIS, ("shard",), out="replicated")
    inside = spmd.spmd_map(
        lambda w, x: jax.grad(lambda w: ((x @ w) ** 2).sum())(w), mesh, AXIS, ("broadcast", "shard"), out="replicated"
    )
    return {
        "loss": [float(mapped(w, x)), float(whole(w, x))],
        "gradients": {name: [np.asarray(g).tolist() for g in spmd_rows(found)] for name, found in gradients.items()},
        "square": [list(square(x).shape), float(jnp.abs(square(x) - x**2).max())],
        "no width": list(spmd.gather(square(x[:, :0])).shape),
        "rows": local_rows(rows),
        "thru": entries,
        "donated": [given.is_deleted(), local_rows(donated)],
        "mixed": local_rows(mixed),
        "both": local_rows(both(np.arange(8))),
        "first": [float(first(np.arange(8.0))), first(np.arange(8.0)).is_fully_replicated],
        "gathered": np.asarray(gathered(np.arange(8)).addressable_data(0)).tolist(),
        "inside": float(jnp.abs(inside(w, x[:8]) - jax.grad(lambda w: ((x[:8] @ w) ** 2).sum())(w)).max()),
    }


def at_hand(context: Context) -> dict[str, Any]:
    """Mapped functions under `jit`, with arguments that every host holds and no trace knows of; and weak types."""
    mesh = jax.make_mesh((8,), (AXIS,))
    batch, key = np.arange(16, dtype=np.float32).reshape(8, 2), jax.random.key(3)
    scaled = spmd.spmd_map(lambda x, w: (x * w).sum(), mesh, AXIS, ("shard", "broadcast"))
    noisy = spmd.spmd_map(lambda x, key: x.sum() * jax.random.normal(key), mesh, AXIS, ("shard", "rng"))
    padded = spmd.spmd_map(lambda x, w, mask: x * w, mesh, AXIS, ("shard", "broadcast"), uneven="pad",
                           wrap_return="rows")  # fmt: skip
    device, placed, short = jnp.asarray(batch), spmd.shard(batch, mesh, jax.P(AXIS)), jnp.asarray(batch[:5])
    results = {
        "numpy": jax.jit(lambda w: scaled(batch, w))(2.0),
        "device": jax.jit(lambda w: scaled(device, w))(2.0),
        "key": jax.jit(lambda x: noisy(x, key))(placed),
        "padded": jax.jit(lambda w: padded(short, w))(2.0),
        "gradient": jax.jit(jax.grad(lambda w: scaled(device, w).sum()))(2.0),
    }
    half, weak = jnp.ones(8, jnp.bfloat16), jnp.full((), 1.5)
    product = spmd.spmd_map(lambda x, w: x * w, mesh, AXIS, ("shard", "broadcast"))
    try:
        differs = str(jax.jit(lambda w: scaled(device + context.rank, w))(2.0).shape)
        ours = np.full((8, 2), context.rank, np.float32)
        differs = str(jax.jit(lambda w: scaled(ours, w))(2.0).shape)
    except spmd.ValueMismatchError as error:
        differs = str(error)
    return {
        "values": {name: np.asarray(spmd.gather(value)).tolist() for name, value in results.items()},
        "types": [str(product(half, w).dtype) for w in (weak, 1.5)] + [str(spmd.shard(weak, mesh, jax.P()).weak_type)],
        "differs": differs,
    }


def spmd_rows(tree: Any) -> list[Any]:
    """Leaves as NumPy arrays, of gradients that may lie on several hosts."""
    replicate = jax.jit(lambda leaf: leaf + 0)
    return [leaf if leaf.is_fully_addressable else _whole(replicate(leaf)) for leaf in jax.tree.leaves(tree)]


def _whole(leaf: jax.Array) -> np.ndarray:
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))


def diverging(context: Context) -> dict[str, dict[str, Any]]:
    """Arguments that differ between hosts, and results that differ between shards: what a rank tells its agent."""
    mesh = jax.make_mesh((8,), (AXIS,))
    total = spmd.spmd_map(lambda w, x: jax.lax.psum(x.sum(), AXIS) * w, mesh, AXIS, ("broadcast", "shard"),
                          out="replicated")  # fmt: skip
    wrong = spmd.spmd_map(lambda x: {"sum": x.sum()}, mesh, AXIS, ("shard",), out="replicated")
    same = spmd.spmd_map(lambda w, x: {"w": w, "x": x.sum()}, mesh, AXIS, ("broadcast", "shard"), out="replicated")
    everywhere = jax.NamedSharding(mesh, jax.P())
    pieces = [jax.device_put(np.float32(device.id == mesh.devices[-1].id), device) for device in jax.local_devices()]
    damaged = jax.make_array_from_single_device_arrays((), everywhere, pieces)
    ours = np.full(8, context.rank, np.float32)
    calls = {
        "batch": lambda: total(1.0, ours),
        "weight": lambda: total({0: 0.5, 1: 0.25}[min(context.rank, 1)], np.ones(8, np.float32)),
        "result": lambda: wrong(np.array([1, 1, 1, 1, 1, 2, 1, 1], np.float32)),
        "damaged": lambda: same(damaged, np.arange(8, dtype=np.float32)),
        "fine": lambda: total(1.0, np.ones(8, np.float32)),
    }
    told = {}
    for name, call in calls.items():
        try:
            told[name] = {"result": float(call())}
        except RuntimeError as error:
            told[name] = error_details(error, None, is_ours=True, peak_bytes=0)
    return told


def refused(context: Context) -> dict[str, str]:
    """Bad input, in one process."""
    mesh, x = jax.make_mesh((8,), (AXIS,)), np.ones((8, 3), np.float32)

    def call(*args: Any, kinds: Any = ("shard",), **options: Any) -> Any:
        named = {name: options.pop(name) for name in ("scale",) if name in options}
        return spmd.spmd_map(lambda a, **more: a, mesh, options.pop("axis", AXIS), kinds, **options)(*args, **named)

    def thrice(batch: np.ndarray) -> Any:
        rows = lambda a, mask: {"y": jnp.concatenate([a[:1]] * 3)}  # noqa: E731
        return spmd.spmd_map(rows, mesh, AXIS, ("shard",), uneven="pad", wrap_return="rows")(batch)

    calls = {
        "rows": lambda: call({"x": np.ones((13, 3))}),
        "scalar": lambda: call(1.0),
        "thru": lambda: call(np.ones((4, 2)), kinds=("thru",)),
        "key": lambda: call(np.ones(2), kinds=("rng",)),
        "keys": lambda: call(jax.random.split(jax.random.key(0)), kinds=("rng",)),
        "kind": lambda: call(x, kinds=("broadcsat",)),
        "kinds": lambda: call(x, kinds="shard"),
        "axis": lambda: call(x, axis="j"),
        "count": lambda: call(x, x),
        "keyword": lambda: call(x, scale=2),
        "static": lambda: call(np.ones(3), kinds=("static",)),
        "mask": lambda: spmd.spmd_map(lambda a: a, mesh, AXIS, ("shard",), uneven="pad"),
        "two batches": lambda: spmd.spmd_map(lambda a, b, mask: a, mesh, AXIS, ("shard", "shard"), uneven="pad")(
            np.ones((13, 3)), np.ones((16, 3))
        ),
        "no rows": lambda: spmd.spmd_map(lambda a: a.sum(), mesh, AXIS, ("shard",), wrap_return="rows")(x),
        "donate": lambda: call(x, donate=(1,)),
        "out": lambda: call(x, out="stacked"),
        "unproven": lambda: jax.jit(
            spmd.spmd_map(lambda a: {"all": jax.lax.all_gather(a, AXIS)}, mesh, AXIS, ("shard",), out="replicated")
        )(x),
        "empty": lambda: spmd.spmd_map(lambda a, mask: a, mesh, AXIS, ("shard",), uneven="pad")(np.ones((0, 3))),
        "more rows": lambda: thrice(x[:1].repeat(13, axis=0)),
        "more even rows": lambda: thrice(x[:1].repeat(16, axis=0)),
        "own mask": lambda: spmd.spmd_map(
            lambda a, mask: a * mask, mesh, AXIS, ("shard",), {"mask": "broadcast"}, uneven="pad"
        ),
    }
    messages = {}
    for name, function in calls.items():
        try:
            messages[name] = f"no error: {function()}"
        except (ValueError, TypeError) as error:
            messages[name] = f"{type(error).__name__}: {error}"
    return messages
