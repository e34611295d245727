"""Workloads that installed packages offer by name, in their metadata alone: imports no JAX, and nothing of theirs.

A package's `pyproject.toml` names them, as

    [project.entry-points."spmd_launch.workloads"]
    ridge = "my_pkg.ridge:run"
"""

import dataclasses
import importlib.metadata
from collections.abc import Sequence

from workloads.errors import ConfigError

GROUP = "spmd_launch.workloads"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstalledWorkload:
    """One entry point.

    Attributes:
        name: as submitted.
        function: `MODULE:FUNCTION`.
        package: that offers it, with its version: `my-pkg 1.0`.
    """

    name: str
    function: str
    package: str


def installed_workloads() -> list[InstalledWorkload]:
    """All that the packages of this Python offer, by name."""
    return sorted(
        (
            InstalledWorkload(
                name=entry.name,
                function=entry.value,
                package=f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package without metadata",
            )
            for entry in importlib.metadata.entry_points(group=GROUP)
        ),
        key=lambda workload: (workload.name, workload.package),
    )


def find_installed(name: str) -> InstalledWorkload | None:
    """The workload of that name, or None where no package offers it.

    Raises:
        ConfigError: several do.
    """
    found = [workload for workload in installed_workloads() if workload.name == name]
    if len(found) > 1:
        raise ConfigError(f"{name!r} is offered by {_listed(found)}")
    return found[0] if found else None


def name_clashes(ours: Sequence[str]) -> list[str]:
    """A sentence for each name that means something else than a package intends, or nothing.

    Args:
        ours: names of the shipped workloads, which win.
    """
    found = installed_workloads()
    clashes = [
        f"{one.name!r} is ours; that of {one.package} can be submitted as {one.function}"
        for one in found
        if one.name in ours
    ]
    for name in sorted({one.name for one in found if one.name not in ours}):
        same = [one for one in found if one.name == name]
        if len(same) > 1:
            clashes.append(f"{name!r} is offered by {_listed(same)}")
    return clashes


def _listed(found: Sequence[InstalledWorkload]) -> str:
    return f"{' and '.join(one.package for one in found)}: submit {' or '.join(one.function for one in found)}"
