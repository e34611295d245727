"""How values travel between a gang and its client: what a notebook defines by value, arrays by reference.

cloudpickle takes functions and classes of a notebook along, but not what JAX was told of a class: on the other side, a
struct of flax or a registered dataclass would be no pytree. That is sent with the class, and told to JAX there.
"""

import inspect
import io
import pickle
import pkgutil
import sys
import weakref
from collections.abc import Callable
from typing import Any, BinaryIO

import cloudpickle
from cloudpickle import cloudpickle as internals

_sent: weakref.WeakSet[type] = weakref.WeakSet()  # classes that this process has defined itself
_received: weakref.WeakSet[type] = weakref.WeakSet()
_NUM_REDUCED = 6  # of a class by value: maker, arguments, state, two that are unused, setter
FIELDS = ("data_fields", "meta_fields")  # which fields of a dataclass are children of the pytree, and which are not


class Pickler(cloudpickle.Pickler):
    """Writes a value.

    Args:
        file: to write to.
        reference: gives of an array what stands for it; None: the value is no array.
    """

    def __init__(self, file: BinaryIO | io.BytesIO, reference: Callable[[Any], Any]):
        super().__init__(file)
        self._reference = reference

    def persistent_id(self, value: Any) -> Any:
        return self._reference(value)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) and value is getattr(sys.modules.get("jax"), "Array", None):
            return pkgutil.resolve_name, ("jax:Array",)  # it does not say itself where it is, on JAX 0.10
        reduced = super().reducer_override(value)
        if isinstance(value, type) and isinstance(reduced, tuple) and len(reduced) == _NUM_REDUCED:
            return _with_registration(value, reduced)
        return reduced


class Unpickler(pickle.Unpickler):
    """Reads a value that `Pickler` has written.

    Args:
        file: to read from.
        resolve: gives what a reference stands for.
    """

    def __init__(self, file: BinaryIO | io.BytesIO, resolve: Callable[[Any], Any]):
        super().__init__(file)
        self._resolve = resolve

    def persistent_load(self, reference: Any) -> Any:
        return self._resolve(reference)


def _with_registration(value: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """A class by value, as cloudpickle makes it, with what JAX knows of it here."""
    if value not in _received:
        _sent.add(value)
    maker, arguments, state, *unused, _ = reduced
    if "_flax_dataclass" in value.__dict__:
        # Flax would register the class when it is made anew, before it has fields; it leaves alone what has this mark.
        kind, name, bases, namespace, *more = arguments
        arguments = (kind, name, bases, {**namespace, "_flax_dataclass": True}, *more)
    return maker, arguments, (state, _registration(value)), *unused, _set_class


def _registration(value: type) -> tuple[Any, Any, bool] | None:
    """How JAX makes a pytree of a class: fields, or functions; and whether these are fields. None: it does not."""
    entry = getattr(sys.modules.get("jax._src.tree_util"), "_registry", {}).get(value)  # without a public name
    if entry is None:
        return None
    found = inspect.getclosurevars(entry.to_iter).nonlocals if inspect.isfunction(entry.to_iter) else {}
    if all(name in found for name in FIELDS):
        return tuple(found[FIELDS[0]]), tuple(found[FIELDS[1]]), True
    return entry.to_iter, entry.from_iter, False


def _set_class(value: type, state: tuple[Any, tuple[Any, Any, bool] | None]) -> None:
    """Completes a class that has come, unless it has come home."""
    if value in _sent:
        return
    attributes, registration = state
    internals._class_setstate(value, attributes)
    if value not in _received and registration is not None and "jax" in sys.modules:
        one, other, are_fields = registration
        tree_util = sys.modules["jax"].tree_util
        (tree_util.register_dataclass if are_fields else tree_util.register_pytree_node)(value, one, other)
    _received.add(value)
