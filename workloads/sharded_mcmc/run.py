"""The workload `sharded-mcmc`: Hamiltonian Monte Carlo over data and state sharded across all devices of all hosts."""

import dataclasses
import time

import jax
import numpy as np

from workloads import checkpoint
from workloads.context import Context
from workloads.result import Result, digest_arrays
from workloads.sharded_mcmc.config import Config
from workloads.sharded_mcmc.history import History
from workloads.sharded_mcmc.placement import DATA_AXIS
from workloads.sharded_mcmc.program import State
from workloads.sharded_mcmc.report import assess_posterior, write_results
from workloads.sharded_mcmc.setup import Compiled, build_model, build_program, compile_program


def run(config: Config, context: Context, *, resume_step: int | None = None) -> Result:
    """Samples the posterior of `config.model` and writes draws, diagnostics and plots.

    Args:
        config: parameters; `data` is a readable local path or None.
        context: this rank.
        resume_step: go on from the checkpoint of that step instead of from the start.

    Raises:
        ConfigError: the data are not of the form that the model needs, or not the same on all hosts.
        ReplicaDivergenceError: copies of replicated state differ.
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
    start, state = 0, compiled.init()
    if resume_step is not None:
        start, state, history = restore(context, resume_step, state, history)

    clock = time.perf_counter()
    state = sample(config, context, compiled, state, history, start=start)
    run_s = time.perf_counter() - clock

    verdict = context.assert_replicas_equal(state, step=config.num_transitions)
    save(config, context, config.num_transitions, state, history)
    assessment = assess_posterior(config, context, model, state, history)
    if context.is_first:
        write_results(config, context, model, history, assessment.mean_prediction)
    num_gradients = (config.num_transitions - start) * config.num_chains * config.num_leapfrog_steps
    rates = {"compile_s": compiled.compile_s, "run_s": run_s, "gradients_per_s": num_gradients / run_s}
    return Result(
        metrics=assessment.metrics | rates,
        diagnostics=assessment.diagnostics | {"replicas": dataclasses.asdict(verdict)},
        result_digest=digest_arrays(history.draws | history.stats),
    )


def sample(
    config: Config, context: Context, compiled: Compiled, state: State, history: History, *, start: int = 0
) -> State:
    """Makes the transitions from `start` on and fills the history.

    Each dispatch ends where progress is due, or earlier where a replica check or a checkpoint is.

    Returns:
        The state after the last transition.
    """
    total = config.num_transitions
    while start < total:
        stop = next_stop(start, total, (config.draws_per_dispatch, context.check_every, context.checkpoint_every))
        state, trace = compiled.advance(state, np.asarray(start, np.int32), np.asarray(stop, np.int32))
        stats = {name: np.asarray(leaf)[: stop - start] for name, leaf in trace["stats"].items()}
        history.record_stats(start, stats)
        rows = history.rows_to_keep(start, stop)
        if len(rows):
            history.record_draws(start, rows, context.gather(trace["position"]))
        context.report(stop, total, **{name: values[-1].mean() for name, values in stats.items()})
        saves = is_due(stop, total, context.checkpoint_every)
        if stop < total and (saves or context.check_due(stop, total)):
            context.assert_replicas_equal(state, step=stop)
        if saves:
            save(config, context, stop, state, history)
        start = stop
    return state


def next_stop(start: int, total: int, periods: tuple[int, ...]) -> int:
    """The first multiple of any period after `start`, at most `total`; a period of 0 never comes."""
    return min(total, *(start - start % period + period for period in periods if period))


def is_due(step: int, total: int, period: int) -> bool:
    """Whether something that happens every `period` steps happens now; what happens at the end is not meant."""
    return bool(period) and step % period == 0 and step < total


def save(config: Config, context: Context, step: int, state: State, history: History) -> str:
    """Saves all that a resume needs; every rank must call it."""
    tree = {"state": state, "history": history.arrays()}
    metadata = {"workload": "sharded-mcmc", "config": dataclasses.asdict(config), "seed": context.seed}
    return checkpoint.save(context, step, tree, metadata)


def restore(context: Context, step: int, state: State, history: History) -> tuple[int, State, History]:
    """Reads back what `save` wrote at `step`; the arrays get the shardings of `state`."""
    like = {"state": state, "history": history.arrays()}
    found, tree, _ = checkpoint.restore(context.storage, step, like)
    return found, tree["state"], history.restored(tree["history"])
