"""What the tests of `independent-chains` run on several ranks; returns JSON."""

import dataclasses
import hashlib
from typing import Any

import jax
import numpy as np

from launcher.faults import parse_fault
from launcher.rank.inject import Injector
from workloads.context import Context
from workloads.errors import ProgramMismatchError, ReplicaDivergenceError
from workloads.independent_chains.config import Config
from workloads.independent_chains.history import History
from workloads.independent_chains.job import Job, start_job
from workloads.independent_chains.program import Trace
from workloads.independent_chains.sampler import ChainState


def digest(history: History) -> str:
    """sha256 over all bits of a history."""
    leaves = jax.tree.leaves(history.arrays())
    return hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)).hexdigest()


def sample(context: Context, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples with each of the settings; tells what this rank gathered and what the checks said."""
    outcomes = []
    for setting in settings:
        job = start_job(Config(**setting), context)
        job.sample(0)
        state, history = job.gather()
        verdict = job.check(job.config.num_transitions, state, history)
        outcomes.append(
            {
                "digest": digest(history),
                "status": verdict.status,
                "bytes_checked": verdict.bytes_checked,
                "bytes_single_copy": verdict.bytes_single_copy,
                "tampered": tampered_check(job, state, history),
                "tampered_states": [tampered_state(job, rank, state, history) for rank in range(context.num_ranks)],
            }
        )
    return outcomes


def tampered_check(job: Job, state: ChainState, history: History) -> str:
    """What the replica check says if the last rank's copy of the gathered draws has one wrong bit."""
    context = job.context
    if context.rank == context.num_ranks - 1:
        draws = {name: array.copy() for name, array in history.draws.items()}
        next(iter(draws.values())).view(np.uint32).ravel()[7] ^= 1
        history = dataclasses.replace(history, draws=draws)
    try:
        job.check(job.config.num_transitions, state, history)
    except ReplicaDivergenceError as error:
        return str(error)
    return ""


def tampered_state(job: Job, rank: int, state: ChainState, history: History) -> str:
    """What the replica check says if one rank's copy of the first chain's position has one wrong bit."""
    if job.context.rank == rank:
        state = jax.tree.map(np.array, state)
        jax.tree.leaves(state["position"])[0].view(np.uint32).ravel()[0] ^= 1 << 20
    try:
        job.check(job.config.num_transitions, state, history)
    except ReplicaDivergenceError as error:
        return str(error)
    return ""


def outrun(context: Context, num_draws: int) -> dict[str, list[bool]]:
    """The first of two devices gets `num_draws` transitions, twice; the second then gets one, twice.

    Returns:
        For each device which of its two dispatches were ready when the second device had finished.
    """
    job = start_job(Config(num_chains=8, num_draws=num_draws, draws_per_dispatch=num_draws), context)
    ends: list[list[jax.Array]] = [[], []]
    for _ in range(2):
        for run, stop, states in zip(job.runs, (num_draws, 1), ends, strict=True):
            run.state, _ = run.program.advance(run.state, run.chains, 0, stop)
            states.append(run.state["log_density"])
    ends[1][1].block_until_ready()
    return {"slow": [end.is_ready() for end in ends[0]], "fast": [end.is_ready() for end in ends[1]]}


MODEL = """
import jax, jax.numpy as jnp, numpy as np

MATRIX = np.random.default_rng({matrix}).normal(size=({size}, {size})).astype(np.float32)

def initial_position(key):
    return {{"x": jax.random.normal(key, ({size},))}}

def logdensity(position):
    return -0.5 * {scale} * jnp.sum(position["x"] ** 2)

def report(position):
    return {{"y": MATRIX @ position["x"]}}
"""


def other_model(context: Context, *, odd: int, num_chains: int, size: int = 3, **changed: Any) -> str:
    """What compiling says on this rank where one rank's file of the model has other values; starts the job."""
    values = {"matrix": 0, "scale": 1.0, "size": size} | (changed if context.rank == odd else {})
    context.output.mkdir(exist_ok=True)
    (context.output / "own_model.py").write_text(MODEL.format(**values))
    context = dataclasses.replace(context, user_folder=context.output)
    setting = {"num_warmup": 4, "num_draws": 4, "draws_per_dispatch": 4}
    try:
        job = start_job(Config(model="./own_model.py:logdensity", num_chains=num_chains, **setting), context)
    except ProgramMismatchError as error:
        return str(error)
    job.sample(0)
    return job.check(8, *job.gather()).status


def other_trace(context: Context) -> str:
    """What the replica check says if the draws of one device of three are not those of its states."""
    job = start_job(Config(num_chains=24, num_warmup=4, num_draws=4, draws_per_dispatch=4), context)
    job.sample(0)
    if context.rank == context.num_ranks - 1:
        ((device, program),) = job.programs.devices.items()

        def astray(*args: Any) -> tuple[ChainState, Trace]:
            state, trace = program.compiled(*args)
            return state, {**trace, "draws": jax.tree.map(lambda leaf: leaf + 1, trace["draws"])}

        job.programs.devices[device] = dataclasses.replace(program, compiled=astray)
    try:
        return job.check(8, *job.gather()).status
    except ReplicaDivergenceError as error:
        return str(error)


def flip_on_the_way(context: Context, *, fault: str, rank: int) -> dict[str, Any]:
    """A run of 40 transitions in which one rank injects a fault: what it says of it, and what this rank raises."""
    said: list[dict[str, Any]] = []
    faults = [parse_fault(fault)] if context.rank == rank else []
    injector = Injector(faults, rank=context.rank, storage=context.storage, say=said.append)
    job = start_job(
        Config(num_chains=8, num_warmup=20, num_draws=20, draws_per_dispatch=4),
        dataclasses.replace(context, on_step=injector),
    )
    try:
        job.sample(0)
    except ReplicaDivergenceError as error:
        return {"said": said, "raised": str(error)}
    return {"said": said, "raised": ""}
