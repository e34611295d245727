"""`spmd_map`: a function written for one shard, run on all shards of all hosts as one program."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workloads.spmd import rows
from workloads.spmd.arguments import Kind, Shards, check_argument, known_kind, seen_by_shard, spec_of
from workloads.spmd.placing import check_alike, constant, in_host_hands, place
from workloads.spmd.processes import path_of
from workloads.spmd.rank_lines import rank_in_lines
from workloads.spmd.replicated import as_copy, check_proven, verified

PyTree = Any
Out = Literal["stack", "replicated"]
MOST_PROGRAMS = 64


def spmd_map(
    f: Callable[..., PyTree],
    mesh: Mesh,
    axis: str | tuple[str, ...],
    argtypes: Sequence[str],
    kwargtypes: Mapping[str, str] | None = None,
    *,
    wrap_return: Callable[[PyTree], PyTree] | Literal["rows"] | None = None,
    out: Out = "stack",
    uneven: Literal["refuse", "pad"] = "refuse",
    donate: Sequence[int | str] = (),
) -> Callable[..., PyTree]:
    """Maps `f`, written for one shard, over the shards of a mesh axis, on all hosts.

        def noisy(matrix, xs, key):                                    # xs: (2, 8), the rows of one shard
            return xs @ matrix + 0.1 * jax.random.normal(key, (1, matrix.shape[-1]))

        mesh = jax.make_mesh((8,), ("i",))
        g = spmd.spmd_map(noisy, mesh, "i", ("broadcast", "shard", "rng"), wrap_return="rows")
        y = g(np.ones((8, 5)), np.ones((16, 8)), jax.random.key(0))    # (16, 5), cut over all devices

    Each argument has a kind: `"broadcast"`: every shard sees all of it; `"shard"`: its rows (leading axis) are cut;
    `"rng"`: a PRNG key, from which shard `i` gets `fold_in(key, i)`; `"thru"`: has a leading axis with one entry for
    each shard, which sees its entry; `"static"`: a hashable Python value, compiled in. Any of them but static may be a
    pytree. Shards are numbered along the axis, so the result does not depend on how devices are spread over hosts.
    Inside `f`, `jax.lax.psum(x, axis)` and the like work, and lines of `jax.debug.print` begin with their rank.
    Gradients through the result are those of the whole function. A gradient taken *inside* `f` with respect to a
    broadcast argument is already summed over the shards, as JAX's varying-axis types have it: do not sum it again.

    Args:
        f: of one shard; returns a pytree of arrays (`flax.struct` classes too), of any shapes, scalars included.
        mesh: of any kind of axes; further axes than `axis` compute the same.
        axis: mesh axis to map over, or several.
        argtypes: a kind for each positional argument.
        kwargtypes: a kind for each keyword argument.
        wrap_return: called with the result; or "rows": merges shard axis and row axis, and drops padding.
        out: "stack": results get a leading axis, one entry for each shard. "replicated": results must be equal on all
            shards; they are compared bit by bit before they are returned as one. Under `jax.jit` and `jax.grad`, where
            there are no bits yet, JAX must be able to prove it (`psum` does, `all_gather` does not).
        uneven: of rows that do not divide over the shards: "refuse" them, or "pad" them with copies of the last row;
            `f` must then take `mask`, bool (rows of a shard,), which says which rows count.
        donate: arguments, by position or name, whose memory may be reused; they are gone afterwards.

    Returns:
        A function of the same arguments. Arguments in host memory are taken to be alike on all hosts, which is
        checked; such a call waits for the other hosts. Arguments that `shard` has placed are neither checked nor moved.

    Raises:
        ValueError: here or in the call, for a kind, axis or argument that does not fit.
        TypeError: wrong arguments; a static argument that cannot be hashed.
        ValueMismatchError: in the call: arguments differ between hosts, or results that must be equal between shards,
            which nothing has reduced.
        ReplicaDivergenceError: in the call: so do results that JAX can prove equal; some device is wrong.
    """
    mapped = _Mapped(f, Shards.over(mesh, axis), argtypes, kwargtypes or {}, wrap_return, out, uneven, donate)
    return functools.update_wrapper(mapped, f, updated=())


class _Mapped:
    """What `spmd_map` makes; arguments as there. Its programs are built once for each set of static values."""

    def __init__(
        self,
        f: Callable[..., PyTree],
        shards: Shards,
        argtypes: Sequence[str],
        kwargtypes: Mapping[str, str],
        wrap_return: Callable[[PyTree], PyTree] | Literal["rows"] | None,
        out: Out,
        uneven: str,
        donate: Sequence[int | str],
    ):
        if isinstance(argtypes, str):
            raise TypeError(f"argtypes={argtypes!r}: a sequence with a kind for each argument is needed")
        self.f, self.shards, self.wrap_return, self.out = f, shards, wrap_return, out
        self.name = getattr(f, "__name__", "spmd_map")
        self.subject = f"results of {self.name} that should be equal on {shards}"
        self.num_args = len(argtypes)
        # Positional arguments are called "0", "1": JAX sorts names, and cannot compare numbers with text.
        self.kinds: dict[str, Kind] = {
            str(name): known_kind(kind) for name, kind in [*enumerate(argtypes), *kwargtypes.items()]
        }
        self.donated = frozenset(map(str, donate))
        self.pad = uneven == "pad"
        if out not in ("stack", "replicated") or uneven not in ("refuse", "pad"):
            raise ValueError(f"out={out!r}, uneven={uneven!r}: stack or replicated, refuse or pad are known")
        if unknown := [name for name in donate if self.kinds.get(str(name), "static") == "static"]:
            raise ValueError(f"donate={tuple(donate)}: {unknown[0]!r} is no argument that lies on devices")
        if out == "replicated" and wrap_return == "rows":
            raise ValueError("wrap_return='rows' merges the rows of shards; out='replicated' has one result")
        if self.pad and not (_takes_mask(f) and "shard" in self.kinds.values()):
            raise ValueError(
                "uneven='pad': the function must take `mask`, or padded rows would count, and a 'shard' argument"
            )
        if self.pad and "mask" in kwargtypes:
            raise ValueError(
                "uneven='pad': `mask` is what tells the function which rows count, so kwargtypes cannot have an "
                "argument of that name; give yours another one"
            )
        self.program = functools.lru_cache(MOST_PROGRAMS)(self._program)

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        values = self._bind(args, kwargs)
        static = {name: value for name, value in values.items() if self.kinds[name] == "static"}
        arrays = {name: value for name, value in values.items() if name not in static}
        for name, value in arrays.items():
            check_argument(name, self.kinds[name], value, self.shards)
        batches = {name: value for name, value in arrays.items() if self.kinds[name] == "shard"}
        count = rows.count_rows(batches, self.shards, pad=self.pad)
        if count is not None:
            arrays |= {name: rows.pad_rows(batch, rows.padded(count, self.shards)) for name, batch in batches.items()}
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arrays))
        arrays = self._place(arrays)
        result = self._run(static, count, arrays, proven=traced)
        if self.wrap_return == "rows":
            return rows.merge_rows(result, count, self.shards)
        return result if self.wrap_return is None else self.wrap_return(result)

    def _run(self, static: dict[str, Any], count: int | None, arrays: dict[str, Any], proven: bool) -> Any:
        key = tuple((name, type(value), value) for name, value in static.items())  # 1, 1.0 and True are equal
        try:
            hash(key)
        except TypeError as error:
            raise TypeError(f"a static argument must be hashable ({error}); 'broadcast' takes arrays") from error
        kept = {name: value for name, value in arrays.items() if name not in self.donated}
        given = {name: value for name, value in arrays.items() if name in self.donated}
        result = self.program(key, count, proven)(kept, given)
        if self.out == "stack" or proven:
            return result
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(result)):  # under `jit`, with constant arguments
            return self.program(key, count, True)(kept, given)
        return verified(result, self.shards.mesh, self.subject)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) != self.num_args:
            raise TypeError(f"argtypes names {self.num_args} positional arguments, the call has {len(args)}")
        for name in kwargs:
            if name not in self.kinds:
                raise TypeError(f"kwargtypes has no kind for the keyword argument {name!r}")
        return {str(number): value for number, value in enumerate(args)} | kwargs

    def _place(self, arrays: dict[str, PyTree]) -> dict[str, PyTree]:
        """Host memory to devices; numbers of Python's and what is being traced stay what they are."""
        leaves = jax.tree_util.tree_leaves_with_path(arrays)
        held = {path_of(keys): leaf for keys, leaf in leaves if not isinstance(leaf, Tracer) and in_host_hands(leaf)}
        check_alike(held, f"arguments of {self.name} that every host should hold alike")
        # An array over several hosts could not be a constant of the program that is being traced.
        as_constants = bool(held) and isinstance(jnp.zeros(()), Tracer)
        placed = {}
        for name, value in arrays.items():
            sharding = NamedSharding(self.shards.mesh, spec_of(self.kinds[name], self.shards))
            move = functools.partial(_placed, sharding=sharding, donate=name in self.donated, as_constant=as_constants)
            placed[name] = jax.tree.map(move, value)
        return placed

    def _program(self, static: tuple[tuple[Any, ...], ...], count: int | None, proven: bool) -> Any:
        """The compiled function of (arguments to keep, arguments to donate).

        Args:
            count: rows before padding; None if the function is given no mask.
            proven: whether that results are equal is to be proven by types, not compared.
        """
        shards, everywhere, subject = self.shards, self.shards.mesh.axis_names, self.subject

        def one_shard(arrays: dict[str, PyTree], mask: jax.Array | None) -> PyTree:
            seen = {name: seen_by_shard(self.kinds[name], value, shards) for name, value in arrays.items()}
            seen |= {name: value for name, _, value in static}
            seen |= {} if mask is None else {"mask": mask}
            positional = [seen.pop(str(number)) for number in range(self.num_args)]
            with rank_in_lines():
                result = self.f(*positional, **seen)
            if self.out == "stack":
                return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], result)
            if proven:
                return check_proven(jax.tree.map(jnp.asarray, result), subject)
            return jax.tree.map(lambda leaf: as_copy(jnp.asarray(leaf), everywhere), result)

        out_spec = shards.spec if self.out == "stack" else PartitionSpec() if proven else PartitionSpec(everywhere)

        def run(kept: dict[str, PyTree], given: dict[str, PyTree]) -> PyTree:
            arrays = kept | given
            mask = None if count is None else jnp.arange(rows.padded(count, shards)) < count
            specs = {name: spec_of(self.kinds[name], shards) for name in arrays}
            mapped = jax.shard_map(one_shard, mesh=shards.mesh, in_specs=(specs, shards.spec), out_specs=out_spec)
            return mapped(arrays, mask)

        run.__name__ = self.name  # what profiles and errors call the program
        return jax.jit(run, donate_argnums=1)


def _placed(leaf: Any, *, sharding: NamedSharding, donate: bool, as_constant: bool) -> Any:
    if isinstance(leaf, Tracer | bool | int | float | complex):
        return leaf
    if as_constant and in_host_hands(leaf):
        return constant(leaf)
    return place(leaf, sharding, donate=donate)


def _takes_mask(f: Callable[..., Any]) -> bool:
    parameters = inspect.signature(f).parameters
    return "mask" in parameters or any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())
