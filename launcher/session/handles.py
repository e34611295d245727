"""Arrays that stay on the devices of a gang: what the client holds in their place, and how values travel to and fro."""

import functools
import io
import pickle
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from launcher.errors import UserError
from launcher.travel import Pickler, Unpickler


class Kept:
    """An array that the ranks keep as long as this object lives.

    Args:
        number, index: which: of that call, in that place.
    """

    def __init__(self, number: int, index: int):
        self.number = number
        self.index = index


class Handle:
    """An array on the devices of a gang. `fetch` brings it here; as an argument of `gang.run` it is the array again.

    Attributes:
        shape: tuple of lengths.
        dtype: as NumPy names it, or `key<...>` of a typed PRNG key.
        sharding: JAX's, as text.
        is_global: whether it is one array over several hosts; else each rank has one of its own.
        rank: whose `fetch` brings, where `run_each` has told the ranks apart; None: that of all.
    """

    def __init__(
        self, fetch: "Fetch", kept: Kept, shape: tuple[int, ...], dtype: str, sharding: str, is_global: bool,
        rank: int | None,
    ):  # fmt: skip
        self._fetch = fetch
        self.kept = kept
        self.shape = shape
        self.dtype = dtype
        self.sharding = sharding
        self.is_global = is_global
        self.rank = rank if not is_global else None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def fetch(self) -> np.ndarray:
        """The whole array as a NumPy array of one's own, its copies compared; of a typed PRNG key its uint32 data.

        Raises:
            GangError: the ranks hold different arrays, or copies of one differ.
            GangEndedError: the gang has ended.
        """
        return self._fetch(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on other hosts cannot be had without a copy")
        array = self.fetch()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __float__(self) -> float:
        return float(self.fetch())

    def __int__(self) -> int:
        return int(self.fetch())

    def __bool__(self) -> bool:
        return bool(self.fetch())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        own = "on each host" if self.rank is None else f"on rank {self.rank}"
        where = "on all hosts" if self.is_global else own
        return f"Handle({self.dtype}{list(self.shape)} {where})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a handle is of use to its gang alone: fetch() gives the array")


Fetch = Callable[[Handle], np.ndarray]


class Shelf:
    """The arrays that one life of a gang keeps for this client.

    Args:
        fetch: brings the array of a handle here.
    """

    def __init__(self, fetch: Fetch):
        self._fetch = fetch
        self._kept: weakref.WeakValueDictionary[tuple[int, int], Kept] = weakref.WeakValueDictionary()
        self._dropped: deque[tuple[int, int | None]] = deque()  # finalizers run at any moment, in any thread

    def drop_call(self, number: int) -> None:
        """Nothing that this call has returned is held here."""
        self._dropped.append((number, None))

    def take_dropped(self) -> list[tuple[int, int | None]]:
        """What the ranks may forget; it is told once."""
        return [self._dropped.popleft() for _ in range(len(self._dropped))]

    def dumps(self, value: Any, what: str) -> bytes:
        """A value as it travels: functions of a notebook or script by value, handles as what they stand for.

        Args:
            value: any that cloudpickle knows.
            what: it is, in words.

        Raises:
            UserError: it cannot travel.
        """
        buffer = io.BytesIO()
        try:
            Pickler(buffer, self._reference).dump(value)
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{what} cannot travel to the hosts: {error}; what belongs to this process (open files, locks, "
                f"devices, meshes) must be made inside the function"
            ) from error
        return buffer.getvalue()

    def loads(self, data: bytes | bytearray, rank: int | None) -> Any:
        """A value of the ranks, with handles in the place of arrays.

        Args:
            data: as `launcher.rank.arrays` dumps it.
            rank: whose value it is, where each rank has one of its own.
        """
        return Unpickler(io.BytesIO(data), functools.partial(self._handle, rank=rank)).load()

    def _reference(self, handle: Any) -> tuple[int, int] | None:
        if not isinstance(handle, Handle):
            return None
        if self._kept.get((handle.kept.number, handle.kept.index)) is not handle.kept:
            raise UserError(f"{handle!r} was made by a gang that has ended, or by another one: make it again")
        return handle.kept.number, handle.kept.index

    def _handle(self, reference: tuple[Any, ...], *, rank: int | None) -> Handle:
        number, index, *rest = reference
        kept = self._kept.get((number, index))
        if kept is None:
            kept = self._kept[number, index] = Kept(number, index)
            weakref.finalize(kept, self._dropped.append, (number, index)).atexit = False
        shape, dtype, sharding, is_global = rest
        return Handle(self._fetch, kept, shape, dtype, sharding, is_global, rank)
