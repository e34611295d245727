"""What a workload returns, and the digest that makes bitwise claims checkable from outside."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of one job, equal on every rank.

    Attributes:
        metrics: headline scalars, units in their names (`tokens_per_s`, `compile_s`, `run_s`).
        diagnostics: anything else that JSON can hold; `problems`, a list of sentences, is shown with the metrics.
        result_digest: `digest_arrays` of the gathered result.
    """

    metrics: Mapping[str, float]
    diagnostics: Mapping[str, Any]
    result_digest: str


def digest_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """sha256 over names, dtypes, shapes and bytes, in the order of the names.

    Args:
        arrays: host arrays of any shape and dtype.

    Returns:
        64 hexadecimal digits; equal if and only if (collisions apart) every bit is.

    Raises:
        TypeError: an array of Python objects.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if array.dtype.hasobject:
            raise TypeError(f"{name}: an array of Python objects has no bytes of its own to digest")
        # `name` tells the 8- and 16-bit floats apart, `str` the byte orders.
        digest.update(f"{name}\0{array.dtype.name}{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
