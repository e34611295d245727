"""What the last checks verified: with two copies, the only witness of which one is right."""

import numpy as np

from workloads.integrity.plan import Plan


class Verified:
    """The fingerprints that the copies in this process had when all copies were last found equal.

    A copy that still has them is right only if the block was not to change. A stale copy of one that was, a parameter
    that missed its update, looks the same. So a block bears witness only if it was verified at two steps at least and
    has never been seen to change.

    Args:
        plan: of the tree; another structure begins anew.
    """

    def __init__(self, plan: Plan):
        count = len(plan.copies)
        self._words = np.zeros(count, np.uint64)
        self._since = np.zeros(count, np.int64)
        self._changed = np.zeros(count, bool)
        self._steps: tuple[int, int] | None = None  # the first and the last

    def record(self, words: np.ndarray, step: int) -> None:
        """Remembers the fingerprints, uint64 (copies,), that were found equal at `step`."""
        differs = self._words != words
        if self._steps is None:
            self._since[:] = step
            self._steps = step, step
        else:
            self._since[differs] = step
            self._changed |= differs
            self._steps = self._steps[0], step
        self._words = words

    def witness(self, copy: int) -> tuple[str, int] | None:
        """Digest of a copy's block, and the step since which it is unchanged; None if nothing can be said."""
        if self._steps is None or self._steps[0] == self._steps[1] or self._changed[copy]:
            return None
        return f"{self._words[copy]:016x}", int(self._since[copy])
