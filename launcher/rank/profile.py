"""Takes a profile of a few steps of this rank, with JAX's own profiler, for XProf and TensorBoard."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.profile_steps import ProfileSteps
from launcher.rank.control import Message

FOLDER = "plugins/profile"  # where XProf and TensorBoard look, below a job's folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """A profile under way: its name among the job's, and the steps with whose reports it begins and ends."""

    session: str
    begin: int
    end: int


class StepProfiler:
    """Hears the reports of this rank, in the thread that makes them; no bit that is computed depends on it.

    Args:
        output: this rank's output folder; a profile is left in `plugins/profile/SESSION/HOST.xplane.pb` below it.
        host: this host's name.
        emit: receives `profile` (session, first and last step in it, files) or `profile-failed` (session, why).
        first: asked for from the start, `{"session", "steps"}`, the steps as `ProfileSteps.parse` takes them; or None.
        asked: gives what else is asked for, each once, in the same form; None: nothing.
    """

    def __init__(
        self,
        output: Path,
        host: str,
        emit: Callable[[Message], None],
        *,
        first: Message | None = None,
        asked: Callable[[], Message | None] = lambda: None,
    ):
        self._output = output
        self._host = host
        self._emit = emit
        self._asked = asked
        self._waiting = [first] if first is not None else []
        self._trace: Trace | None = None
        self._step = 0

    def hear(self, event: Message) -> None:
        """Begins or ends a profile where an event is a report that is due for it."""
        if event["type"] != "report":
            return
        self._step = event["step"]
        if self._trace is not None and self._step >= self._trace.end:
            self._end(self._trace)
        if (asked := self._asked()) is not None:
            self._waiting.append(asked)
        for request in self._waiting if self._trace is None else ():
            end = ProfileSteps.parse(request["steps"]).end_of(self._step)
            if end is not None:
                self._waiting.remove(request)
                self._begin(Trace(session=request["session"], begin=self._step, end=end))
                return

    def finish(self) -> None:
        """Ends a profile that is under way, with the last step."""
        if self._trace is not None:
            self._end(self._trace)

    def _begin(self, trace: Trace) -> None:
        import jax

        options = jax.profiler.ProfileOptions()
        options.session_id = trace.session
        with self._phase(trace.session):
            jax.profiler.start_trace(self._output, profiler_options=options)
            self._trace = trace

    def _end(self, trace: Trace) -> None:
        import jax

        self._trace = None
        with self._phase(trace.session):
            jax.profiler.stop_trace()
            files = self._name_after_host(trace.session)
            self._emit({"type": "profile", "session": trace.session, "first": trace.begin + 1, "last": self._step,
                        "files": files})  # fmt: skip

    def _name_after_host(self, session: str) -> list[str]:
        """Names the files after this host: JAX takes the machine's name, which emulated hosts share.

        Returns:
            Their paths below the output folder.
        """
        folder = self._output / FOLDER / session
        found = list(folder.glob("*.xplane.pb"))
        if len(found) != 1:
            raise OSError(f"JAX left {len(found)} profiles in {folder}, expected 1")
        (path,) = found
        machine = path.name.removesuffix(".xplane.pb")
        files = [
            file.rename(folder / file.name.replace(machine, self._host, 1)) for file in folder.glob(f"{machine}.*")
        ]
        return sorted(file.relative_to(self._output).as_posix() for file in files)

    @contextlib.contextmanager
    def _phase(self, session: str) -> Iterator[None]:
        """What is done beside the job: the watchdog is told, and a failure is told too and ends nothing."""
        self._emit({"type": "phase", "phase": "profile", "aside": True})
        try:
            yield
        except (RuntimeError, OSError) as error:  # the workload profiles itself; a full disk
            self._emit({"type": "profile-failed", "session": session, "why": str(error)})
        finally:
            self._emit({"type": "phase", "phase": "run", "aside": True})
