"""A rank that runs a user's script: what happens beside it, and in `jax.distributed.initialize`.

Imported privately (`launcher.rank._spmd_launch_bootstrap`), in an environment that need not have more than JAX.
"""

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from launcher.command import PHASE
from launcher.rank.control import Control, Message, die_with_parent
from launcher.rank.coordinator_port import PortLostError, announced
from launcher.rank.error_details import error_details
from launcher.rank.progress import Progress

# The watchdog names who does not come after five minutes; JAX itself would blame whoever waits.
INITIALIZATION_TIMEOUT_S = 1200
JAX_TIMEOUT_S = 300
# A rank may prepare data for so long before it compiles what all compile; nobody else names who does not come.
COMPARE_TIMEOUT_S = 1800.0


class ScriptRank:
    """Tells the agent how the script is, and lets it find its peers.

    Args:
        descriptor: to the agent.
        lease_s: the longest silence of the agent that this process survives, in seconds.
        not_shown: files that run the script: their frames are left out at the beginning of a traceback.
    """

    def __init__(self, descriptor: int, lease_s: float, not_shown: Sequence[str]):
        die_with_parent()
        self._control = Control(descriptor, lease_s)
        self._assignment = self._control.receive()
        self._progress = Progress(self._control.send)
        self._progress.start()
        self._progress.emit({"type": "phase", "phase": PHASE})
        self._pid = os.getpid()
        self._not_shown = not_shown
        self._address = ""  # of the coordination service
        self._has_met = False  # at that address
        self._launches: Any = None  # the log, where they are watched

    # -- how it ends

    def show(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """For `sys.excepthook`: as Python does it, without the frames that run the script."""
        trace = self._of_the_script(trace)
        sys.__excepthook__(kind, error.with_traceback(trace), trace)

    def tell(self, error: BaseException) -> None:
        """Tells the agent what the script raised; call it before anything waits for its peers."""
        if os.getpid() != self._pid:  # a child of the script's is no rank
            return
        is_ours = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]
        trace = self._of_the_script(error.__traceback__)
        details = error_details(error, trace, is_ours=is_ours, peak_bytes=0)
        self._control.send({"type": "error", "error": details})

    def _of_the_script(self, trace: TracebackType | None) -> TracebackType | None:
        while trace is not None and trace.tb_frame.f_code.co_filename in self._not_shown:
            trace = trace.tb_next
        return trace

    # -- how it finds its peers

    def tie(self, distributed: ModuleType) -> None:
        """Has a bare `jax.distributed.initialize()` find coordinator, count and rank; call it when JAX was imported.

        Args:
            distributed: the module `jax._src.distributed`.
        """
        from jax._src import clusters

        rank = self

        class SpmdLaunchCluster(clusters.ClusterEnv):
            """For `cluster_detection_method`, and for whoever asks JAX where it runs."""

            name = "spmd-launch"

            @classmethod
            def is_env_present(cls) -> bool:
                return True

            @classmethod
            def get_coordinator_address(cls, timeout_secs: int | None, override_coordinator_port: str | None) -> str:
                return rank.coordinator()

            @classmethod
            def get_process_count(cls) -> int:
                count: int = rank._assignment["num_ranks"]
                return count

            @classmethod
            def get_process_id(cls) -> int:
                number: int = rank._assignment["rank"]
                return number

        types = clusters.ClusterEnv._cluster_types
        types.insert(0, types.pop())  # before Slurm's or a TPU's: this process is ours
        original = distributed.State.initialize
        signature = inspect.signature(original)

        def initialize(state: Any, *arguments: Any, **named: Any) -> None:
            given = signature.bind(state, *arguments, **named).arguments
            self._progress.emit({"type": "phase", "phase": "rendezvous"})
            try:
                self._meet(given, state, lambda more: original(**{"self": state, **given, **more}))
            finally:  # a script may go on without
                self._progress.emit({"type": "phase", "phase": PHASE})
            self._compare(state)

        distributed.State.initialize = initialize

    def _meet(self, given: Message, state: Any, initialize: Callable[[Message], None]) -> None:
        chosen = given.get("coordinator_address") or os.environ.get("JAX_COORDINATOR_ADDRESS")
        if chosen or state.client is not None:  # the script knows better; or it has them already, and JAX says so
            initialize({})
        else:  # JAX asks us for whatever else is not given
            self._require_own_place(given)
            self._require_first_time()
            self._initialize(initialize, given)

    def coordinator(self) -> str:
        """Where rank 0 serves; of another rank, once it does."""
        if not self._address:
            self._address = self._control.receive()["address"]
        return self._address

    def _require_own_place(self, given: Message) -> None:
        """Refuses a place where no process would serve, or some would wait for ever.

        Raises:
            ValueError: with what was given and what would do.
        """
        own = self._assignment
        rank, count = given.get("process_id"), given.get("num_processes")
        if rank not in (None, own["rank"]) or (count is not None and count > own["num_ranks"]):
            raise ValueError(
                f"jax.distributed.initialize got process_id={rank}, num_processes={count} and no coordinator_address: "
                f"expected process_id={own['rank']} and num_processes={own['num_ranks']}, as this rank has them; leave "
                f"them out, or give coordinator_address too"
            )

    def _require_first_time(self) -> None:
        """Refuses a second rendezvous, whose address would reach no rank that has the first one.

        Raises:
            RuntimeError: with what would do.
        """
        if self._has_met:
            raise RuntimeError(
                f"jax.distributed.initialize was called again, after a shutdown or a failure, by rank "
                f"{self._assignment['rank']} on host {self._assignment['host']}: an attempt of a job has "
                f"one rendezvous. Initialize once and shut down at the end, or give coordinator_address, num_processes "
                f"and process_id"
            )
        self._has_met = True

    def _initialize(self, initialize: Callable[[Message], None], given: Message) -> None:
        """No coordinator is given: the service binds this host's address alone, and its peers show certificates."""
        from launcher.rank.mutual_tls import coordinator_event, mutual_tls_options
        from launcher.rank.rendezvous import guard_channels

        own = self._assignment
        more: Message = dict(mutual_tls_options(own["tls"]))
        if given.get("initialization_timeout", JAX_TIMEOUT_S) == JAX_TIMEOUT_S:
            more["initialization_timeout"] = INITIALIZATION_TIMEOUT_S
        guard_channels(own, self._control.send)
        if own["rank"] > 0:
            initialize(more)
            return

        def publish(address: str) -> None:
            self._control.send(coordinator_event(address))

        try:
            with announced(own["address"], publish) as self._address:
                initialize({**more, "coordinator_bind_address": self._address})
        except PortLostError as error:  # the next attempt has another
            print(f"spmd-launch: {error}", file=sys.stderr, flush=True)
            self._control.send(error.event())
            os._exit(1)

    def _compare(self, state: Any) -> None:
        """What compiles, now; and from here on no program that spans processes before all ranks have the same."""
        from workloads.agreement import programs
        from workloads.agreement.environment import check_environment, describe_compiler
        from workloads.exchange import Exchange

        exchange, host = Exchange(state.process_id, state.num_processes, COMPARE_TIMEOUT_S), self._assignment["host"]
        if self._assignment["program_barrier"]:
            check_environment(describe_compiler(), exchange=exchange, host=host)
            programs.uninstall()  # of the group before, where the script has left it for another one
            programs.install(exchange, host=host, emit=self._control.send)
        if self._assignment["watch_launches"] and self._launches is None:
            self._watch_launches(exchange)

    def _watch_launches(self, exchange: Any) -> None:
        """From here on every launch is recorded; the supervisor compares them, while the script runs and at its end."""
        from launcher.rank.launches import tell_launches
        from workloads.agreement.launches import LaunchLog
        from workloads.agreement.user_launches import watch_launches, why_unsupported

        log = self._launches = LaunchLog(exchange)
        if not watch_launches(log):
            raise RuntimeError(f"--watch-launches: {why_unsupported()}; leave it out, or use another JAX")
        tell_launches(log, Path(self._assignment["black_box"]), self._progress)
