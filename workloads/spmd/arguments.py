"""What each kind of argument of `spmd_map` is cut into, and what of it one shard sees."""

import dataclasses
import difflib
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from workloads.spmd.processes import path_of

PyTree = Any
Kind = Literal["broadcast", "shard", "rng", "thru", "static"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
    """The shards that a function is mapped over.

    Attributes:
        mesh: of all devices, with axes that the compiler may place as it likes outside of the mapped function.
        axes: names of the mesh axes that are mapped over, the first varying slowest.
    """

    mesh: Mesh
    axes: tuple[str, ...]

    @classmethod
    def over(cls, mesh: Mesh, axis: str | tuple[str, ...]) -> "Shards":
        """
        Raises:
            ValueError: the mesh has no such axis.
        """
        axes = (axis,) if isinstance(axis, str) else tuple(axis)
        for name in axes:
            if name not in mesh.axis_names:
                raise ValueError(f"the mesh has no axis {name!r}; its axes are {', '.join(map(str, mesh.axis_names))}")
        # `jax.make_mesh` makes explicit axes by default, on which `wrap_return` could not even reshape.
        return cls(mesh=Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim), axes=axes)

    @property
    def count(self) -> int:
        count = 1
        for name in self.axes:
            count *= self.mesh.shape[name]
        return count

    @property
    def spec(self) -> PartitionSpec:
        """Of what has a leading axis to be cut."""
        return PartitionSpec(self.axes)

    def __str__(self) -> str:
        return f"the {self.count} shards of axis {'/'.join(self.axes)!r}"


def known_kind(kind: str) -> Kind:
    """
    Raises:
        ValueError: no such kind; names the nearest.
    """
    for known in KINDS:
        if known == kind:
            return known
    near = difflib.get_close_matches(str(kind), KINDS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"no kind of argument is called {kind!r}{hint} (kinds: {', '.join(KINDS)})")


def spec_of(kind: Kind, shards: Shards) -> PartitionSpec:
    return shards.spec if kind in ("shard", "thru") else PartitionSpec()


def seen_by_shard(kind: Kind, value: PyTree, shards: Shards) -> PyTree:
    """What the function gets of an argument, called where each shard is computed."""
    if kind == "rng":
        index = jax.lax.axis_index(shards.axes)
        return jax.tree.map(lambda key: jax.random.fold_in(key, index), value)
    if kind == "thru":
        return jax.tree.map(lambda leaf: leaf[0], value)
    return value


def check_argument(name: str, kind: Kind, value: PyTree, shards: Shards) -> None:
    """
    Raises:
        ValueError: a leaf that cannot be cut, or that is no key, in words.
    """
    for keys, leaf in jax.tree_util.tree_leaves_with_path(value):
        where = f"argument {name}" + (f", leaf {path_of(keys)}" if keys else "")
        shape = jnp.shape(leaf)
        if kind in ("shard", "thru") and not shape:
            raise ValueError(f"{where}: is {kind!r}, but a scalar has no leading axis to cut; try 'broadcast'")
        if kind == "shard" and shape[0] == 0:
            raise ValueError(f"{where}: there are no rows to cut")
        if kind == "thru" and shape[0] != shards.count:
            raise ValueError(
                f"{where}: is 'thru', so its leading axis must have one entry for each of {shards}, it has {shape[0]}"
            )
        if kind == "rng" and not _is_key(leaf):
            raise ValueError(f"{where}: is 'rng', but {jnp.result_type(leaf)}{list(shape)} is no single PRNG key")


def _is_key(leaf: Any) -> bool:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf.shape == ()
    return getattr(leaf, "dtype", None) == np.uint32 and leaf.ndim == 1  # as `jax.random.PRNGKey` makes them
