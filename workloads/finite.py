"""Losses and the like that are not finite: told once, at the step where it was first seen, and with the result.

NaN is no divergence: all copies have it, the bits agree, and every check says ok.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


class FiniteWatch:
    """What one rank has seen of it.

    Args:
        emit: receives a `warning` each time something new is not finite.
    """

    def __init__(self, emit: Callable[[dict[str, Any]], None]):
        self._emit = emit
        self._told: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        """One sentence for each quantity that was not finite."""
        return list(self._told.values())

    def look(self, name: str, values: Any, step: int) -> None:
        """Looks at a quantity, until it has once been seen not to be finite.

        Args:
            name: of the quantity.
            values: a number, or (steps, ...) with a row for each of the steps that end at `step`.
            step: of the last row.
        """
        if name in self._told:
            return
        rows = np.atleast_1d(np.asarray(values, np.float64))
        broken = ~np.isfinite(rows.reshape(len(rows), -1))
        if not broken.any():
            return
        first = int(broken.any(axis=1).argmax())
        value = rows.reshape(len(rows), -1)[first][broken[first]][0]
        self._told[name] = f"{name} is {value:g}, first seen at step {step - len(rows) + 1 + first}"
        self._emit({"type": "warning", "text": self._told[name]})

    def look_at_result(self, metrics: Mapping[str, float]) -> None:
        """Metrics of a result, which have no step."""
        for name, value in metrics.items():
            if name not in self._told and not math.isfinite(value):
                self._told[name] = f"{name} of the result is {value:g}"
