"""Small messages between ranks that need no collective: the key-value store of JAX's coordination service.

A collective that one rank skips hangs all of them; a key that is never posted ends in a time-out that names it.
"""

import itertools
import json
import time
from typing import Any

from jax._src import distributed  # the key-value store has no public name; used in this file alone


class Exchange:
    """Every rank posts a JSON value and receives all of them, in rank order.

    Args:
        rank: this process.
        num_ranks: how many take part; with one, nothing leaves the process.
        timeout_s: how long to wait for the slowest rank.
    """

    def __init__(self, rank: int, num_ranks: int, timeout_s: float = 300.0):
        self.rank = rank
        self.num_ranks = num_ranks
        self.timeout_s = timeout_s
        self._round = itertools.count()
        self._last_key = ""

    def all_gather(self, topic: str, value: Any) -> list[Any]:
        """Posts `value` and waits for everybody's.

        Every rank must call this in the same order; the running number keeps two rounds of one topic apart.

        Raises:
            TimeoutError: naming the ranks that did not post within `timeout_s`.
        """
        if self.num_ranks == 1:
            return [json.loads(json.dumps(value))]
        client = distributed.global_state.client
        prefix = f"spmd-launch/{topic}/{next(self._round)}"
        client.key_value_set(f"{prefix}/{self.rank}", json.dumps(value))
        start = time.monotonic()
        values: list[Any] = []
        for rank in range(self.num_ranks):
            remaining_s = max(0.001, start + self.timeout_s - time.monotonic())
            try:
                values.append(json.loads(client.blocking_key_value_get(f"{prefix}/{rank}", int(1000 * remaining_s))))
            except RuntimeError as error:  # jaxlib's: DEADLINE_EXCEEDED, or the service is gone
                missing = [rank, *(later for later in range(rank + 1, self.num_ranks) if not _posted(prefix, later))]
                raise TimeoutError(
                    f"rank {self.rank} waited {time.monotonic() - start:.1f} s for {topic!r} from rank(s) "
                    f"{', '.join(map(str, missing))}: {error}"
                ) from error
        self._forget(f"{prefix}/{self.rank}")
        return values

    def _forget(self, key: str) -> None:
        """Deletes the key of the round before: who has posted in this round has read all of that one."""
        if self._last_key:
            distributed.global_state.client.key_value_delete(self._last_key)
        self._last_key = key


def _posted(prefix: str, rank: int) -> bool:
    try:
        return bool(distributed.global_state.client.key_value_try_get(f"{prefix}/{rank}"))
    except RuntimeError:  # jaxlib's: NOT_FOUND, or the service is gone
        return False
