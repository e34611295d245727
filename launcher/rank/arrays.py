"""The arrays that a rank keeps between calls, and how values travel: arrays by reference, all else by value."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import pickle
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from launcher.travel import Pickler, Unpickler

MAX_TEXT = 80


@dataclasses.dataclass
class Loaded:
    """How many arrays were met."""

    arrays: int = 0


class ArrayStore:
    """Arrays by the call that returned them and their place in it; the same on all ranks that returned the same."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, jax.Array]] = {}
        self._number = 0
        self._indices: dict[int, int] = {}  # {id of an array of this call: its place}
        self._loaded = Loaded()

    def begin(self, number: int) -> None:
        """What is dumped from now on was returned by that call."""
        self._number = number
        self._kept[number] = {}
        self._indices = {}

    def finish(self) -> None:
        """Waits for the arrays of this call, so that what fails in computing them fails here."""
        arrays = self._kept[self._number]
        jax.block_until_ready(list(arrays.values()))
        if not arrays:
            del self._kept[self._number]

    def free(self, references: Sequence[Sequence[int | None]]) -> None:
        """Forgets arrays.

        Args:
            references: pairs of a call and a place; None: all of that call.
        """
        for number, index in references:
            arrays = self._kept.get(number or 0, {})
            if index is None:
                arrays.clear()
            else:
                arrays.pop(index, None)
            if not arrays:
                self._kept.pop(number or 0, None)

    @contextlib.contextmanager
    def counting(self) -> Iterator[Loaded]:
        """Counts the arrays that are loaded inside."""
        self._loaded = Loaded()
        yield self._loaded

    def loads(self, data: bytes, *, may_lack: bool = False) -> Any:
        """A value as the client has sent it, with the arrays in the place of their handles.

        Args:
            may_lack: None stands for an array that this rank did not return.

        Raises:
            LookupError: this rank did not return an array that is in it.
        """
        try:
            return Unpickler(io.BytesIO(data), functools.partial(self._array, may_lack=may_lack)).load()
        except (ImportError, AttributeError) as error:
            error.add_note(
                "What belongs to a module travels by its name: the module must be in the folder that the gang was "
                "given, as it is now (gang.restart() ships it again), or be installed on the hosts."
            )
            raise

    def dump(self, value: Any, file: Path) -> None:
        """Writes a value, and keeps the arrays in it.

        Raises:
            TypeError: something in it cannot travel.
        """
        with file.open("wb") as opened:
            self._dump(value, opened)

    def describe(self, value: Any) -> list[list[str | None]]:
        """What must be equal on all ranks: of each leaf its path, a digest, and the start of its text.

        The first is the structure, without a path. Arrays over several hosts must have the same shape, dtype and
        sharding, others the same shape and dtype.
        """
        leaves, structure = jax.tree_util.tree_flatten_with_path(value)
        shown = re.sub(r"0x[0-9a-f]+", "", str(structure))  # addresses differ between equal ranks
        found: list[list[str | None]] = [[None, _digest(shown.encode()), shown]]
        for keys, leaf in leaves:
            path = jax.tree_util.keystr(keys)
            text = self._text(leaf)
            found.append([path, self._digest(leaf, text), text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."])
        return found

    def _digest(self, leaf: Any, text: str) -> str:
        if isinstance(leaf, jax.Array):
            return _digest(text.encode())
        if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            head = f"{leaf.dtype.name}{leaf.dtype.str}{leaf.shape}".encode()
            return _digest(head, np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))
        buffer = io.BytesIO()
        self._dump(leaf, buffer)
        return _digest(buffer.getvalue())

    def _text(self, leaf: Any) -> str:
        if not isinstance(leaf, jax.Array):
            return repr(leaf[: MAX_TEXT + 1] if isinstance(leaf, str | bytes) else leaf)
        _require_value(leaf)
        where = f" {leaf.sharding}" if not leaf.is_fully_addressable else ""
        return f"{leaf.dtype}{list(leaf.shape)}{where}"

    def _dump(self, value: Any, file: BinaryIO | io.BytesIO) -> None:
        try:
            Pickler(file, self._reference).dump(value)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(
                f"what the function returned cannot travel to the client ({error}); it may return arrays, numbers, "
                f"text and containers of these, and objects that pickle; a mesh or a device it makes anew when called"
            ) from None

    def _reference(self, array: Any) -> tuple[Any, ...] | None:
        """How an array is told to the client; it is kept from now on. None: it is none."""
        if not isinstance(array, jax.Array):
            return None
        _require_value(array)
        index = self._indices.setdefault(id(array), len(self._indices))
        self._kept[self._number][index] = array
        told = (tuple(array.shape), str(array.dtype), str(array.sharding), not array.is_fully_addressable)
        return (self._number, index, *told)

    def _array(self, reference: tuple[int, int], *, may_lack: bool) -> jax.Array | None:
        number, index = reference
        array = self._kept.get(number, {}).get(index)
        if array is None and not may_lack:
            raise LookupError(
                "an argument is the handle of an array that this rank has not: here the function of `gang.run_each` "
                "did not return it. What all ranks are to work with, all must return; one rank's array comes by fetch()"
            )
        self._loaded.arrays += 1
        return array


def _require_value(array: jax.Array) -> None:
    if isinstance(array, jax.core.Tracer):
        raise TypeError(f"it returned {array}, which only stands for an array while JAX traces a function")


def _digest(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


# -- what the client calls to fetch an array


def whole(array: jax.Array | None) -> np.ndarray | None:
    """An array over several hosts, its copies compared, as a NumPy array on rank 0; None on the others.

    Args:
        array: None where this rank did not return it.

    Raises:
        LookupError: on all ranks, if some did not return it.
        ReplicaDivergenceError: copies of it differ.
    """
    from workloads import spmd
    from workloads.spmd.processes import exchange

    if absent := [rank for rank, has in enumerate(exchange().all_gather("fetch", array is not None)) if not has]:
        raise LookupError(
            f"rank {', '.join(map(str, absent))} did not return this array, which lies on several hosts, and so has "
            "not kept its part of it; return it on every rank"
        )
    spmd.assert_replicas_equal(array)
    gathered: np.ndarray | None = spmd.gather(array, to="driver")
    return gathered


def local(array: jax.Array | None) -> np.ndarray | None:
    """This host's array, its copies compared, as a NumPy array; a typed PRNG key as its uint32 data.

    Args:
        array: None where this rank did not return it.

    Raises:
        ReplicaDivergenceError: copies of it on devices of this host differ.
    """
    from workloads.exchange import Exchange
    from workloads.integrity import check_replicas
    from workloads.spmd.processes import host_name

    if array is None:
        return None
    if len(array.devices()) > 1:
        alone = Exchange(0, 1)  # what other ranks have under this handle is theirs
        verdict = check_replicas(array, exchange=alone, host=host_name(), step=0)
        verdict.raise_if_diverged("copies of the array on this host")
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)
