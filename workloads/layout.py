"""Hosts x devices, and mesh shapes that fit them. Imports no JAX."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

from workloads.errors import ConfigError
from workloads.params import nearest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How many processes there are, one a host, and how many devices each has."""

    num_hosts: int
    devices_per_host: int

    @property
    def num_devices(self) -> int:
        return self.num_hosts * self.devices_per_host

    def __str__(self) -> str:
        return f"{self.num_hosts} x {self.devices_per_host} = {self.num_devices} devices"


_SIZE = r"-?\d{1,9}"


def parse_mesh(text: str, axes: Sequence[str]) -> dict[str, int]:
    """Reads `data:2,model:2`, or `2x2` as shorthand for `axes` in order, into `{axis: size}`.

    Axes left out have size 1; a size of -1 (at most one) takes the devices that are left, see `fit_mesh`.

    Raises:
        ConfigError: an axis that is unknown or given twice, or a size that is no whole number.
    """
    if re.fullmatch(f"{_SIZE}(x{_SIZE})*", text):
        sizes = [int(size) for size in text.split("x")]
        if len(sizes) > len(axes):
            raise ConfigError(f"mesh={text!r}: has {len(sizes)} axes, there are {len(axes)}: {', '.join(axes)}")
        named = dict(zip(axes, sizes, strict=False))
    else:
        named = {}
        for part in text.split(","):
            name, colon, size = (piece.strip() for piece in part.partition(":"))
            if name not in axes:
                raise ConfigError(f"mesh={text!r}: no axis {name!r}{nearest(name, axes, {})} (axes: {', '.join(axes)})")
            if not colon or not re.fullmatch(_SIZE, size):
                raise ConfigError(f"mesh={text!r}: {part.strip()!r} is not axis:size, as in {axes[0]}:2")
            if name in named:
                raise ConfigError(f"mesh={text!r}: axis {name!r} is given twice")
            named[name] = int(size)
    if any(size < 1 and size != -1 for size in named.values()) or list(named.values()).count(-1) > 1:
        raise ConfigError(f"mesh={text!r}: sizes are at least 1; one axis may be -1 (the devices that are left)")
    return {axis: named.get(axis, 1) for axis in axes}


def fit_mesh(mesh: Mapping[str, int], layout: Layout) -> dict[str, int]:
    """Fills in a size of -1 and checks that the mesh uses every device.

    Raises:
        ConfigError: saying which shapes would fit.
    """
    fixed = math.prod(size for size in mesh.values() if size != -1)
    filled = {axis: layout.num_devices // fixed if size == -1 else size for axis, size in mesh.items()}
    if math.prod(filled.values()) == layout.num_devices:
        return filled
    asked = ",".join(f"{axis}:{size}" for axis, size in mesh.items())
    needs = f"a multiple of {fixed}" if -1 in mesh.values() else fixed
    raise ConfigError(f"mesh={asked}: needs {needs} devices, the job has {layout}; {_fitting(mesh, layout)} would fit")


def _fitting(mesh: Mapping[str, int], layout: Layout) -> str:
    """The shapes that share the devices between the first and the last axis."""
    axes = list(mesh)
    first, last = axes[0], axes[-1]
    if len(axes) == 1:
        return f"{first}:{layout.num_devices}"
    sizes = [size for size in range(1, layout.num_devices + 1) if layout.num_devices % size == 0]
    return " or ".join(f"{first}:{layout.num_devices // size},{last}:{size}" for size in sizes)
