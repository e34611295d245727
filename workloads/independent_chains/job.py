"""A job under way, as one rank sees it: its devices and their blocks, and the moments when all ranks meet."""

import dataclasses
from typing import Any

import jax
import numpy as np

from workloads import checkpoint
from workloads.context import Context
from workloads.errors import ConfigError
from workloads.independent_chains.blocks import DEVICE_AXIS, BlockLayout
from workloads.independent_chains.config import Config
from workloads.independent_chains.history import History
from workloads.independent_chains.models import MODELS
from workloads.independent_chains.program import BlockProgram, DeviceProgram, compile_for_devices, shapes
from workloads.independent_chains.sampler import ChainState, Sampler
from workloads.independent_chains.sampling import BlockRun, DeviceRun, advance_devices
from workloads.integrity import Verdict

# Transitions that every device computes alike in a replica check.
PROBE_TRANSITIONS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The parts that belong together.

    Attributes:
        config, context: as `run` got them.
        layout: which device runs which chains.
        program: what is compiled.
        devices: this rank's, in the order of the mesh.
    """

    config: Config
    context: Context
    layout: BlockLayout
    program: BlockProgram
    devices: tuple[DeviceRun, ...]

    def restored(self, step: int) -> "Job":
        """The job as it was saved at `step`, by whatever layout; every rank must call it.

        Raises:
            ConfigError: it was saved with other parameters or another seed.
        """
        state_shapes, _ = shapes(self.program)
        like = {
            "state": jax.tree.map(lambda leaf: _zeros(leaf, self.config.num_chains), state_shapes),
            "history": self._history(self.config.num_chains).arrays(),
        }
        _, tree, metadata = checkpoint.restore(self.context.storage, step, like)
        _check_same(metadata, self._metadata())
        devices = []
        for device in self.devices:
            blocks = []
            for run in device.blocks:
                state = jax.device_put(self.layout.take(tree["state"], run.block), device.program.device)
                history = run.history.with_arrays(self.layout.take(tree["history"], run.block))
                blocks.append(dataclasses.replace(run, state=state, history=history))
            devices.append(dataclasses.replace(device, blocks=tuple(blocks)))
        return dataclasses.replace(self, devices=tuple(devices))

    def sample(self, start: int) -> None:
        """Makes the transitions from `start` to the last; ranks meet only where a check or a checkpoint is due."""
        total, context = self.config.num_transitions, self.context
        while start < total:
            stop = _next_meeting(start, total, (context.check_every, context.checkpoint_every))
            advance_devices(
                self.devices, start, stop, chunk=self.config.draws_per_dispatch, on_progress=self._report
            )
            start = stop
            if start < total:
                state, history = self.gather()
                if context.check_every and start % context.check_every == 0:
                    self.check(start, state, history)
                if context.checkpoint_every and start % context.checkpoint_every == 0:
                    self.save(start, state, history)

    def gather(self) -> tuple[ChainState, History]:
        """State and history of all chains, by global index, in the host memory of every rank; a collective."""
        blocks = {
            run.block: {"state": jax.device_get(run.state), "history": run.history.arrays()}
            for device in self.devices
            for run in device.blocks
        }
        state_shapes, _ = shapes(self.program)
        like = {"state": state_shapes, "history": self._history(self.config.block_size).arrays()}
        tree = self.layout.gather(self.context, blocks, like)
        return tree["state"], self._history(0).with_arrays(tree["history"])

    def check(self, step: int, state: ChainState, history: History) -> Verdict:
        """Compares what the devices compute and what the ranks hold, bit by bit; every rank must call it.

        A chain lives on one device, so that nothing has a second copy by itself. Therefore every device makes the
        next transitions of the first block, whose outcomes must be equal and are thrown away; and every rank's
        gathered state and history must be.

        Raises:
            ReplicaDivergenceError: naming the devices or hosts that are outvoted.
        """
        stop = step + min(PROBE_TRANSITIONS, self.config.draws_per_dispatch)
        first = self.layout.take(state, 0)
        probes = [
            device.program.advance(
                jax.device_put(first, device.program.device), self.layout.chains_of(0), step, stop
            )[0]
            for device in self.devices
        ]
        tree = {"probe": self.layout.replicated(*probes), "state": state, "history": history.arrays()}
        return self.context.assert_replicas_equal(tree, step=step)

    def save(self, step: int, state: ChainState, history: History) -> str:
        """Saves all that a resume on any layout needs; every rank must call it. Returns the checkpoint's path."""
        return checkpoint.save(self.context, step, {"state": state, "history": history.arrays()}, self._metadata())

    def _report(self, step: int) -> None:
        """Progress of this rank, with what its own chains have met so far."""
        runs = [run.history.stats for device in self.devices for run in device.blocks]
        metrics = {}
        if runs and step:
            recent = slice(max(0, step - self.config.draws_per_dispatch), step)
            after_warmup = slice(self.config.num_warmup, step)
            metrics = {
                "accept_rate": np.mean([stats["acceptance_rate"][:, recent] for stats in runs]),
                "num_divergences": np.sum([stats["diverging"][:, after_warmup].sum() for stats in runs]),
            }
        self.context.report(step, self.config.num_transitions, **metrics)

    def _history(self, num_chains: int) -> History:
        return empty_history(self.config, self.program, num_chains)

    def _metadata(self) -> dict[str, Any]:
        config = dataclasses.asdict(self.config)
        del config["draws_per_dispatch"]  # shows in no bit
        return {"workload": "independent-chains", "seed": self.context.seed, "config": config}


