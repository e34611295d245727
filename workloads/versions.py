"""The versions of what decides what is computed. Imports no JAX: agents ask too."""

import importlib.metadata
import platform

PACKAGES_THAT_MATTER = ("jax", "jaxlib", "tfp-nightly", "flax", "optax", "orbax-checkpoint", "numpy", "ray")


def versions() -> dict[str, str]:
    """Python's version and those of the packages that decide what is computed; `-` where one is missing."""
    found = {"python": platform.python_version()}
    for package in PACKAGES_THAT_MATTER:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "-"
    return found
