"""An interactive gang: processes on all hosts that stay up between calls and keep their arrays on the devices."""

import itertools
import pkgutil
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from launcher.errors import UserError
from launcher.session.answers import raise_if_different, raise_if_raised
from launcher.session.handles import Handle, Shelf
from launcher.session.link import Link
from launcher.submission import Prepared
from launcher.words import number_of_bytes

MAX_BYTES = 256 * 2**20


class Gang:
    """One JAX process on each host, which run what they are given; made by `ClusterSession.gang`.

    A function runs on every rank at once and sees the devices of all hosts, as in a script. Arrays that it returns stay
    where they are, and handles of them come back; other values are compared between the ranks and come as they are.

    Args:
        prepare: makes its job, with a new name each time.
        wait: queue behind other jobs; else be refused if hosts are not free.
        show_output: whether to print what the ranks print, each line with its rank.
    """

    def __init__(self, prepare: Callable[[], Prepared], *, wait: bool, show_output: bool):
        self._prepare = prepare
        self._wait = wait
        self._show_output = show_output
        self._calling = threading.Lock()
        self._start()

    def _start(self) -> None:
        prepared = self._prepare()
        self.name = prepared.spec.name
        self._numbers = itertools.count(1)
        self._shelf = Shelf(self.fetch)
        self._link = Link(prepared, wait=self._wait, show_output=self._show_output)

    def __enter__(self) -> "Gang":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def hosts(self) -> Sequence[str]:
        """Names by rank."""
        return self._link.hosts

    @property
    def alive(self) -> bool:
        """Whether it can be called."""
        return not self._link.why_ended

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function on every rank, and waits until what it returns is computed.

        Args:
            function: of a notebook or script (it travels by value), or of a module that the hosts can import.
            args, kwargs: its arguments; a handle is the array again.

        Returns:
            What the function returns, with handles in the place of JAX's arrays.

        Raises:
            GangError: ranks raised, with their tracebacks, or returned different values; the gang can be used.
            GangEndedError: the gang has ended, and why.
            UserError: something cannot travel.
        """
        return self._call(function, args, kwargs, compare=True, ship=[0])[0]

    def run_each(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """As `run`, where each rank may return something else: what they return, in the order of the ranks."""
        return self._call(function, args, kwargs, compare=False, ship=list(range(len(self.hosts))))

    def fetch(self, handle: Handle) -> np.ndarray:
        """The array of a handle; see `Handle.fetch`."""
        how, ship = ("whole", 0) if handle.is_global else ("local", handle.rank or 0)
        compare = not handle.is_global and handle.rank is None
        function = _OnRanks(how, f"fetch of {handle.dtype}{list(handle.shape)}")
        (array,) = self._call(function, (handle,), {}, compare=compare, ship=[ship])
        fetched: np.ndarray = array
        return fetched

    def restart(self) -> None:
        """Makes the gang anew, whether it has ended or not; its arrays are gone."""
        self.close()
        self._start()

    def close(self) -> None:
        """Ends the gang; its hosts are free then."""
        self._link.end()

    def _call(
        self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], *, compare: bool, ship: list[int]
    ) -> list[Any]:
        name = getattr(function, "__name__", type(function).__name__)
        with self._calling:
            self._link.require_alive()
            sent = self._shelf.dumps(function, f"function {name}")
            payload = sent + self._shelf.dumps((tuple(args), kwargs), f"an argument of {name}")
            if len(payload) > MAX_BYTES:
                raise UserError(
                    f"{name} and its arguments have {number_of_bytes(len(payload))}, and at most "
                    f"{number_of_bytes(MAX_BYTES)} travel: make or read large data inside the function, on the hosts"
                )
            number = next(self._numbers)
            request = {"number": number, "name": name, "function_bytes": len(sent), "compare": compare, "ship": ship,
                       "free": self._shelf.take_dropped()}  # fmt: skip
            self._link.call(request, payload)
            answers = self._answers(number)
            try:
                raise_if_raised(answers, name)
                if compare:
                    raise_if_different(answers, name)
            except BaseException:
                self._shelf.drop_call(number)
                raise
            several = len(ship) > 1 or ship != [0]
            return [self._shelf.loads(self._link.returned(number, rank), rank if several else None) for rank in ship]

    def _answers(self, number: int) -> Sequence[Any]:
        """Waits for the ranks; a Ctrl-C meanwhile interrupts them."""
        try:
            ranks: Sequence[Any] = self._link.answer(number)["ranks"]
            return ranks
        except KeyboardInterrupt:
            pass
        try:
            self._link.interrupt()
            self._link.answer(number)
        except KeyboardInterrupt:
            self._link.hang_up()
            raise KeyboardInterrupt("twice: the gang is left, and ends") from None
        self._shelf.drop_call(number)
        raise KeyboardInterrupt("on all ranks; the gang can be used")


class _OnRanks:
    """A function of `launcher.rank.arrays`, which is imported on the ranks alone."""

    def __init__(self, function: str, name: str):
        self.__name__ = name
        self._place = f"launcher.rank.arrays:{function}"

    def __reduce__(self) -> tuple[Any, ...]:
        return pkgutil.resolve_name, (self._place,)
