"""The workload `sharded-mcmc`: Hamiltonian Monte Carlo over data and state sharded across all devices of all hosts."""

import dataclasses
import time
from typing import Any

import jax
import numpy as np

from workloads import checkpoint
from workloads.checkpoint import Saver
from workloads.context import Context
from workloads.errors import ConfigError
from workloads.integrity import Verdict
from workloads.result import Result, digest_arrays
from workloads.sharded_mcmc.config import Config
from workloads.sharded_mcmc.history import History
from workloads.sharded_mcmc.model import Model
from workloads.sharded_mcmc.placement import DATA_AXIS, placed_like, repadded
from workloads.sharded_mcmc.program import State
from workloads.sharded_mcmc.report import assess_posterior, write_results
from workloads.sharded_mcmc.setup import Compiled, build_model, build_program, compile_program


def run(config: Config, context: Context, resume: bool = False) -> Result:
    """Samples the posterior of `config.model` and writes draws, diagnostics and plots.

    Args:
        config: parameters; `data` is a readable local path or None.
        context: this rank.
        resume: go on from the newest good checkpoint, if there is one; on the same layout bit for bit.

    Raises:
        ConfigError: the data are not of the form that the model needs; the checkpoint is of other parameters, data or
            seed.
        InputMismatchError: the data are not the same on all hosts.
        ReplicaDivergenceError: copies of replicated state, or of the history, differ.
    """
    mesh = context.mesh({DATA_AXIS: jax.device_count()})
    model = build_model(config, context, mesh)
    compiled = compile_program(build_program(config, model, mesh), context)
    history = History.empty(
        num_warmup=config.num_warmup,
        num_draws=config.num_draws,
        num_chains=config.num_chains,
        parts=model.parts,
        stats=compiled.stats,
        max_draws_mib=config.max_draws_mib,
    )
    saver, metadata = Saver(context), metadata_of(config, context, model, compiled.state, history)
    restored = restore(config, context, metadata, compiled.state, history) if resume else None
    start, state = restored or (0, compiled.init())
    if restored:
        saver.start_from(start)

    clock = time.perf_counter()
    state = sample(config, context, compiled, state, history, saver, metadata, start=start)
    run_s = time.perf_counter() - clock

    verdict = check_copies(config.num_transitions, context, state, history)
    if start < config.num_transitions:
        saver.save(
            config.num_transitions, {"state": state, "history": history.filled(config.num_transitions)}, metadata
        )
    assessment = assess_posterior(config, context, model, state, history)
    if context.is_first:
        write_results(config, context, model, history, assessment.mean_prediction)
    saver.wait()
    num_gradients = (config.num_transitions - start) * config.num_chains * config.num_leapfrog_steps
    rates = {"compile_s": compiled.compile_s, "run_s": run_s, "gradients_per_s": num_gradients / run_s}
    return Result(
        metrics=assessment.metrics | rates,
        diagnostics=assessment.diagnostics | {"replicas": dataclasses.asdict(verdict)},
        result_digest=digest_arrays(history.draws | history.stats),
    )


def sample(
    config: Config,
    context: Context,
    compiled: Compiled,
    state: State,
    history: History,
    saver: Saver,
    metadata: dict[str, Any],
    *,
    start: int = 0,
) -> State:
    """Makes the transitions from `start` on and fills the history.

    Each dispatch ends where progress is due, or earlier where a replica check or a checkpoint is.

    Returns:
        The state after the last transition.
    """
    total = config.num_transitions
    periods = (config.draws_per_dispatch, context.check_every, context.checkpoint_every or 0)
    while start < total:
        stop = next_stop(start, total, periods)
        state, trace = compiled.advance(state, np.asarray(start, np.int32), np.asarray(stop, np.int32))
        stats = {name: np.asarray(leaf)[: stop - start] for name, leaf in trace["stats"].items()}
        history.record_stats(start, stats)
        context.finite.look("log_density", stats["log_density"], stop)
        rows = history.rows_to_keep(start, stop)
        if len(rows):
            history.record_draws(start, rows, context.gather(trace["position"]))
        context.report(stop, total, **{name: values[-1].mean() for name, values in stats.items()})
        state = context.inject(stop, state)
        saves = stop < total and context.save_due(stop, total)
        if stop < total and (saves or context.check_due(stop, total)):
            check_copies(stop, context, state, history)
        if saves:
            saver.save(stop, {"state": state, "history": history.filled(stop)}, metadata)
        start = stop
    return state


