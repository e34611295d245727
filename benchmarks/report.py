"""Samples, their minima and medians, and targets beside them."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

Samples = dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Target:
    """A bound on a figure of this run.

    Attributes:
        what: the figure, in words.
        value: as measured.
        bound: it must not exceed this (`at_least`: not fall below).
        unit: of both.
    """

    what: str
    value: float
    bound: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        verdict = "met   " if self.met else "MISSED"
        sign = ">=" if self.at_least else "<="
        return f"{verdict}  {self.what}: {self.value:.3g}{self.unit} (asked for: {sign} {self.bound:.3g}{self.unit})"


def table(title: str, samples: Mapping[str, Sequence[float]], unit: str) -> str:
    """One row a series: minimum, median, every sample in the order of the rounds."""
    width = max(len(name) for name in samples)
    lines = [f"{title} ({unit})", f"  {'':{width}}  {'minimum':>8}  {'median':>8}  samples"]
    for name, values in samples.items():
        every = " ".join(f"{value:.3g}" for value in values)
        lines.append(f"  {name:{width}}  {min(values):8.3g}  {statistics.median(values):8.3g}  {every}")
    return "\n".join(lines)


def median(samples: Mapping[str, Sequence[float]], name: str) -> float:
    return statistics.median(samples[name])


def add(samples: Samples, name: str, value: float) -> None:
    samples.setdefault(name, []).append(value)
