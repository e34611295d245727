"""A job under way, as one rank sees it: its blocks of chains, and the moments when all ranks meet."""

import dataclasses
from typing import Any

import jax
import numpy as np

from workloads import checkpoint
from workloads.checkpoint import Saver
from workloads.context import Context
from workloads.errors import ConfigError
from workloads.independent_chains.blocks import DEVICE_AXIS, BlockLayout
from workloads.independent_chains.config import Config
from workloads.independent_chains.history import History
from workloads.independent_chains.models import MODELS, Model, report_as_sampled
from workloads.independent_chains.program import BlockProgram, Programs, compile_programs
from workloads.independent_chains.sampler import ChainState, Sampler
from workloads.independent_chains.sampling import BlockRun, advance_blocks
from workloads.independent_chains.user_model import user_model
from workloads.integrity import Verdict

# Transitions that every device computes alike in a replica check.
PROBE_TRANSITIONS = 8
MAX_NAMED = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The parts that belong together.

    Attributes:
        config, context: as `run` got them.
        model: what is sampled.
        layout: which device runs which chains.
        programs: compiled for this rank's devices.
        runs: this rank's blocks.
        saver: of the checkpoints.
    """

    config: Config
    context: Context
    model: Model
    layout: BlockLayout
    programs: Programs
    runs: tuple[BlockRun, ...]
    saver: Saver

    def restore(self) -> int:
        """Puts every block where the newest good checkpoint has it, by whatever layout; every rank must call it.

        Returns:
            Transitions done; 0 if there is no good checkpoint.

        Raises:
            ConfigError: it was saved with other parameters or another seed, or has more transitions than are wanted.
        """
        history = _empty_history(self.config, self.programs, self.config.num_chains)

        def like(step: int, saved: dict[str, Any]) -> dict[str, Any]:
            _check_same(saved, self._metadata())
            if step > self.config.num_transitions:
                least = step - self.config.num_warmup
                raise ConfigError(f"num_draws={self.config.num_draws}: the checkpoint has {least}; it may only grow")
            return {"state": jax.tree.map(self._zeros, self.programs.state), "history": history.filled(step)}

        found = checkpoint.resume(self.context, like, tell_changes=False)
        if found is None:
            return 0
        for run in self.runs:
            mine = self.layout.take(found.state, run.block)
            run.state = mine["state"]
            run.history.fill(mine["history"])
        self.saver.start_from(found.step)
        return found.step

    def check_start(self) -> None:
        """Refuses to sample where a chain cannot move from its start; every rank must call it.

        Raises:
            ConfigError: on every rank, naming the chains, whichever rank has them.
        """
        own = [chain for run in self.runs for chain in stuck_chains(run.chains, run.state)]
        stuck = dict(sorted(pair for pairs in self.context.exchange.all_gather("starts", own) for pair in pairs))
        if stuck:
            named = "; ".join(f"chain {chain}: {why}" for chain, why in list(stuck.items())[:MAX_NAMED])
            raise ConfigError(
                f"model={self.config.model}: {len(stuck)} of {self.config.num_chains} chains cannot start where "
                f"initial_position puts them ({named}{'; ...' if len(stuck) > MAX_NAMED else ''}); the log density and "
                f"its gradient must be finite there"
            )

    def sample(self, start: int) -> None:
        """Makes the transitions from `start` to the last; ranks meet only where a check or a checkpoint is due."""
        total, chunk, context = self.config.num_transitions, self.config.draws_per_dispatch, self.context
        while start < total:
            cadences = (context.check_cadence, context.save_cadence)
            stop = min(cadence.next_step(start, total, chunk=chunk) for cadence in cadences)
            start = advance_blocks(
                self.runs, start, stop, chunk=chunk, on_progress=self._report, ends_at=context.save_cadence.requested
            )
            saves = start < total and context.save_due(start, total)
            if start < total and (saves or context.check_due(start, total)):
                self.meet(start, saves=saves)

    def meet(self, step: int, *, saves: bool) -> tuple[History, Verdict]:
        """Gathers all chains, compares what has copies, and saves if asked; every rank must call it.

        Args:
            step: transitions done.
            saves: whether a checkpoint is to be made of it.

        Returns:
            The history of all chains, in the host memory of every rank, and what the comparison says.

        Raises:
            ReplicaDivergenceError: see `check`.
        """
        state, history = self.gather()
        # Here a flip has copies to differ from; a chain on its device has none.
        state = self.context.inject(step, state)
        verdict = self.check(step, state, history)
        if saves:
            self.save(step, state, history)
        return history, verdict

    def gather(self) -> tuple[ChainState, History]:
        """State and history of all chains, by global index, in the host memory of every rank; a collective."""
        blocks = {run.block: {"state": jax.device_get(run.state), "history": run.history.arrays()} for run in self.runs}
        empty = _empty_history(self.config, self.programs, self.config.block_size)
        like = {"state": self.programs.state, "history": empty.arrays()}
        tree = self.layout.gather(self.context, blocks, like)
        return tree["state"], empty.with_arrays(tree["history"])

    def check(self, step: int, state: ChainState, history: History) -> Verdict:
        """Compares what the devices compute and what the ranks hold, bit by bit; every rank must call it.

        A chain lives on one device, so that nothing has a second copy by itself. Therefore every device with a block
        makes the next transitions of the first block, which must end in equal bits, with equal draws on the way, and
        are thrown away; and what the ranks have gathered, from which they start, must be equal. All devices of a host
        run what one process has loaded and compiled: where their probes differ from another host's, that may be wrong,
        and nobody is named.

        Args:
            step: transitions done.
            state, history: as `gather` returned them.

        Raises:
            ReplicaDivergenceError: naming who differs, and who is wrong if a majority on more than half of the hosts
                that have a probe, or a copy, tells.
        """

        def probe() -> Any:
            first, chains = self.layout.take(state, 0), self.layout.chains_of(0)
            stop = step + min(PROBE_TRANSITIONS, self.config.draws_per_dispatch)
            probes = {
                device: program.advance(first, chains, step, stop) for device, program in self.programs.devices.items()
            }
            return {"probe": self.layout.replicated(probes, (self.programs.state, self.programs.trace))}

        gathered = {"state": state, "history": history.arrays()}
        return self.context.assert_replicas_equal(gathered, step=step, derived=probe)

    def save(self, step: int, state: ChainState, history: History) -> None:
        """Saves all that a resume on any layout needs, in the background; every rank must call it."""
        self.saver.save(step, {"state": state, "history": history.filled(step)}, self._metadata())

    def _report(self, step: int) -> None:
        """Progress of this rank, with what its own chains have met so far."""
        recent = slice(max(0, step - self.config.draws_per_dispatch), step)
        after_warmup = slice(self.config.num_warmup, step)
        stats = [run.history.stats for run in self.runs]
        metrics = {}
        if stats:
            metrics = {
                "accept_rate": float(np.mean([values["acceptance_rate"][:, recent].mean() for values in stats])),
                "num_divergences": float(sum(values["diverging"][:, after_warmup].sum() for values in stats)),
            }
            log_densities = np.concatenate([values["lp"][:, recent] for values in stats])
            self.context.finite.look("log_density", log_densities.T, step)
        self.context.report(step, self.config.num_transitions, **metrics)
        self.context.inject(step, None)

    def _zeros(self, leaf: Any) -> np.ndarray:
        return np.zeros((self.config.num_chains, *leaf.shape[1:]), leaf.dtype)

    def _metadata(self) -> dict[str, Any]:
        config = dataclasses.asdict(self.config)
        del config["draws_per_dispatch"]  # shows in no bit
        return {"workload": "independent-chains", "seed": self.context.seed, "config": config}


def start_job(config: Config, context: Context) -> Job:
    """Compiles for those of this rank's devices that have a block, and puts every chain at its random start."""
    layout = BlockLayout(
        num_chains=config.num_chains,
        block_size=config.block_size,
        mesh=context.mesh({DEVICE_AXIS: jax.device_count()}),
    )
    local = layout.local_blocks()
    devices = list(dict.fromkeys(device for _, device in local))
    model = MODELS.get(config.model) or user_model(context.function(config.model))
    programs = compile_programs(_block_program(config, model), context, devices)
    runs = tuple(
        BlockRun(
            block=block,
            chains=layout.chains_of(block),
            program=programs.devices[device],
            state=programs.init(layout.chains_of(block)),
            history=_empty_history(config, programs, config.block_size),
        )
        for block, device in local
    )
    return Job(
        config=config,
        context=context,
        model=model,
        layout=layout,
        programs=programs,
        runs=runs,
        saver=Saver(context),
    )


