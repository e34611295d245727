"""The ways in which a workload, or what watches over it, says no."""

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from workloads.integrity.verdict import Verdict


class ConfigError(ValueError):
    """A parameter is wrong or does not fit the layout: the user's mistake, found before anything starts.

    The message is one line: the parameter and its value, what is allowed, and the nearest match or what would fit.
    """

    cause: ClassVar[str] = "refused"  # the launcher does not try again what would end the same way


class ReplicaDivergenceError(RuntimeError):
    """Copies of an array that must be equal differ; the message names leaf, devices, hosts, bits and the vote.

    Attributes:
        verdict: all of it, as `workloads.integrity.Verdict`.
    """

    cause: ClassVar[str] = "diverged"

    def __init__(self, message: str, verdict: "Verdict | None" = None):
        super().__init__(message)
        self.verdict = verdict

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplicaDivergenceError, (str(self), self.verdict)

    @property
    def suspects(self) -> list[str]:
        """Hosts whose copies were outvoted."""
        divergences = self.verdict.divergences if self.verdict else ()
        return sorted({holder.split("/")[0] for divergence in divergences for holder in divergence.culprits})


class DisagreementError(RuntimeError):
    """The ranks do not run the same thing; raised on all of them before a wrong answer can be accepted."""

    cause: ClassVar[str] = "refused"


class ProgramMismatchError(DisagreementError):
    """Ranks are about to compile different programs; names the odd ranks and the first differing line."""


class LaunchOrderError(DisagreementError):
    """Ranks have launched programs in different orders; names the first differing launch."""


class ValueMismatchError(DisagreementError):
    """Values that the program must make alike on all hosts or shards differ: no copies, and so no host is suspect."""


class EnvironmentMismatchError(DisagreementError):
    """Ranks differ in versions, code, config, flags or devices; names what differs, and who is the odd one."""


class InputMismatchError(DisagreementError):
    """Ranks have read different input data; names the odd ranks and hosts, or without a majority all of them."""


class StorageError(OSError):
    """What may be good checkpoints cannot be read: raised on all ranks, so that no work is done again in silence."""


class DamageError(RuntimeError):
    """A step does not hold what its manifest says; the message is one clause that names file and leaf."""


class FencedError(RuntimeError):
    """A newer attempt of this job has begun: what this one would write must not count. The message names both."""

    cause: ClassVar[str] = "refused"
