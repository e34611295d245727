"""From parameters to compiled programs: the data on the devices, the model, and its two functions."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from workloads.agreement.input_data import check_same_input
from workloads.compile_on_use import CompiledOnUse
from workloads.context import Context
from workloads.result import digest_arrays
from workloads.sharded_mcmc.config import Config
from workloads.sharded_mcmc.datasets import load_digits, load_npz, synthetic_watch_matrix
from workloads.sharded_mcmc.logistic import logistic_model
from workloads.sharded_mcmc.matrix_factorization import matrix_factorization_model
from workloads.sharded_mcmc.model import Model, PyTree
from workloads.sharded_mcmc.program import Program, State
from workloads.sharded_mcmc.sampler import Sampler


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """The programs of a run, with the data and the key that they take besides.

    Attributes:
        state: shapes, dtypes and shardings of the state: enough to restore it.
        stats: names and dtypes of a transition's statistics.
        data: the model's.
        key_data: the job's base key as raw words.
        init_program: of `Program.init`; compiled when it is first used, as a resume has its state from a checkpoint.
        advance_program: of `Program.advance`.
        advance_compile_s: seconds that compiling it took.
    """

    state: State
    stats: Mapping[str, np.dtype]
    data: PyTree
    key_data: np.ndarray
    init_program: CompiledOnUse
    advance_program: Callable[..., tuple[State, dict[str, Any]]]
    advance_compile_s: float

    @property
    def compile_s(self) -> float:
        """Seconds that compiling has taken so far."""
        return self.init_program.compile_s + self.advance_compile_s

    def init(self) -> State:
        """The state before the first transition; see `Program.init`."""
        state: State = self.init_program(self.data, self.key_data)
        return state

    def advance(self, state: State, start: np.ndarray, stop: np.ndarray) -> tuple[State, dict[str, Any]]:
        """The transitions `start` to `stop` - 1; see `Program.advance`."""
        return self.advance_program(state, self.data, self.key_data, start, stop)


def build_model(config: Config, context: Context, mesh: Mesh) -> Model:
    """Reads the data, makes sure that all hosts read the same, and places them.

    Raises:
        ConfigError: the data are not of the form that the model needs.
        InputMismatchError: they differ between hosts.
    """
    if config.model == "matrix-factorization":
        matrix = synthetic_watch_matrix(config.num_users, config.num_movies, config.rank)
        digest = _agreed_digest(context, matrix._asdict())
        return dataclasses.replace(matrix_factorization_model(matrix, config.rank, mesh), data_sha256=digest)
    images = load_digits() if config.data is None else load_npz(config.data)
    digest = _agreed_digest(context, {name: np.asarray(array) for name, array in images._asdict().items()})
    return dataclasses.replace(logistic_model(images, mesh, config.num_examples), data_sha256=digest)


def build_program(config: Config, model: Model, mesh: Mesh) -> Program:
    """What to compile for this config."""
    sampler = Sampler(
        log_density=lambda position: model.log_density(position, model.data),
        part_names=tuple(model.parts),
        step_size=config.step_size,
        num_leapfrog_steps=config.num_leapfrog_steps,
        num_adaptation_steps=config.num_adaptation_steps,
        target_accept=config.target_accept,
    )
    return Program(
        model=model,
        sampler=sampler,
        mesh=mesh,
        num_chains=config.num_chains,
        num_warmup=config.num_warmup,
        init_scale=config.init_scale,
        draws_per_dispatch=config.draws_per_dispatch,
    )


def compile_program(program: Program, context: Context) -> Compiled:
    """Compiles `advance` for a program's data and shardings; runs nothing."""
    data, key_data = program.model.data, np.asarray(jax.random.key_data(context.base_key))
    state_shardings, zero = program.state_shardings(), np.int32(0)
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(program.init, data, key_data),
        state_shardings,
    )
    advance = jax.jit(program.advance, out_shardings=(state_shardings, program.trace_shardings()))
    advance_program, advance_s = context.compile("advance", advance, state, data, key_data, zero, zero)
    return Compiled(
        state=state,
        stats={name: leaf.dtype for name, leaf in advance_program.out_info[1]["stats"].items()},
        data=data,
        key_data=key_data,
        init_program=CompiledOnUse(context, "init", jax.jit(program.init, out_shardings=state_shardings)),
        advance_program=advance_program,
        advance_compile_s=advance_s,
    )


def _agreed_digest(context: Context, arrays: Mapping[str, np.ndarray]) -> str:
    """Their digest, which all ranks must have."""
    digest = digest_arrays(arrays)
    check_same_input("sha256 of the data", digest, exchange=context.exchange, host=context.host)
    return digest
