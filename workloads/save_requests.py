"""A checkpoint that is asked for from outside, as when a host is to go: saved by all ranks after the same step.

The ranks hear of it at different steps. A thread of each tells the others the last step at which its rank has asked
whether a checkpoint is due, and from then on the rank waits for the others' words where it asks next. They save where
they ask first after the furthest of these steps, which none of them has passed.
"""

import concurrent.futures
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from workloads.exchange import Exchange


class SaveRequests:
    """The requests of one attempt on one rank.

    Args:
        exchange: messages between the ranks; used by the thread alone.
        asking: entered while this rank waits for the others' words.
    """

    def __init__(self, exchange: Exchange, asking: Callable[[], AbstractContextManager[None]] = nullcontext):
        self._exchange = exchange
        self._asking = asking
        self._lock = threading.Lock()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="save-requests")
        self._last_number = 0
        self._passed = -1  # the last step at which this rank has asked
        self._agreed_at = -1  # the last step at which the answer was yes
        self._open: list[concurrent.futures.Future[int]] = []  # each becomes the step after which to save

    def ask(self, number: int) -> None:
        """Takes a request, in any thread; every rank must be given the same ones.

        Args:
            number: 1 for the attempt's first request, and so on; one that was given already is ignored.
        """
        with self._lock:
            if number <= self._last_number:
                return
            self._last_number = number
        self._thread.submit(self._agree)

    def due(self, step: int) -> bool:
        """Whether to save after `step`; every rank must ask at the same steps, as often as it likes at each.

        Raises:
            TimeoutError: naming the ranks that were not given the request.
        """
        with self._lock:
            waiting = list(self._open)
            # Before the others' words have come: of what is asked for meanwhile, none may take this step for the one.
            self._passed = step
            if not waiting:
                return step == self._agreed_at
        with self._asking():
            after = [future.result() for future in waiting]
        with self._lock:
            met = [future for future, passed in zip(waiting, after, strict=True) if passed < step]
            self._open = [future for future in self._open if future not in met]
            if met:
                self._agreed_at = step
            return step == self._agreed_at

    def _agree(self) -> None:
        found: concurrent.futures.Future[int] = concurrent.futures.Future()
        with self._lock:
            passed = self._passed
            self._open.append(found)
        try:
            found.set_result(max(self._exchange.all_gather("passed", passed)))
        except (TimeoutError, RuntimeError) as error:  # jaxlib's, where the coordination service is gone
            found.set_exception(error)
