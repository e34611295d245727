"""The workload `independent-chains`: chains that never talk to each other, spread over all devices of all hosts."""

import dataclasses
import time

from workloads.context import Context
from workloads.independent_chains.config import Config
from workloads.independent_chains.job import start_job
from workloads.independent_chains.report import assess, write_results
from workloads.result import Result, digest_arrays


def run(config: Config, context: Context, resume: bool = False) -> Result:
    """Samples `config.model`; no device waits for another until the end (or a check or checkpoint on the way).

    Args:
        config: parameters.
        context: this rank.
        resume: go on from the newest good checkpoint, if there is one; the draws are those of a run that never stopped.

    Raises:
        ConfigError: the checkpoint is of other parameters or another seed, or a chain cannot start where it is put.
        ProgramMismatchError: the model is not the same on all hosts that have chains.
        ReplicaDivergenceError: devices compute differently, or ranks hold different results.
    """
    job = start_job(config, context)
    start = job.restore() if resume else 0
    if not start:
        job.check_start()

    clock = time.perf_counter()
    job.sample(start)
    run_s = time.perf_counter() - clock

    history, verdict = job.meet(config.num_transitions, saves=start < config.num_transitions)
    metrics, diagnostics = assess(config, history, job.layout)
    if context.is_first:
        write_results(job, history)

    job.saver.wait()
    times = context.exchange.all_gather("seconds", {"compile_s": job.programs.compile_s, "run_s": run_s})
    slowest = {name: max(seconds[name] for seconds in times) for name in ("compile_s", "run_s")}
    num_draws = config.num_chains * (config.num_transitions - max(start, config.num_warmup))
    return Result(
        metrics=metrics | slowest | {"draws_per_s": num_draws / slowest["run_s"]},
        diagnostics=diagnostics | {"replicas": dataclasses.asdict(verdict)},
        result_digest=digest_arrays(
            {f"{group}/{name}": leaf for group, leaves in history.arrays().items() for name, leaf in leaves.items()}
        ),
    )
