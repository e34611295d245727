"""The host's side of training: dispatches chunks of steps, validates, checks replicas, saves."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from workloads import checkpoint
from workloads.context import Context
from workloads.transformer.data import Text, train_batches, validation_batches
from workloads.transformer.train import State, Trainer

Curves = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """What was compiled before the first step, and the seconds that it took."""

    init: Callable[..., State]
    train: jax.stages.Compiled
    evaluate: Callable[..., dict[str, jax.Array]]
    compile_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What a training ends with.

    Attributes:
        state: after the last step.
        train: `loss` and `accuracy`, each (steps,): of the batch, before the step.
        validation: `step`, `loss` and `accuracy`, each (validations,).
        train_s: seconds in steps alone; run_s: all of it, with validations, checks and saves.
        checkpoint: path of the last one.
    """

    state: State
    train: Curves
    validation: Curves
    train_s: float
    run_s: float
    checkpoint: str


def compile_programs(trainer: Trainer, text: Text, context: Context) -> Programs:
    """Compiles for the shapes of this text; no array is made but the validation's batches."""
    config, mesh = trainer.config, trainer.mesh
    init = jax.jit(trainer.init_state, out_shardings=trainer.state_shardings)
    train = jax.jit(trainer.train_chunk, donate_argnums=0, out_shardings=(trainer.state_shardings, None))
    state = trainer.abstract_state
    batches = train_batches(text, config, context.seed, 0, mesh)
    init_program, init_s = context.compile("init", init, context.base_key)
    train_program, train_s = context.compile("train", train, state, batches, np.int32(0))
    evaluate_program, evaluate_s = context.compile(
        "validate", jax.jit(trainer.evaluate), state["params"], *validation_batches(text, config, mesh)
    )
    return Programs(
        init=init_program, train=train_program, evaluate=evaluate_program, compile_s=init_s + train_s + evaluate_s
    )


def train(trainer: Trainer, programs: Programs, text: Text, key: jax.Array, context: Context) -> Training:
    """Runs all steps; every rank calls it.

    Args:
        trainer: network, optimizer and mesh.
        programs: `compile_programs` of them.
        text: equal on all ranks.
        key: typed PRNG key of the initial parameters.
        context: its `check_every` and `checkpoint_every` are kept to the step.

    Raises:
        ReplicaDivergenceError: copies of parameters or moments differ.
    """
    config = trainer.config
    held_out = validation_batches(text, config, trainer.mesh)
    start = time.perf_counter()
    state = programs.init(key)
    train_s = 0.0
    pieces: list[Curves] = []
    validations: list[dict[str, float]] = []
    stops = (config.eval_every, context.check_every, context.checkpoint_every)
    for first, last in chunks(config.steps, config.steps_per_dispatch, stops):
        chunk_start = time.perf_counter()
        batches = train_batches(text, config, context.seed, first, trainer.mesh)
        state, curves = programs.train(state, batches, np.int32(last - first))
        pieces.append({name: np.asarray(curve)[: last - first] for name, curve in curves.items()})
        seconds = time.perf_counter() - chunk_start
        train_s += seconds
        measured = {f"train_{name}": float(curve[-1]) for name, curve in pieces[-1].items()}
        if due(last, config.eval_every, config.steps):
            validations.append({"step": last, **_floats(programs.evaluate(state["params"], *held_out))})
            measured |= {"val_loss": validations[-1]["loss"], "val_accuracy": validations[-1]["accuracy"]}
        tokens = (last - first) * config.batch_size * config.context_length
        context.report(last, config.steps, **measured, tokens_per_s=tokens / seconds)
        path = _guard(last, config.steps, state, trainer, text, context)
    return Training(
        state=state,
        train={name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]},
        validation={name: np.array([found[name] for found in validations]) for name in validations[0]},
        train_s=train_s,
        run_s=time.perf_counter() - start,
        checkpoint=path,
    )


def chunks(total: int, at_most: int, stops: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Cuts `total` steps into pieces of `at_most`, none reaching over a multiple of a stop (0: no such stop)."""
    first = 0
    while first < total:
        last = min([total, first + at_most, *((first // stop + 1) * stop for stop in stops if stop)])
        yield first, last
        first = last


def due(step: int, every: int, total: int) -> bool:
    """Whether something done every so many steps (0: never), and once at the end, is to be done after `step`."""
    return step == total or (every > 0 and step % every == 0)


def _guard(step: int, total: int, state: State, trainer: Trainer, text: Text, context: Context) -> str:
    """Compares the replicas where that is due, and before each checkpoint; returns the checkpoint's path, or ''."""
    saves = due(step, context.checkpoint_every, total)
    if saves or context.check_due(step, total):
        context.assert_replicas_equal({"params": state["params"], "opt": state["opt"]}, step=step)
    if not saves:
        return ""
    metadata: dict[str, Any] = {
        "vocabulary": text.vocabulary,
        "text_sha256": text.sha256,
        "seed": context.seed,
        "config": dataclasses.asdict(trainer.config),
    }
    return checkpoint.save(context, step, state, metadata)


def _floats(scalars: dict[str, jax.Array]) -> dict[str, float]:
    return {name: float(value) for name, value in scalars.items()}
