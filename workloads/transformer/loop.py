"""The host's side of training: dispatches chunks of steps, validates, checks replicas, saves and resumes."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from workloads import checkpoint
from workloads.agreement.program import Program
from workloads.checkpoint import Saver
from workloads.compile_on_use import CompiledOnUse
from workloads.context import Context
from workloads.errors import ConfigError
from workloads.transformer.config import Config
from workloads.transformer.data import Text, train_batches, validation_batches
from workloads.transformer.train import State, Trainer

Curves = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """What a training runs; only `train` is compiled before the first step, as a resume needs no more.

    Attributes:
        init: of `Trainer.init_state`.
        train: of `Trainer.train_chunk`; its first argument is donated.
        evaluate: of `Trainer.evaluate`.
        train_compile_s: seconds that compiling `train` took.
    """

    init: CompiledOnUse
    train: Program
    evaluate: CompiledOnUse
    train_compile_s: float

    @property
    def compile_s(self) -> float:
        """Seconds that compiling has taken so far."""
        return self.init.compile_s + self.train_compile_s + self.evaluate.compile_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What a training ends with.

    Attributes:
        state: after the last step.
        first_step: the step that it was resumed from, or 0.
        train: `loss` and `accuracy`, each (steps,): of the batch, before the step.
        validation: `step`, `loss` and `accuracy`, each (validations,).
        train_s: seconds in steps alone; run_s: all of it but compiling, with validations, checks and saves.
        checkpoint: path of the last one.
    """

    state: State
    first_step: int
    train: Curves
    validation: Curves
    train_s: float
    run_s: float
    checkpoint: str


def compile_programs(trainer: Trainer, text: Text, context: Context) -> Programs:
    """Compiles a chunk of steps for the shapes of this text; the rest is compiled when it is first used."""
    config, mesh = trainer.config, trainer.mesh
    init = jax.jit(trainer.init_state, out_shardings=trainer.state_shardings)
    train = jax.jit(trainer.train_chunk, donate_argnums=0, out_shardings=(trainer.state_shardings, None))
    batches = train_batches(text, config, context.seed, 0, mesh)
    train_program, train_s = context.compile("train", train, trainer.abstract_state, batches, np.int32(0))
    return Programs(
        init=CompiledOnUse(context, "init", init),
        train=train_program,
        evaluate=CompiledOnUse(context, "validate", jax.jit(trainer.evaluate)),
        train_compile_s=train_s,
    )


@dataclasses.dataclass(kw_only=True)
class Progress:
    """A training under way: all that a resume needs, and the one thing here that changes.

    Attributes:
        step: steps done.
        state: on the devices; donated to the next chunk.
        train: `loss` and `accuracy` so far, pieces that follow each other.
        validations: `step`, `loss` and `accuracy` of each so far.
        checkpoint: path of the step that it was resumed from, or ''.
    """

    step: int
    state: State
    train: dict[str, list[np.ndarray]]
    validations: list[dict[str, float]]
    checkpoint: str = ""

    def curves(self) -> dict[str, Curves]:
        """`train` and `validation` as arrays; the latter is left out as long as there is none."""
        train = {name: np.concatenate(pieces) for name, pieces in self.train.items()}
        if not self.validations:
            return {"train": train}
        names = self.validations[0]
        return {
            "train": train,
            "validation": {name: np.array([found[name] for found in self.validations]) for name in names},
        }


def train(
    trainer: Trainer, programs: Programs, text: Text, key: jax.Array, context: Context, *, resume: bool = False
) -> Training:
    """Runs all steps; every rank calls it.

    Args:
        trainer: network, optimizer and mesh.
        programs: `compile_programs` of them.
        text: equal on all ranks.
        key: typed PRNG key of the initial parameters.
        context: its `check_every` and `checkpoint_every` are kept to the step.
        resume: go on from the newest good checkpoint, if there is one.

    Raises:
        ConfigError: the checkpoint is of other parameters, another seed or another text.
        ReplicaDivergenceError: copies of parameters, moments or curves differ.
    """
    config = trainer.config
    held_out = validation_batches(text, config, trainer.mesh)
    start, compiled_s = time.perf_counter(), programs.compile_s
    progress = restored(trainer, text, context) if resume else None
    progress = progress or Progress(step=0, state=programs.init(key), train={}, validations=[])
    first_step, train_s = progress.step, 0.0
    saver = Saver(context)
    if first_step:
        saver.start_from(first_step)
    stops = (config.eval_every, context.check_every, context.checkpoint_every or 0)
    for first, last in chunks(first_step, config.steps, config.steps_per_dispatch, stops):
        chunk_start = time.perf_counter()
        batches = train_batches(text, config, context.seed, first, trainer.mesh)
        progress.state, curves = programs.train(progress.state, batches, np.int32(last - first))
        progress.step = last
        for name, curve in curves.items():
            progress.train.setdefault(name, []).append(np.asarray(curve)[: last - first])
        context.finite.look("train_loss", progress.train["loss"][-1], last)
        seconds = time.perf_counter() - chunk_start
        train_s += seconds
        measured = {f"train_{name}": float(pieces[-1][-1]) for name, pieces in progress.train.items()}
        if due(last, config.eval_every, config.steps):
            found = _floats(programs.evaluate(progress.state["params"], *held_out))
            progress.validations.append({"step": last, **found})
            measured |= {"val_loss": found["loss"], "val_accuracy": found["accuracy"]}
        tokens = (last - first) * config.batch_size * config.context_length
        context.report(last, config.steps, **measured, tokens_per_s=tokens / seconds)
        progress.state = context.inject(last, progress.state)
        _guard(progress, trainer, text, saver, context)
    curves_so_far = progress.curves()
    return Training(
        state=progress.state,
        first_step=first_step,
        train=curves_so_far["train"],
        validation=curves_so_far["validation"],
        train_s=train_s,
        run_s=time.perf_counter() - start - (programs.compile_s - compiled_s),
        checkpoint=saver.wait() or progress.checkpoint,
    )


