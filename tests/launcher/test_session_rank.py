"""A rank's side of a gang, in one process: what it keeps, what it compares, what it answers."""

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launcher.interactive import END
from launcher.rank.arrays import ArrayStore, local, whole
from launcher.rank.session import Config, Session
from launcher.travel import Pickler, Unpickler
from tests.ranks import run_ranks
from workloads.context import Context


def digests(value: Any) -> list[str | None]:
    return [digest for _, digest, _ in ArrayStore().describe(value)]


NAN_WITH_PAYLOAD = np.array([0x7FC00001], np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        (np.float32(1), np.float64(1)),
        (np.zeros(3, np.float32), -np.zeros(3, np.float32)),
        (np.array([np.nan], np.float32), NAN_WITH_PAYLOAD),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        ({"a": 1}, {"b": 1}),
        (None, {}),
        (jnp.zeros(3), jnp.zeros(4)),
        (jnp.zeros(3), np.zeros(3, np.float32)),
        ("a", b"a"),
    ],
)
def test_values_that_differ_in_a_bit_or_a_type_differ(one: Any, other: Any) -> None:
    assert digests(one) != digests(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3))),
        (float("nan"), float("nan")),
        ({"a": 1, "b": [2, "x"]}, {"b": [2, "x"], "a": 1}),
        (jnp.zeros(3), jnp.ones(3)),  # what lies on devices is compared when it is fetched
        ({1, 2}, {1, 2}),
    ],
)
def test_equal_values_are_equal(one: Any, other: Any) -> None:
    assert digests(one) == digests(other)


class Calls:
    """Stands for the agent: gives the rank its calls, and hears its answers.

    Args:
        folder: for what travels.
        calls: each a function with its arguments, or with `free` what the client has dropped.
    """

    def __init__(self, folder: Path, *calls: tuple[Any, ...], free: Any = ()):
        self._folder = folder
        self._calls = list(enumerate(calls, start=1))
        self._free = free
        self.heard: list[dict[str, Any]] = []
        self.values: list[Any] = []

    def receive(self) -> dict[str, Any]:
        if not self._calls:
            return {"type": END}
        number, (function, *args) = self._calls.pop(0)
        sent, rest = dumps(function), dumps((tuple(args), {}))
        file = self._folder / str(number)
        file.write_bytes(sent + rest)
        return {"type": "call", "number": number, "name": "f", "function_bytes": len(sent), "compare": True,
                "sent": True, "free": self._free, "file": str(file)}  # fmt: skip

    def send(self, message: dict[str, Any]) -> None:
        self.heard.append(json.loads(json.dumps(message)))
        file = self._folder / f"{message['number']}.answer"
        if message["outcome"] == "returned":
            self.values.append(Unpickler(io.BytesIO(file.read_bytes()), lambda reference: Reference(*reference)).load())


class Reference:
    """What the client has in the place of an array."""

    def __init__(self, number: int, index: int, *told: Any):
        self.key = (number, index)
        self.told = told


def dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, lambda value: value.key if isinstance(value, Reference) else None).dump(value)
    return buffer.getvalue()


def serve(folder: Path, calls: Calls) -> list[str]:
    """Runs a session over these calls, as the process's SIGINT handler stays; returns the phases."""
    events: list[dict[str, Any]] = []
    before = signal.getsignal(signal.SIGINT)
    try:
        context = Context.local(folder, emit=events.append)
        result = Session(calls, None).run(Config(watch_launches=False), context)  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.metrics == {"calls": len(calls.heard)}
    return [event["phase"] for event in events]


def test_arrays_stay_and_the_rest_comes(tmp_path: Path) -> None:
    calls = Calls(
        tmp_path,
        (lambda: {"x": jnp.arange(3.0), "n": 3, "deep": lambda: 1},),
        (lambda x, y: float((x + y).sum()), Reference(1, 0), 1.0),
        (lambda: None,),
    )
    phases = serve(tmp_path, calls)
    assert phases == ["idle", "call f"] * 3 + ["idle"]
    first, second, _ = calls.values
    assert first["x"].key == (1, 0) and first["x"].told[:2] == ((3,), "float32") and first["x"].told[3] is False
    assert (first["n"], first["deep"](), second) == (3, 1, 6.0)
    assert [answer["place"] for answer in calls.heard] == [[0, "00" * 32, 0]] * 3
    assert not any(path.suffix != ".answer" for path in tmp_path.iterdir())


def test_what_the_client_has_dropped_is_gone(tmp_path: Path) -> None:
    calls = Calls(
        tmp_path, (lambda: [jnp.zeros(3), jnp.ones(2)],), (lambda x: 1, Reference(1, 0)), free=[[1, 1], [9, None]]
    )
    serve(tmp_path, calls)
    assert calls.heard[1]["outcome"] == "returned", "the other one stays"
    again = Calls(tmp_path, (lambda: [jnp.zeros(3)],), (lambda x: 1, Reference(1, 0)), free=[[1, None]])
    serve(tmp_path, again)
    assert again.heard[1]["outcome"] == "raised"


