"""The small frozen object that a workload receives: who it is, and the few services it may ask for."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh

from workloads.agreement.launches import LaunchLog
from workloads.agreement.program import Program
from workloads.cadence import CHECKS, SAVES, Cadence
from workloads.exchange import Exchange
from workloads.finite import FiniteWatch
from workloads.integrity import ReplicaChecker, Verdict
from workloads.save_requests import SaveRequests
from workloads.saves_under_way import SavesUnderWay
from workloads.storage.stores import Ask, HostStore, SharedStore, Store, Writer
from workloads.user import UserFunction, load_function

Event = dict[str, Any]
PyTree = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay:
    """What is asked of an attempt that computes a step again: fingerprints, to tell which of two copies was wrong.

    Attributes:
        step: at which an earlier attempt found copies that differ; replicas are checked there, whatever else is due.
        blocks: which blocks differed, as `ReplicaChecker.digests` takes them.
    """

    step: int
    blocks: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """What `run(config, context)` knows of the world. Equal on all ranks but for `rank`, `host` and folders.

    Attributes:
        rank: this process, 0 to num_ranks - 1, in the order of the hosts.
        num_ranks: number of processes, one a host.
        host: this host's name.
        seed: the job's seed; `base_key` is made from it.
        output: private folder of this rank; files that rank 0 leaves in `output/results` and `output/plots`
            become the job's.
        storage: folder or URL (`gs://`, `s3://`) for checkpoints, reachable by every rank; with `ask` a folder on this
            host's own disk, whose files the agent copies to the head.
        exchange: small out-of-band messages between ranks.
        emit: receives progress events (dicts that JSON can hold); never blocks on another rank.
        checkpoint_every: steps between checkpoints; 0: only at the end; None: by cost, see `save_due`.
        check_every: steps between replica checks; 0: as often as 1 % of the run time allows. Always before a checkpoint
            and at the end.
        on_step: see `inject`.
        on_saved: is told by every rank's saver of a step, and whether it was committed.
        attempt: the job's how-manieth; an older one may write no checkpoint, see `workloads.fence`.
        attempt_id: unique for ever; names of files that two attempts must not share contain it.
        keep: how many of the newest good checkpoints stay.
        replay: a step to tell the fingerprints of; None: nothing is asked.
        ask: puts a question to this host's agent and waits; None: `storage` is shared by all ranks.
        user_folder: the user's, on this host, whose functions may be parameters; see `function`.
        config: the workload's parameters as JSON, equal on all ranks (of a file its digest): checkpoints record them,
            so that `workloads.checkpoint.resume` can tell of other ones; empty: they are not known.
        saves_under_way: of all its savers, also of those that were given a copy of this context.
    """

    rank: int
    num_ranks: int
    host: str
    seed: int
    output: Path
    storage: str
    exchange: Exchange
    emit: Callable[[Event], None]
    checkpoint_every: int | None = None
    check_every: int = 0
    on_step: Callable[[int, PyTree], PyTree] = lambda step, state: state
    on_saved: Callable[[int, bool], None] = lambda step, committed: None
    attempt: int = 1
    attempt_id: str = "local"
    keep: int = 3
    replay: Replay | None = None
    ask: Ask | None = None
    user_folder: Path = Path()
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    saves_under_way: SavesUnderWay = dataclasses.field(default_factory=SavesUnderWay, repr=False, compare=False)

    @classmethod
    def local(
        cls, folder: Path, *, seed: int = 0, emit: Callable[[Event], None] | None = None, **more: Any
    ) -> "Context":
        """A context for one plain process, with no launcher anywhere: for tests and notebooks."""
        return cls(
            rank=0,
            num_ranks=1,
            host="localhost",
            seed=seed,
            output=folder,
            storage=str(folder / "checkpoints"),
            exchange=Exchange(0, 1),
            emit=emit or (lambda event: None),
            **more,
        )

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the results."""
        return self.rank == 0

    @property
    def base_key(self) -> jax.Array:
        """Typed PRNG key of the job, equal on all ranks. Fold in what a draw depends on; never a rank or device."""
        return jax.random.key(self.seed)

    def results_folder(self) -> Path:
        return _made(self.output / "results")

    def plots_folder(self) -> Path:
        return _made(self.output / "plots")

    def mesh(self, axes: Mapping[str, int]) -> Mesh:
        """A mesh over all devices of all hosts, in the order of the ranks, so that trailing axes stay inside a host.

        Args:
            axes: `{axis name: size}`; the product is the number of devices.
        """
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        grid = np.array(devices).reshape(tuple(axes.values()))
        return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))

    def function(self, text: str) -> UserFunction:
        """The function that a parameter names, see `workloads.params.param(function=True)`.

        Args:
            text: the parameter's value, as `./FILE.py:FUNCTION` or `MODULE:FUNCTION`.

        Raises:
            ConfigError: there is no such function.
        """
        return load_function(text, self.user_folder)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Marks what this rank is doing (`compile`, `checkpoint`, `gather`...); the job's live line shows it."""
        self.emit({"type": "phase", "phase": name})
        yield
        self.emit({"type": "phase", "phase": "run"})

    def log(self, text: str) -> None:
        """One line in this rank's log; that it cannot be written (a full disk) is no reason to stop."""
        with contextlib.suppress(OSError):
            print(f"spmd-launch: {text}", flush=True)

    @functools.cached_property
    def launches(self) -> LaunchLog:
        """What this rank has launched on all processes; readable from any thread."""
        return LaunchLog(self.exchange.apart("launches"))

    def agree(self, what: str) -> None:
        """Makes sure that all ranks have launched the same programs in the same order; every rank must call it.

        Args:
            what: this meeting of the ranks, as `checkpoint 40`.

        Raises:
            LaunchOrderError: on every rank, naming the first differing launch.
        """
        self.launches.agree(what)

    def compile(self, name: str, function: Any, *args: Any) -> tuple[Program, float]:
        """Compiles a jitted function for these arguments, so that compile time and run time are told apart.

        Launch through what it returns: launches of programs that span all processes are recorded and compared.

        Args:
            name: what the program is called in progress events.
            function: made by `jax.jit`.
            args: arrays, or `jax.ShapeDtypeStruct`s with shardings.

        Returns:
            The compiled program, and the seconds that tracing, lowering and compiling took.
        """
        with self.phase(f"compile {name}"):
            start = time.perf_counter()
            program = Program(name, function, args, self.launches)
            return program, time.perf_counter() - start

    def report(self, step: int, total: int, **metrics: float) -> None:
        """Tells how far this rank is; call it from the host side at chunk boundaries, on every rank.

        Args:
            step: steps (or draws) done.
            total: steps (or draws) in all.
            metrics: scalars, recorded in `metrics.jsonl` with the rank; the user is told of one that is not finite.
        """
        values = {name: float(value) for name, value in metrics.items()}
        for name, value in values.items():
            self.finite.look(name, value, int(step))
        launches = self.launches.report(int(step))
        self.emit({"type": "report", "step": int(step), "total": int(total), "metrics": values, **launches})

    @functools.cached_property
    def finite(self) -> FiniteWatch:
        """Tells of losses and the like that are not finite: of what is reported, and of what else it is shown."""
        return FiniteWatch(self.emit)

    def inject(self, step: int, state: PyTree) -> PyTree:
        """Where faults asked for with `submit --inject` happen; call it after each `report`, and go on with the result.

        Args:
            step: steps (or draws) done.
            state: what the next step starts from, or what the ranks have gathered of it; arrays on devices, or in host
                memory. None: nothing that could be compared, and a bit to flip waits for a step that has it.

        Returns:
            The state, unchanged unless a fault was to change it.
        """
        return self.on_step(step, state)

    def gather(self, tree: PyTree) -> PyTree:
        """Every leaf as one whole NumPy array, on every rank; a collective, so every rank must call it.

        Leaves may be sharded over all hosts in any way. Check the replicas of what is replicated first: a gather
        reads one copy and cannot see that another differs.

        Raises:
            LaunchOrderError: the ranks have not launched the same until here.
        """
        with self.phase("gather"):
            self.agree("gather")
            return jax.tree.map(_gather_leaf, tree)

    @functools.cached_property
    def store(self) -> Store:
        """Where checkpoints are written and read."""
        writer = Writer(rank=self.rank, attempt=self.attempt, attempt_id=self.attempt_id, keep=self.keep)
        if self.ask is None:
            return SharedStore(self.storage, writer)
        return HostStore(self.storage, writer, self.ask, self.emit)

    @functools.cached_property
    def replicas(self) -> ReplicaChecker:
        """Compares copies, and remembers what it has verified."""
        return ReplicaChecker(self.exchange.apart("replicas"), self.host)

    @functools.cached_property
    def check_cadence(self) -> Cadence:
        """When a replica check is worth its cost."""
        replayed_step = self.replay.step if self.replay else 0
        every = self.check_every or None
        return Cadence(self.exchange.apart("check cadence"), every, CHECKS, also_at=replayed_step, asking=self._asking)

    @functools.cached_property
    def save_cadence(self) -> Cadence:
        """When a checkpoint is worth its cost."""
        exchange = self.exchange.apart("save cadence")
        return Cadence(exchange, self.checkpoint_every, SAVES, asking=self._asking, requests=self.save_requests)

    @functools.cached_property
    def save_requests(self) -> SaveRequests:
        """By which a checkpoint can be asked for from outside, besides those that are due."""
        return SaveRequests(self.exchange.apart("save requests"), self._asking)

    def _asking(self) -> contextlib.AbstractContextManager[None]:
        return self.phase("agree")

    def check_due(self, step: int, total: int) -> bool:
        """Whether to check the replicas now, as `check_every` says; the same on all ranks, which must all ask.

        Args:
            step: steps (or draws) done.
            total: steps (or draws) in all; there it is always due.

        Raises:
            TimeoutError: naming the ranks that did not ask.
        """
        return self.check_cadence.due(step, total)

    def save_due(self, step: int, total: int) -> bool:
        """Whether to save a checkpoint now, as `checkpoint_every` says; the same on all ranks, which must all ask.

        It is also due where one was asked for from outside, because a host is to go, whatever `checkpoint_every` says.
        By cost it is once a minute, or as seldom as it takes for saving, from here until the step is committed, to need
        at most 5 % of the run time. Ask where a dispatch ends anyway: that a save is due must not change what is
        computed.

        Args:
            step: steps (or draws) done.
            total: steps (or draws) in all; there it is always due.

        Raises:
            TimeoutError: naming the ranks that did not ask.
        """
        return self.save_cadence.due(step, total)

    def finish_saves(self) -> None:
        """Waits for the saves that a workload has begun and not waited for; a rank does so before its result counts.

        What the copies that are saved show of a divergence would else come when the result has been accepted, or never.

        Raises:
            FencedError, ReplicaDivergenceError: of a save that was under way.
            TimeoutError: a rank did not come.
        """
        if self.saves_under_way:
            with self.phase("checkpoint"):
                self.saves_under_way.wait()

    def assert_replicas_equal(self, tree: PyTree, *, step: int, derived: Callable[[], PyTree] | None = None) -> Verdict:
        """Compares all copies of every leaf bit by bit, by fingerprints, without a collective on the data.

        Args:
            tree: any pytree of arrays and numbers.
            step: where the caller is.
            derived: makes what is computed from copies of the tree, and is compared after it, where the tree itself is
                equal: a wrong bit there would show here again, as if the devices had computed wrongly.

        Returns:
            The verdict, which is also recorded in the job's events: bytes checked, and bytes without a second copy.

        Raises:
            ReplicaDivergenceError: naming leaf, hosts and devices, index and bits, and who is wrong if that is known.
            LaunchOrderError: the ranks have not launched the same until here.
        """
        began_s = time.monotonic()
        with self.phase("replica check"):
            self.agree(f"replica check {step}")
            verdict, trees = self.replicas.check(tree, step=step), [tree]
            if derived is not None and verdict.status != "diverged":
                trees.append(derived())
                verdict = verdict.with_(self.replicas.check(trees[1], step=step))
        self.check_cadence.done(began_s)
        self.emit({"type": "verdict", **dataclasses.asdict(verdict)})
        verdict.raise_if_diverged()
        if self.replay is not None and step == self.replay.step:
            found = [self.replicas.digests(tree, self.replay.blocks) for tree in trees]
            digests = {block: digest for digests in found for block, digest in digests.items()}
            if self.is_first and digests:  # of several trees that are checked at one step, those that have the blocks
                self.emit({"type": "replayed", "step": step, "digests": digests})
        return verdict


def _gather_leaf(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
    return np.asarray(leaf)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
