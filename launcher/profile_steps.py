"""Which steps a profile is of: `--profile 20:25`, or `--profile 5`. Pure."""

import dataclasses
import re

from launcher.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileSteps:
    """A profile begins with a report and ends with a later one; what is computed between the two is in it.

    Attributes:
        first: it begins with the first report of this step or a later one; None: with the next report.
        last: and ends with the first report of this step or a later one; None: `count` steps after its begin.
        count: see `last`.
    """

    first: int | None = None
    last: int | None = None
    count: int = 0

    @classmethod
    def parse(cls, text: str) -> "ProfileSteps":
        """Reads `FIRST:LAST` or a number of steps.

        Raises:
            UserError: it is neither, or there is no step between the two.
        """
        found = re.fullmatch(r"(?:([0-9]{1,15}):)?([0-9]{1,15})", text)
        if found is None:
            raise UserError(f"--profile {text!r}: must be FIRST:LAST, as 20:25, or a number of steps, as 5")
        first, number = found[1], int(found[2])
        if number <= int(first or 0):
            raise UserError(f"--profile {text!r}: there is no step in it; 20:25 has the steps 21 to 25")
        return cls(count=number) if first is None else cls(first=int(first), last=number)

    def end_of(self, step: int) -> int | None:
        """With which step the profile ends if it begins with the report of this one; None: it does not."""
        if self.last is None:
            return step + self.count
        return self.last if (self.first or 0) <= step < self.last else None