def check_copies(step: int, context: Context, state: State, history: History) -> Verdict:
    """Compares the state, then what the ranks have recorded of it, each in its own host's memory.

    Raises:
        ReplicaDivergenceError: copies differ.
    """
    return context.assert_replicas_equal(state, step=step, derived=lambda: {"history": history.filled(step)})


def next_stop(start: int, total: int, periods: tuple[int, ...]) -> int:
    """The first multiple of any period after `start`, at most `total`; a period of 0 never comes."""
    return min(total, *(start - start % period + period for period in periods if period))


def metadata_of(config: Config, context: Context, model: Model, state: State, history: History) -> dict[str, Any]:
    """What a checkpoint says besides arrays."""
    return {
        "workload": "sharded-mcmc",
        "config": dataclasses.asdict(config),
        "seed": context.seed,
        "data_sha256": model.data_sha256,
        "keep_every": history.keep_every,
        "state_shapes": [list(leaf.shape) for leaf in jax.tree.leaves(state)],  # with the padding of this layout
    }


def restore(
    config: Config, context: Context, metadata: dict[str, Any], state: State, history: History
) -> tuple[int, State] | None:
    """Reads the newest good checkpoint back: arrays get the shardings of `state`, and the history is filled.

    Args:
        config: parameters.
        context: this rank.
        metadata: what this run's checkpoints say besides arrays.
        state: shapes, dtypes and shardings.
        history: empty.

    Returns:
        Transitions done, and the state after them; None if there is no good checkpoint.

    Raises:
        ConfigError: it was saved with other parameters, data or seed, or with draws thinned in another way.
    """

    def like(step: int, saved: dict[str, Any]) -> dict[str, Any]:
        check_resumable(config, step, saved, metadata)
        shapes = jax.tree.unflatten(jax.tree.structure(state), map(tuple, saved["state_shapes"]))
        return {
            "state": jax.tree.map(placed_like, state, shapes),
            "history": history.like_filled(step, saved["keep_every"]),
        }

    found = checkpoint.resume(context, like, tell_changes=False)
    if found is None:
        return None
    history.fill(found.state["history"], found.metadata["keep_every"])
    return found.step, jax.tree.map(repadded, state, found.state["state"])


def check_resumable(config: Config, step: int, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Whether a run with `config` goes on from a checkpoint and ends with the draws of an unbroken one.

    The data may lie elsewhere, their digest counts; `num_draws` may grow, as long as the draws that were kept are
    among those that are kept now.

    Raises:
        ConfigError: naming what differs.
    """
    before, after = (
        {"seed": item["seed"], "data_sha256": item["data_sha256"], **item["config"]} for item in (saved, now)
    )
    names = [name for name in after if name not in ("data", "num_draws", "max_draws_mib")]
    different = [f"{name}={before.get(name)!r}" for name in names if before.get(name) != after[name]]
    if different:
        raise ConfigError(f"the checkpoint was made with {', '.join(different)}; resume with the same")
    if step > config.num_transitions:
        least = step - config.num_warmup
        raise ConfigError(f"num_draws={config.num_draws}: the checkpoint has {least}; it may only grow")
    if now["keep_every"] % saved["keep_every"]:
        raise ConfigError(
            f"num_draws={config.num_draws}: every {now['keep_every']}th draw would be kept to fit "
            f"max_draws_mib={config.max_draws_mib}, and the checkpoint has every {saved['keep_every']}th; "
            f"another max_draws_mib would fit"
        )
