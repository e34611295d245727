"""The ways in which a workload says no."""


class ConfigError(ValueError):
    """A parameter is wrong or does not fit the layout: the user's mistake, found before anything starts.

    The message is one line: the parameter and its value, what is allowed, and the nearest match or what would fit.
    """


class ReplicaDivergenceError(RuntimeError):
    """Copies of an array that must be equal differ; the message names leaf, devices, hosts and the vote."""


class FencedError(RuntimeError):
    """A newer attempt of this job has begun: what this one would write must not count. The message names both."""
