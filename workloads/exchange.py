"""Small messages between ranks that need no collective: the key-value store of JAX's coordination service.

A collective that one rank skips hangs all of them; a key that is never posted ends in a time-out that names it.
"""

import collections
import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from jax._src import distributed  # the key-value store has no public name; used in this file alone

# A rank may rightly come as late as the watchdog lets it (`launcher.watchdog.Bounds`): it compiles what the others have
# in their caches, or rank 0 writes results. The watchdog names who is late; this, above its bounds, is for what it
# cannot judge.
TIMEOUT_S = 3600.0

_begun = collections.Counter[int]()  # {ranks that take part: rounds that this process has begun}
_lock = threading.Lock()


def rounds_of_all(num_ranks: int) -> int:
    """How many rounds of all ranks this process has begun; where ranks differ in it, their next ones do not match."""
    return _begun[num_ranks]


def this_process() -> tuple[object, int, int]:
    """Who this process is, as `jax.distributed.initialize` was told; asks no device, which would wait for the others.

    Returns:
        What tells one `initialize` of this process from the next, None without any; its rank; the number of ranks.
    """
    state = distributed.global_state
    return (None, 0, 1) if state.client is None else (state.client, state.process_id, state.num_processes)


class AbsentError(TimeoutError):
    """Ranks did not post in time, or the coordination service is gone.

    Attributes:
        ranks: which; empty where the service is gone, which is not known to be their doing.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()):
        super().__init__(message)
        self.ranks = tuple(ranks)

    def __reduce__(self) -> tuple[Any, ...]:
        return AbsentError, (str(self), self.ranks)


class Exchange:
    """Every rank posts a JSON value and receives all of them, in rank order.

    Args:
        rank: this process.
        num_ranks: how many take part; with one, nothing leaves the process.
        timeout_s: how long to wait for the slowest rank.
        namespace: what keeps this exchange's rounds apart from those of others.
        ranks: who takes part; by default all `num_ranks`.
    """

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        timeout_s: float = TIMEOUT_S,
        *,
        namespace: str = "",
        ranks: Sequence[int] | None = None,
    ):
        self.rank = rank
        self.num_ranks = num_ranks
        self.timeout_s = timeout_s
        self.namespace = namespace
        self.ranks = tuple(range(num_ranks)) if ranks is None else tuple(sorted(ranks))
        self._round = itertools.count()
        self._last_key = ""

    def apart(
        self, namespace: str, *, ranks: Sequence[int] | None = None, timeout_s: float | None = None
    ) -> "Exchange":
        """An exchange with rounds of its own, which may run in another thread and in another order than this one's.

        Args:
            namespace: of the new one; equal on its ranks, and used for no other.
            ranks: who takes part, this rank among them; by default those of this exchange.
            timeout_s: by default that of this exchange.
        """
        return Exchange(
            self.rank,
            self.num_ranks,
            self.timeout_s if timeout_s is None else timeout_s,
            namespace=f"{self.namespace}{namespace}/",
            ranks=self.ranks if ranks is None else ranks,
        )

    def all_gather(
        self, topic: str, value: Any, timeout_s: float | None = None, *, moves: Callable[[], Any] = lambda: None
    ) -> list[Any]:
        """Posts `value` and waits for everybody's; they come in order of `ranks`.

        Every rank must call this in the same order; the running number keeps two rounds of one topic apart.

        Args:
            topic: what the round is about.
            value: that JSON can hold.
            timeout_s: how long to wait; by default as this exchange does.
            moves: what changes as long as those that are waited for have not come but get on, as `told` does; each
                change gives them `timeout_s` anew.

        Raises:
            AbsentError: a TimeoutError, naming the ranks that did not post within `timeout_s`.
        """
        if len(self.ranks) == 1:
            return [json.loads(json.dumps(value))]
        with _lock:
            _begun[len(self.ranks)] += 1
        client = distributed.global_state.client
        prefix = f"spmd-launch/{self.namespace}{topic}/{next(self._round)}"
        client.key_value_set(f"{prefix}/{self.rank}", json.dumps(value))
        started = since = time.monotonic()
        limit_s, moved = self.timeout_s if timeout_s is None else timeout_s, moves()
        values: list[Any] = []
        while len(values) < len(self.ranks):
            rank = self.ranks[len(values)]
            remaining_s = max(0.001, since + limit_s - time.monotonic())
            try:
                values.append(json.loads(client.blocking_key_value_get(f"{prefix}/{rank}", int(1000 * remaining_s))))
            except RuntimeError as error:  # jaxlib's: DEADLINE_EXCEEDED, or the service is gone
                is_late = "DEADLINE_EXCEEDED" in str(error)
                if is_late and moves() != moved:
                    since, moved = time.monotonic(), moves()
                    continue
                if is_late and (posted := _posted(prefix, rank)) is not None:
                    values.append(json.loads(posted))  # the wait was too short for the service's answer
                    continue
                later_ranks = [later for later in self.ranks if later > rank]
                missing = [rank, *(later for later in later_ranks if is_late and _posted(prefix, later) is None)]
                raise AbsentError(
                    f"rank {self.rank} waited {time.monotonic() - started:.1f} s for {topic!r} from rank(s) "
                    f"{', '.join(map(str, missing))}: {error}",
                    missing if is_late else (),
                ) from error
        self.forget()  # who has posted in this round has read all of the one before
        self._last_key = f"{prefix}/{self.rank}"
        return values

    def tell(self, topic: str, value: Any) -> None:
        """Lets any rank see how far this one is, at once and without waiting for anybody; the last value counts."""
        if len(self.ranks) > 1:
            key = f"spmd-launch/{self.namespace}{topic}/told/{self.rank}"
            distributed.global_state.client.key_value_set(key, json.dumps(value), allow_overwrite=True)

    def told(self, topic: str, rank: int) -> Any:
        """What that rank told last; None: nothing."""
        key = f"spmd-launch/{self.namespace}{topic}/told/{rank}"
        try:
            return json.loads(distributed.global_state.client.key_value_try_get(key))
        except RuntimeError:  # jaxlib's: NOT_FOUND, or the service is gone
            return None

    def forget(self) -> None:
        """Takes back what this rank posted in the last round; all must be known to have read it."""
        if self._last_key:
            distributed.global_state.client.key_value_delete(self._last_key)
        self._last_key = ""


def _posted(prefix: str, rank: int) -> str | None:
    """What that rank has posted in a round, asked for without waiting for it; None: nothing."""
    try:
        return str(distributed.global_state.client.key_value_try_get(f"{prefix}/{rank}"))
    except RuntimeError:  # jaxlib's: NOT_FOUND, or the service is gone
        return None
