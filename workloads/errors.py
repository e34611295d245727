"""The ways in which a workload says no."""

from typing import ClassVar


class ConfigError(ValueError):
    """A parameter is wrong or does not fit the layout: the user's mistake, found before anything starts.

    The message is one line: the parameter and its value, what is allowed, and the nearest match or what would fit.
    """

    cause: ClassVar[str] = "refused"  # the launcher does not try again what would end the same way


class ReplicaDivergenceError(RuntimeError):
    """Copies of an array that must be equal differ; the message names leaf, devices, hosts and the vote."""

    cause: ClassVar[str] = "diverged"
