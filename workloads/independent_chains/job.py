"""A job under way, as one rank sees it: its rounds of blocks, and the moments when all ranks meet."""

import dataclasses
from typing import Any

import jax
import numpy as np

from workloads import checkpoint
from workloads.context import Context
from workloads.errors import ConfigError
from workloads.independent_chains.blocks import BlockLayout
from workloads.independent_chains.config import Config
from workloads.independent_chains.history import History
from workloads.independent_chains.models import MODELS
from workloads.independent_chains.program import DEVICE_AXIS, BlockProgram, CompiledProgram, compile_program
from workloads.independent_chains.sampler import ChainState, Sampler
from workloads.independent_chains.sampling import Round, advance_rounds
from workloads.integrity import Verdict

# Transitions that every device computes alike in a replica check.
PROBE_TRANSITIONS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The parts that belong together.

    Attributes:
        config, context: as `run` got them.
        layout: which device runs which chains.
        program: compiled for this rank's devices.
        rounds: this rank's chains.
    """

    config: Config
    context: Context
    layout: BlockLayout
    program: CompiledProgram
    rounds: tuple[Round, ...]

    def restored(self, step: int) -> "Job":
        """The job as it was saved at `step`, by whatever layout; every rank must call it.

        Raises:
            ConfigError: it was saved with other parameters or another seed.
        """
        state = jax.tree.map(self._zeros, self.program.state)
        history = _empty_history(self.config, self.program, self.config.num_chains)
        _, tree, metadata = checkpoint.restore(
            self.context.storage, step, {"state": state, "history": history.arrays()}
        )
        _check_same(metadata, self._metadata())
        rounds = []
        for turn in self.rounds:
            mine = jax.tree.map(lambda leaf, chains=turn.chains: np.asarray(leaf)[chains], tree)
            state, history = self.program.put(mine["state"]), turn.history.with_arrays(mine["history"])
            rounds.append(dataclasses.replace(turn, state=state, history=history))
        return dataclasses.replace(self, rounds=tuple(rounds))

    def sample(self, start: int) -> None:
        """Makes the transitions from `start` to the last; ranks meet only where a check or a checkpoint is due."""
        total, context = self.config.num_transitions, self.context
        while start < total:
            stop = _next_meeting(start, total, (context.check_every, context.checkpoint_every))
            advance_rounds(
                self.program,
                self.rounds,
                start,
                stop,
                chunk=self.config.draws_per_dispatch,
                on_progress=self._report,
            )
            start = stop
            if start < total:
                state, history = self.gather()
                if _is_due(start, context.check_every):
                    self.check(start, state, history)
                if _is_due(start, context.checkpoint_every):
                    self.save(start, state, history)

    def gather(self) -> tuple[ChainState, History]:
        """State and history of all chains, by global index, in the host memory of every rank; a collective."""
        local = [{"state": jax.device_get(turn.state), "history": turn.history.arrays()} for turn in self.rounds]
        tree = self.layout.gather(self.context, local)
        return tree["state"], self.rounds[0].history.with_arrays(tree["history"])

    def check(self, step: int, state: ChainState, history: History) -> Verdict:
        """Compares what the devices compute and what the ranks hold, bit by bit; every rank must call it.

        A chain lives on one device, so that nothing has a second copy by itself. Therefore every device makes the
        next transitions of the first block, which must end in equal bits and are thrown away; and what the ranks have
        gathered must be equal.

        Args:
            step: transitions done.
            state, history: as `gather` returned them.

        Raises:
            ReplicaDivergenceError: naming the devices or hosts that are outvoted.
        """
        num_devices = self.program.mesh.size
        first_block = np.minimum(np.arange(self.config.block_size), self.config.num_chains - 1).astype(np.int32)
        chains = np.tile(first_block, num_devices)
        num_transitions = min(PROBE_TRANSITIONS, self.config.draws_per_dispatch)
        probe, _ = self.program.advance(
            self.program.put(jax.tree.map(lambda leaf: leaf[chains], state)),
            chains,
            step,
            np.full(num_devices, step + num_transitions),
        )
        tree = {"probe": self.layout.replicated(probe), "state": state, "history": history.arrays()}
        return self.context.assert_replicas_equal(tree, step=step)

    def save(self, step: int, state: ChainState, history: History) -> str:
        """Saves all that a resume on any layout needs; every rank must call it. Returns the checkpoint's path."""
        return checkpoint.save(self.context, step, {"state": state, "history": history.arrays()}, self._metadata())

    def _report(self, step: int) -> None:
        """Progress of this rank, with what its own chains have met so far."""
        recent = slice(max(0, step - self.config.draws_per_dispatch), step)
        after_warmup = slice(self.config.num_warmup, step)
        busy = [np.repeat(turn.is_busy, self.config.block_size) for turn in self.rounds]
        stats = [turn.history.stats for turn in self.rounds]
        rates = [values["acceptance_rate"][mask, recent] for values, mask in zip(stats, busy, strict=True)]
        diverging = [values["diverging"][mask, after_warmup] for values, mask in zip(stats, busy, strict=True)]
        metrics = {"num_divergences": float(sum(values.sum() for values in diverging))}
        if any(mask.any() for mask in busy):
            metrics["accept_rate"] = float(np.concatenate(rates).mean())
        self.context.report(step, self.config.num_transitions, **metrics)

    def _zeros(self, leaf: Any) -> np.ndarray:
        return np.zeros((self.config.num_chains, *leaf.shape[1:]), leaf.dtype)

    def _metadata(self) -> dict[str, Any]:
        config = dataclasses.asdict(self.config)
        del config["draws_per_dispatch"]  # shows in no bit
        return {"workload": "independent-chains", "seed": self.context.seed, "config": config}


def start_job(config: Config, context: Context) -> Job:
    """Compiles for this rank's devices and puts every chain at its random start."""
    layout = BlockLayout(
        num_chains=config.num_chains,
        block_size=config.block_size,
        mesh=context.mesh({DEVICE_AXIS: jax.device_count()}),
    )
    program = compile_program(_block_program(config), context, layout.local_mesh)
    rounds = tuple(
        Round(
            chains=layout.chains_of(number),
            is_busy=layout.is_busy(number),
            state=program.init(layout.chains_of(number)),
            history=_empty_history(config, program, len(layout.chains_of(number))),
        )
        for number in range(layout.num_rounds)
    )
    return Job(config=config, context=context, layout=layout, program=program, rounds=rounds)


def _block_program(config: Config) -> BlockProgram:
    model = MODELS[config.model]
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


def _empty_history(config: Config, program: CompiledProgram, num_chains: int) -> History:
    return History.empty(
        num_chains=num_chains, num_warmup=config.num_warmup, num_draws=config.num_draws, trace=program.trace
    )


def _next_meeting(start: int, total: int, periods: tuple[int, ...]) -> int:
    """The first multiple of any period after `start`, at most `total`; a period of 0 never comes."""
    return min([total, *(start - start % period + period for period in periods if period)])


def _is_due(step: int, period: int) -> bool:
    return bool(period) and step % period == 0


def _check_same(saved: dict[str, Any], now: dict[str, Any]) -> None:
    before, after = ({"seed": item["seed"], **item["config"]} for item in (saved, now))
    different = [f"{name}={before.get(name)!r}" for name in after if before.get(name) != after[name]]
    if different:
        raise ConfigError(f"the checkpoint was made with {', '.join(different)}; resume with the same")