def start_job(config: Config, context: Context) -> tuple[Job, float]:
    """Compiles for this rank's devices and puts every chain at its random start.

    Returns:
        The job, and the seconds that compiling took.
    """
    model = MODELS[config.model]
    program = BlockProgram(
        model=model,
        sampler=Sampler(
            model=model,
            kind=config.sampler,
            step_size=config.step_size,
            num_leapfrog_steps=config.num_leapfrog_steps,
            max_tree_depth=config.max_tree_depth,
            num_adaptation_steps=config.num_adaptation_steps,
            target_accept=config.target_accept,
        ),
        block_size=config.block_size,
        draws_per_dispatch=config.draws_per_dispatch,
    )
    layout = BlockLayout(
        num_chains=config.num_chains,
        block_size=config.block_size,
        mesh=context.mesh({DEVICE_AXIS: jax.device_count()}),
    )
    compiled, compile_s = compile_for_devices(program, context, [device for _, device in layout.local_devices()])
    devices = tuple(
        DeviceRun(program=ready, blocks=_begin_blocks(config, layout, program, ready, place))
        for ready, (place, _) in zip(compiled, layout.local_devices(), strict=True)
    )
    return Job(config=config, context=context, layout=layout, program=program, devices=devices), compile_s


def empty_history(config: Config, program: BlockProgram, num_chains: int) -> History:
    """A history of the whole run, not yet filled."""
    _, trace = shapes(program)
    return History.empty(
        num_chains=num_chains, num_warmup=config.num_warmup, num_draws=config.num_draws, trace=trace
    )


def _begin_blocks(
    config: Config, layout: BlockLayout, program: BlockProgram, ready: DeviceProgram, place: int
) -> tuple[BlockRun, ...]:
    return tuple(
        BlockRun(
            block=block,
            chains=layout.chains_of(block),
            state=ready.init(layout.chains_of(block)),
            history=empty_history(config, program, config.block_size),
        )
        for block in layout.blocks_of(place)
    )


def _next_meeting(start: int, total: int, periods: tuple[int, ...]) -> int:
    """The first multiple of any period after `start`, at most `total`; a period of 0 never comes."""
    return min(total, *(start - start % period + period for period in periods if period), total)


def _check_same(saved: dict[str, Any], now: dict[str, Any]) -> None:
    before, after = ({"seed": item["seed"], **item["config"]} for item in (saved, now))
    different = [f"{name}={before.get(name)!r}" for name in after if before.get(name) != after[name]]
    if different:
        raise ConfigError(f"the checkpoint was made with {', '.join(different)}; resume with the same")


def _zeros(leaf: Any, num_chains: int) -> np.ndarray:
    return np.zeros((num_chains, *leaf.shape[1:]), leaf.dtype)