def restored(trainer: Trainer, text: Text, context: Context) -> Progress | None:
    """The newest good checkpoint, on this mesh; None if there is none.

    Raises:
        ConfigError: it is of other parameters, another seed or another text.
    """
    config = trainer.config
    now = metadata_of(trainer, text, context)

    def like(step: int, saved: dict[str, Any]) -> dict[str, Any]:
        check_resumable(config, step, saved, now)
        train = {name: np.zeros(step, trainer.dtype) for name in ("loss", "accuracy")}
        tree: dict[str, Any] = {"state": trainer.abstract_state, "curves": {"train": train}}
        if saved["num_validations"]:
            shape = saved["num_validations"]
            tree["curves"]["validation"] = {
                "step": np.zeros(shape, np.int64), "loss": np.zeros(shape), "accuracy": np.zeros(shape)
            }  # fmt: skip
        return tree

    found = checkpoint.resume(context, like, tell_changes=False)
    if found is None:
        return None
    curves = found.state["curves"]
    validation = curves.get("validation", {"step": []})
    rows = [{name: values[row].item() for name, values in validation.items()} for row in range(len(validation["step"]))]
    return Progress(
        step=found.step,
        state=found.state["state"],
        train={name: [pieces] for name, pieces in curves["train"].items()},
        # A shorter run has validated at its end too, which this one passes by.
        validations=[row for row in rows if due(int(row["step"]), config.eval_every, config.steps)],
        checkpoint=found.path,
    )


def chunks(start: int, total: int, at_most: int, stops: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Cuts the steps from `start` to `total` into pieces of `at_most`, none reaching over a multiple of a stop.

    A stop of 0 is none.
    """
    first = start
    while first < total:
        last = min([total, first + at_most, *((first // stop + 1) * stop for stop in stops if stop)])
        yield first, last
        first = last


def due(step: int, every: int, total: int) -> bool:
    """Whether something done every so many steps (0: never), and once at the end, is to be done after `step`."""
    return step == total or (every > 0 and step % every == 0)


def metadata_of(trainer: Trainer, text: Text, context: Context) -> dict[str, Any]:
    """What a checkpoint says besides arrays."""
    return {
        "workload": "transformer",
        "vocabulary": text.vocabulary,
        "text_sha256": text.sha256,
        "seed": context.seed,
        "config": dataclasses.asdict(trainer.config),
    }


def check_resumable(config: Config, step: int, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Whether a run with `config` goes on from a checkpoint and ends with the bits of an unbroken one.

    Text and mesh may lie elsewhere: of the text the digest counts, and any mesh reads the same arrays. `steps` may
    change where the learning rate does not depend on it.

    Raises:
        ConfigError: naming what differs.
    """
    before, after = ({"seed": item["seed"], "text": item["text_sha256"], **item["config"]} for item in (saved, now))
    elsewhere = ("data", "mesh", "steps")
    different = [f"{name}={before.get(name)!r}" for name in after if before.get(name) != after[name]]
    different = [text for text in different if text.partition("=")[0] not in elsewhere]
    if different:
        raise ConfigError(f"the checkpoint was made with {', '.join(different)}; resume with the same")
    old = before["steps"]
    if config.steps < step:
        raise ConfigError(f"steps={config.steps}: the checkpoint has {step} steps behind it; steps={step} or more")
    if config.steps != old and not (config.has_constant_rate and config.warmup_steps < min(config.steps, old)):
        raise ConfigError(
            f"steps={config.steps}: the checkpoint was trained towards steps={old}, and the learning rate follows a "
            f"cosine to the last step; resume with steps={old} (a training with final_fraction=1 can be extended)"
        )


def _guard(progress: Progress, trainer: Trainer, text: Text, saver: Saver, context: Context) -> None:
    """Compares the replicas where that is due, and before each checkpoint; saves."""
    step, total, state = progress.step, trainer.config.steps, progress.state
    saves = context.save_due(step, total)
    if saves or context.check_due(step, total):
        copies = {"params": state["params"], "opt": state["opt"]}
        context.assert_replicas_equal(copies, step=step, derived=lambda: {"curves": progress.curves()})
    if saves:
        metadata = metadata_of(trainer, text, context) | {"num_validations": len(progress.validations)}
        saver.save(step, {"state": state, "curves": progress.curves()}, metadata)


def _floats(scalars: dict[str, jax.Array]) -> dict[str, float]:
    return {name: float(value) for name, value in scalars.items()}