def stuck_chains(chains: np.ndarray, state: ChainState) -> list[tuple[int, str]]:
    """The chains of a block that have no finite log density or gradient, each with what it has."""
    state = jax.device_get(state)
    found = []
    for row, chain in enumerate(chains):
        gradients = report_as_sampled(state["gradient"])
        broken = [name for name, leaf in gradients.items() if not np.isfinite(leaf[row]).all()]
        if not np.isfinite(state["log_density"][row]):
            found.append((int(chain), f"log density {state['log_density'][row]}"))
        elif broken:
            found.append((int(chain), f"gradient by {', '.join(broken)} not finite"))
    return found


def _block_program(config: Config, model: Model) -> BlockProgram:
    sampler = Sampler(
        model=model,
        kind=config.sampler,
        step_size=config.step_size,
        num_leapfrog_steps=config.num_leapfrog_steps,
        max_tree_depth=config.max_tree_depth,
        num_adaptation_steps=config.num_adaptation_steps,
        target_accept=config.target_accept,
    )
    return BlockProgram(
        model=model, sampler=sampler, block_size=config.block_size, draws_per_dispatch=config.draws_per_dispatch
    )


def _empty_history(config: Config, programs: Programs, num_chains: int) -> History:
    return History.empty(
        num_chains=num_chains, num_warmup=config.num_warmup, num_draws=config.num_draws, trace=programs.trace
    )


def _check_same(saved: dict[str, Any], now: dict[str, Any]) -> None:
    before, after = ({"seed": item["seed"], **item["config"]} for item in (saved, now))
    names = [name for name in after if name != "num_draws"]  # which may grow
    different = [f"{name}={before.get(name)!r}" for name in names if before.get(name) != after[name]]
    if different:
        raise ConfigError(f"the checkpoint was made with {', '.join(different)}; resume with the same")