def test_what_this_rank_did_not_return_is_told_in_words_and_fetched_as_nothing(tmp_path: Path) -> None:
    calls = Calls(tmp_path, (lambda: jnp.arange(3),), (lambda x: 1, Reference(1, 5)), (local, Reference(1, 5)),
                  (whole, Reference(7, 0)), (local, Reference(1, 0)))  # fmt: skip
    serve(tmp_path, calls)
    assert [answer["outcome"] for answer in calls.heard] == ["returned", "raised", "returned", "raised", "returned"]
    refused, lacking = calls.heard[1]["error"], calls.heard[3]["error"]
    assert refused["type"] == lacking["type"] == "LookupError"
    assert "the handle of an array that this rank has not" in refused["message"] and "fetch()" in refused["message"]
    assert lacking["message"].startswith("rank 0 did not return this array")
    assert calls.values[1] is None and calls.values[2].tolist() == [0, 1, 2]


def test_copies_on_one_hosts_devices_are_compared_before_one_of_them_is_taken() -> None:
    first, second = run_ranks("tests.launcher.session_programs:fetch_copies", num_hosts=2, devices_per_host=2)
    for rank, told in enumerate((first, second)):
        assert told["good"] == [[0.0, 1.0], [rank]]
        assert "copies of the array on this host differ" in told["bad"] and "first at [1]" in told["bad"]


def test_a_function_is_the_same_one_each_time_unless_it_holds_arrays(tmp_path: Path) -> None:
    def make() -> Callable[[], int]:
        calls: list[int] = []

        def count(*held: Any) -> int:
            calls.append(1)
            return len(calls)

        return count

    count, kept = make(), Reference(1, 0)
    holds = lambda: (kept, count())[1]  # noqa: E731 - its own `count` travels with it
    calls = Calls(tmp_path, (lambda: jnp.zeros(3),), (count,), (count,), (holds,), (holds,))
    serve(tmp_path, calls)
    assert calls.values[1:] == [1, 2, 1, 1]


def test_what_is_raised_is_told_without_our_frames(tmp_path: Path) -> None:
    def fails() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    calls = Calls(
        tmp_path,
        (fails,),
        (os._exit.__class__, "not", "a", "type"),
        (lambda: jax.jit(lambda x: x + jnp.ones((2, 3)))(jnp.ones((4, 5))),),
        (exit, 3),
        (lambda: 4,),
    )
    serve(tmp_path, calls)
    assert [answer["outcome"] for answer in calls.heard] == ["raised"] * 4 + ["returned"]
    inner, outer = calls.heard[0]["error"]["parts"]
    assert (inner["end"], outer["end"]) == ("KeyError: 'inner'", "ValueError: outer")
    assert [frame[2] for frame in outer["frames"]] == ["fails"]
    shapes = calls.heard[2]["error"]["parts"][-1]
    assert shapes["frames"][0][0] == __file__ and "JAX has removed" not in shapes["end"]
    assert calls.heard[3]["error"]["type"] == "SystemExit"


def test_what_cannot_travel_is_told_and_keeps_nothing(tmp_path: Path) -> None:
    leaked: list[Any] = []
    calls = Calls(
        tmp_path,
        (lambda: [jnp.zeros(3), jax.devices()[0]],),
        (lambda: (jax.jit(leaked.append)(1.0), leaked[0])[1],),
        (lambda x: x, Reference(1, 0)),
    )
    serve(tmp_path, calls)
    assert [answer["outcome"] for answer in calls.heard] == ["raised"] * 3
    assert "a mesh or a device it makes anew" in calls.heard[0]["error"]["message"]
    assert "only stands for an array while JAX traces" in calls.heard[1]["error"]["message"]


def test_an_interrupt_ends_the_call_and_not_the_rank(tmp_path: Path) -> None:
    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not interrupted")

    calls = Calls(tmp_path, (interrupted,), (lambda: 5,))
    send = calls.send

    def send_and_interrupt(message: dict[str, Any]) -> None:
        send(message)
        os.kill(os.getpid(), signal.SIGINT)  # too late: nothing is under way

    calls.send = send_and_interrupt  # type: ignore[method-assign]
    serve(tmp_path, calls)
    assert [answer["outcome"] for answer in calls.heard] == ["raised", "returned"]
    assert calls.heard[0]["error"]["type"] == "KeyboardInterrupt"


def test_a_function_that_closes_its_output_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    calls = Calls(tmp_path, (lambda: [sys.stdout.close(), 4],), (lambda: 5,))
    serve(tmp_path, calls)
    assert calls.values == [[None, 4], 5]


def test_what_fails_while_it_is_computed_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(store: ArrayStore) -> None:
        raise FloatingPointError("on the device")

    monkeypatch.setattr(ArrayStore, "finish", fail)
    calls = Calls(tmp_path, (lambda: jnp.zeros(3),))
    serve(tmp_path, calls)
    assert calls.heard[0]["error"]["type"] == "FloatingPointError" and not list(tmp_path.iterdir())
