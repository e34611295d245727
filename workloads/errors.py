"""The two ways in which a workload says no."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workloads.integrity.verdict import Verdict


class ConfigError(ValueError):
    """A parameter is wrong or does not fit the layout: the user's mistake, found before anything starts.

    The message is one line: the parameter and its value, what is allowed, and the nearest match or what would fit.
    """


class ReplicaDivergenceError(RuntimeError):
    """Copies of an array that must be equal differ; the message names leaf, devices, hosts, bits and the vote.

    Attributes:
        verdict: all of it, as `workloads.integrity.Verdict`.
    """

    def __init__(self, message: str, verdict: "Verdict"):
        super().__init__(message)
        self.verdict = verdict

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplicaDivergenceError, (str(self), self.verdict)
