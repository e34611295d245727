"""Which file of a step holds which leaf, and whether all that is in them can be read. Imports no JAX.

Orbax writes one key-value store, TensorStore's OCDBT: a tree of nodes, each with a checksum, that says in which file
the chunks of an array lie, or holds them where they are small. One file has chunks of many leaves.
"""

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from workloads.errors import DamageError
from workloads.storage.folders import STATE, is_there
from workloads.words import first_of

# What reading raises, in TensorStore and Orbax; with these words of TensorStore's it is the storage that fails, not the
# data that are damaged (of the kernel's errors all but ENOENT, ENOTDIR and EISDIR).
READ_ERRORS = (OSError, ValueError, LookupError, NotImplementedError)
_UNREAD = re.compile(
    r"os_error_code='(?!(?:2|20|21)')|UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|RESOURCE_EXHAUSTED"
)
_INDEX = "manifest.ocdbt"


def stored_name(leaf: str) -> str:
    """A leaf's name with Orbax's separator; Orbax itself leaves the slashes of a key as they are."""
    return leaf.replace("/", ".")


def is_unread(error: BaseException) -> bool:
    """Whether data are out of reach at this moment, which tells nothing of them."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return True
    return _UNREAD.search(str(error)) is not None


def cannot_be_read(what: str, error: BaseException) -> str:
    # TensorStore adds its whole specification, kilobytes of it.
    return f"{what} cannot be read ({textwrap.shorten(f'{type(error).__name__}: {error}', 400)})"


def leaves_in(folder: epath.Path, file: str, leaves: Sequence[str]) -> str:
    """` (with weights/kernel, count)`: which of these leaves a file of a step holds; '' if none, or nobody can tell."""
    held = {stored_name(array) for array, where in _known_chunks(folder) if where == file}
    return _bracketed("with", [leaf for leaf in leaves if stored_name(leaf) in held])


def files_with(folder: epath.Path, leaves: Sequence[str]) -> str:
    """` (in state/d/5f39a9)`: the files of a step that hold these leaves; '' if nobody can tell."""
    wanted = {stored_name(leaf) for leaf in leaves}
    return _bracketed("in", sorted({file for array, file in _known_chunks(folder) if stored_name(array) in wanted}))


def check_arrays(folder: epath.Path, leaves: Sequence[str], *, part: int, num_parts: int) -> None:
    """Reads every `num_parts`-th array of a step, chunk by chunk, and forgets it.

    Args:
        folder: of the step.
        leaves: all of the step.
        part: with which array to begin.

    Raises:
        DamageError: naming a leaf and its files.
        OSError: the storage fails, which tells nothing of the arrays.
    """
    names = {stored_name(leaf): leaf for leaf in leaves}
    for array in sorted({array for array, _ in _chunks(folder)})[part::num_parts]:
        try:
            _read_through(folder, array)
        except READ_ERRORS as error:
            leaf = names.get(stored_name(array), array)
            raise _problem(cannot_be_read(leaf, error) + files_with(folder, [leaf]), error) from error


def _read_through(folder: epath.Path, array: str) -> None:
    import tensorstore as ts

    store = {"driver": "ocdbt", "base": _base(folder), "path": f"{array}/"}
    found = ts.open({"driver": "zarr", "kvstore": store, "fill_missing_data_reads": False}).result()
    steps: Any = found.chunk_layout.read_chunk.shape or ()  # None of an array without axes
    for start in itertools.product(*(range(0, size, step) for size, step in zip(found.shape, steps, strict=True))):
        stop = (min(at + step, size) for at, step, size in zip(start, steps, found.shape, strict=True))
        found[tuple(map(slice, start, stop))].read().result()


def _known_chunks(folder: epath.Path) -> list[tuple[str, str]]:
    try:
        return list(_chunks(folder))
    except (DamageError, OSError):
        return []


def _chunks(folder: epath.Path) -> Iterator[tuple[str, str]]:
    """Of each chunk its array, as Orbax names it, and the file below `folder` that has the bytes.

    Raises:
        DamageError: naming the file of the index that is damaged.
        OSError: the storage fails.
    """
    import tensorstore as ts

    if not is_there(folder / STATE / _INDEX):
        return  # a tree without arrays
    try:
        base = ts.KvStore.open(_base(folder)).result()
        root = ts.ocdbt.dump(base).result()["versions"][-1]["root"].get("location")
    except READ_ERRORS as error:  # no damage: this file has the digest that the manifest says
        raise OSError(cannot_be_read(f"{STATE}/{_INDEX}", error)) from error
    left = [(root, "")] if root else []
    while left:
        node, prefix = left.pop()
        try:
            entries = ts.ocdbt.dump(base, node).result()["entries"]
        except READ_ERRORS as error:
            raise _problem(cannot_be_read(_file_of(node), error), error) from error
        for entry in entries:
            if "location" in entry:
                left.append((entry["location"], prefix + entry["subtree_common_prefix"].decode()))
                continue
            array, _, chunk = (prefix + entry["key"].decode()).rpartition("/")
            if chunk != ".zarray":  # shape and dtype
                yield array, _file_of(entry.get("indirect_value", node))


def _file_of(location: str) -> str:
    """Of `value:ocdbt.process_0/:d/5f39a9:0:450` the file, below the step's folder."""
    _, base, path, _, _ = location.split(":")
    return f"{STATE}/{base}{path}"


def _base(folder: epath.Path) -> Any:
    path = f"{folder / STATE}/"
    return path if "://" in path else {"driver": "file", "path": path}


def _problem(why: str, error: BaseException) -> DamageError | OSError:
    return OSError(why) if is_unread(error) else DamageError(why)


def _bracketed(word: str, names: Sequence[str]) -> str:
    return f" ({word} {first_of(names)})" if names else ""
