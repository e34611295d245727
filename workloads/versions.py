"""The versions of what decides what is computed. Imports no JAX: agents ask too."""

import importlib.metadata
import platform

PACKAGES_THAT_MATTER = ("jax", "jaxlib", "tfp-nightly", "flax", "optax", "orbax-checkpoint", "numpy", "ray")


def version_of(package: str) -> str:
    """As it is installed; `-` where it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def versions() -> dict[str, str]:
    """Python's version and those of the packages that decide what is computed; `-` where one is missing."""
    return {"python": platform.python_version(), **{package: version_of(package) for package in PACKAGES_THAT_MATTER}}
