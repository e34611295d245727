"""Trains a character transformer: text, programs, steps, then what is left behind."""

from pathlib import Path

import jax
import numpy as np

from workloads.agreement.input_data import check_same_input
from workloads.context import Context
from workloads.layout import Layout
from workloads.result import Result, digest_arrays
from workloads.transformer import outputs
from workloads.transformer.config import Config
from workloads.transformer.corpus import write_default
from workloads.transformer.data import read_text
from workloads.transformer.loop import Training, compile_programs, train
from workloads.transformer.sample import sampler
from workloads.transformer.train import Trainer

INIT_KEY, SAMPLE_KEY = 0, 1  # folded into the job's key


def run(config: Config, context: Context, resume: bool = False) -> Result:
    """Trains, validates, and writes curves, plots, a sample and a checkpoint; every rank calls it.

    Args:
        config: parameters.
        context: this rank.
        resume: go on from the newest good checkpoint, if there is one; the result has the bits of an unbroken run.

    Raises:
        ConfigError: the text is not UTF-8 or too short, or the config does not fit the devices or the checkpoint.
        InputMismatchError: the hosts have different texts.
        ReplicaDivergenceError: copies of parameters, moments or curves differ.
    """
    layout = Layout(num_hosts=context.num_ranks, devices_per_host=jax.local_device_count())
    config.check(layout)
    mesh = context.mesh(config.mesh_axes(layout))
    text = read_text(Path(config.data) if config.data else write_default(context.output), config.context_length)
    # Each rank cuts its own rows of a batch: with another text on one host they would fit nothing.
    check_same_input("sha256 of the text", text.sha256, exchange=context.exchange, host=context.host)

    trainer = Trainer(config=config, mesh=mesh, vocab_size=text.vocab_size, padded_vocab_size=text.padded_vocab_size)
    programs = compile_programs(trainer, text, context)
    generate = sampler(trainer, context)

    init_key = jax.random.fold_in(context.base_key, INIT_KEY)
    training = train(trainer, programs, text, init_key, context, resume=resume)
    params = training.state["params"]
    first_token = max(0, text.vocabulary.find("\n"))
    tokens = np.asarray(generate(params, jax.random.fold_in(context.base_key, SAMPLE_KEY), np.int32(first_token)))
    sample = text.decode(tokens)
    memory = outputs.memory_table(context, training.state, programs.train)

    leaves = jax.tree_util.tree_leaves_with_path(context.gather(params))
    arrays = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    if context.is_first:
        _write(training, sample, context)
    return Result(
        metrics={
            "compile_s": programs.compile_s + generate.compile_s,
            "run_s": training.run_s,
            "train_loss": float(training.train["loss"][-10:].mean()),
            "val_loss": float(training.validation["loss"][-1]),
            "val_token_accuracy": float(training.validation["accuracy"][-1]),
            "tokens_per_s": _tokens_per_s(config, training),
            "num_params": sum(leaf.size for leaf in arrays.values()),
        },
        diagnostics={
            "mesh": dict(mesh.shape),
            "vocab_size": text.vocab_size,
            "train_characters": len(text.train),
            "validation_characters": len(text.validation),
            "text_sha256": text.sha256,
            "checkpoint": training.checkpoint,
            "memory_bytes": memory,
            "sample": sample,
        },
        result_digest=digest_arrays({**arrays, "loss": training.train["loss"]}),
    )


def _tokens_per_s(config: Config, training: Training) -> float:
    """Of the steps that this run made; 0 where it was resumed at its end."""
    tokens = (config.steps - training.first_step) * config.batch_size * config.context_length
    return tokens / training.train_s if tokens else 0.0


def _write(training: Training, sample: str, context: Context) -> None:
    results = context.results_folder()
    outputs.write_curves(results, training.train, training.validation)
    outputs.plot_curves(context.plots_folder(), training.train, training.validation)
    (results / "sample.txt").write_text(sample, encoding="utf-8", newline="\n")
