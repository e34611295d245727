"""Arrays on the devices of all hosts, from what the hosts hold: `shard`."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workloads.integrity.plan import holders
from workloads.spmd.processes import checker, first_difference, path_of

PyTree = Any

UNLIKE = (
    "Every host must give the same here (spmd.broadcast gives all hosts one host's values); parts that are each host's "
    "own are joined by spmd.shard(..., host_local=True), with a spec that cuts them"
)


def shard(tree: PyTree, mesh: Mesh, spec: PyTree, *, host_local: bool = False) -> PyTree:
    """Puts a tree on the devices of a mesh, cut as `spec` says.

        mesh = jax.make_mesh((8,), ("data",))
        batch = spmd.shard({"x": np.ones((16, 4)), "y": np.ones(16)}, mesh, P("data"))  # the whole, on every host
        params = spmd.shard(params, mesh, P())                                          # copied to all devices
        mine = load_rows_of_this_host()
        batch = spmd.shard(mine, mesh, P("data"), host_local=True)  # each host gives its part: nobody holds the whole
        loss, grads = jax.jit(jax.value_and_grad(loss_fn))(params, batch)

    Data that every host holds are compared before they are taken: copies that differ are told by leaf and host, where
    JAX would build an array whose parts come from different wholes.

    Args:
        tree: NumPy arrays, numbers, arrays of JAX's, typed PRNG keys. Arrays that lie on several hosts already are
            moved to the new sharding, also if `host_local`.
        mesh: over devices of all hosts that call this; every one must.
        spec: a `PartitionSpec`, or a tree of them that is a prefix of `tree`.
        host_local: whether a host holds only its part, which is joined with the others' in the order of the mesh.

    Returns:
        The tree with `jax.Array` leaves of that sharding; 64-bit types become 32-bit ones unless `jax_enable_x64`.

    Raises:
        ValueMismatchError: hosts hold different data that should be the same: all of it, or, if `host_local`, what
            `spec` copies to several hosts.
        ValueError: rows that do not divide over the mesh; parts of hosts that differ in shape or dtype.
        TimeoutError: naming the processes that did not call.
    """
    paths = [path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(tree)]
    leaves, treedef = jax.tree.flatten(tree)
    specs = jax.tree.leaves(
        jax.tree.broadcast(spec, tree, is_leaf=lambda part: isinstance(part, PartitionSpec)),
        is_leaf=lambda part: isinstance(part, PartitionSpec),
    )
    shardings = [NamedSharding(mesh, part) for part in specs]
    held = [number for number, leaf in enumerate(leaves) if in_host_hands(leaf)]
    if host_local:
        _check_parts({paths[number]: leaves[number] for number in held})
    else:
        check_alike({paths[number]: leaves[number] for number in held}, "data that every host should hold alike")
        for path, leaf, sharding in zip(paths, leaves, shardings, strict=True):
            _check_divides(path, np.shape(leaf), sharding)
    placed = [
        _join(path, leaf, sharding) if host_local and number in held else place(leaf, sharding)
        for number, (path, leaf, sharding) in enumerate(zip(paths, leaves, shardings, strict=True))
    ]
    if host_local:
        shared = {paths[number]: placed[number] for number in held if _on_several_hosts(placed[number])}
        check_alike(shared, "parts of which several hosts hold copies")
    return jax.tree.unflatten(treedef, placed)


def in_host_hands(leaf: Any) -> bool:
    """Whether each of several hosts brings a value of its own, which nothing yet ties to the others'."""
    return jax.process_count() > 1 and not (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable)


def check_alike(leaves: dict[str, Any], subject: str) -> None:
    """Makes sure that what every host holds is the same everywhere.

    Args:
        leaves: by path.
        subject: what they are, in words, plural.

    Raises:
        ValueMismatchError: naming leaf, hosts and the first difference.
    """
    if leaves and jax.process_count() > 1:
        with jax.ensure_compile_time_eval():
            checker().check(leaves, step=0).raise_if_unlike(subject, UNLIKE)


def place(leaf: Any, sharding: NamedSharding, *, donate: bool = False) -> jax.Array:
    """One leaf that every host holds, or that lies on several, in its new sharding; never of a weak type."""
    if getattr(leaf, "weak_type", False):  # what goes through host memory loses it: so on every layout
        leaf = jax.lax.convert_element_type(leaf, leaf.dtype)
    if isinstance(leaf, jax.Array) and not in_host_hands(leaf):
        return jax.device_put(leaf, sharding, donate=donate)
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return _as_keys(place(jax.random.key_data(leaf), sharding), leaf)
    array = _canonical(leaf)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def constant(leaf: Any) -> Any:
    """One leaf that every host holds, as what a program of all hosts can have for a constant."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        with jax.ensure_compile_time_eval():
            data = np.asarray(jax.random.key_data(leaf))
        return _as_keys(data, leaf)
    return _canonical(leaf)


def _canonical(leaf: Any) -> np.ndarray:
    """As in host memory, in a type that JAX has."""
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _on_several_hosts(array: jax.Array) -> bool:
    """Whether some block of it lies on more than one."""
    return any(len(ranks) > 1 for ranks in holders(array).values())


def _join(path: str, leaf: Any, sharding: NamedSharding) -> jax.Array:
    """One leaf from the parts of all hosts."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return _as_keys(_join(path, jax.random.key_data(leaf), sharding), leaf)
    array = _canonical(leaf)
    try:
        return jax.make_array_from_process_local_data(sharding, array)
    except ValueError as error:
        raise ValueError(
            f"{path}: this host's part {array.dtype}{list(array.shape)} does not fit {sharding.spec} on a mesh of "
            f"{dict(sharding.mesh.shape)}: {error}"
        ) from error


def _as_keys(data: jax.Array | np.ndarray, like: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))


def _check_parts(leaves: dict[str, Any]) -> None:
    """Hosts' parts must be alike in shape and dtype: JAX cuts evenly."""
    parts = {path: f"{jax.dtypes.result_type(leaf)}{list(np.shape(leaf))}" for path, leaf in leaves.items()}
    if differs := first_difference("shard", parts):
        path, listed = differs
        raise ValueError(f"{path}: parts of the hosts must be equal in shape and dtype, they are {listed}")


def _check_divides(path: str, shape: tuple[int, ...], sharding: NamedSharding) -> None:
    spec = sharding.spec
    if len(spec) > len(shape):
        raise ValueError(f"{path}: {spec} names {len(spec)} axes, the leaf has shape {list(shape)}")
    for axis, names in enumerate(spec):
        named = () if names is None else (names,) if isinstance(names, str) else tuple(names)
        pieces = int(np.prod([sharding.mesh.shape[name] for name in named], dtype=int))
        if shape[axis] % pieces:
            raise ValueError(
                f"{path}: axis {axis} of shape {list(shape)} does not divide over {pieces} pieces ({', '.join(named)})"
            )
