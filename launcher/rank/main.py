"""A rank, from its assignment to its end: rendezvous, workload, result.

It is a fork of the host's template (`launcher.rank.template`), and ends by `os._exit`: JAX's atexit handler waits for
peers that may never come.
"""

import faulthandler
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from launcher.interactive import WORKLOAD
from launcher.rank.control import Control, Message
from launcher.rank.coordinator_port import PortLostError
from launcher.rank.error_details import error_details
from launcher.rank.memory import peak_bytes
from launcher.rank.progress import Progress

OURS = ("launcher", "workloads")


def run_rank(descriptor: int, lease_s: float) -> NoReturn:
    """Waits for the one assignment on the control descriptor, runs it, and ends this process."""
    control = Control(descriptor, lease_s)
    assignment = control.receive()
    redirect_output(Path(assignment["log"]))
    set_environment(assignment.get("environment", {}))
    os.environ["SPMD_LAUNCH_HOST"] = assignment["host"]  # for `workloads.spmd`, which is not given the context
    started = time.monotonic()
    progress = Progress(control.send)
    progress.start()
    try:
        result = run_assignment(assignment, control, progress)
    except PortLostError as error:
        print(f"spmd-launch: {error}", file=sys.stderr, flush=True)
        control.send(error.event())
        os._exit(1)
    except BaseException as error:  # noqa: BLE001 - what ends the workload, SystemExit too, is told; then we end
        report_error(error, control)
        os._exit(1)
    control.send({"type": "result", "seconds": time.monotonic() - started, **result})
    leave()


def redirect_output(log: Path) -> None:
    """Sends standard output and error of this process, C++ included, to the attempt's log of this rank."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    for text in (sys.stdout, sys.stderr):
        text.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # for `launcher.stacks`, where ptrace is not allowed


def set_environment(variables: Mapping[str, str]) -> None:
    """Takes this attempt's variables, before anything has touched a device; they stand in the log."""
    os.environ.update(variables)
    for name, value in variables.items():
        print(f"spmd-launch: {name}={value}", flush=True)


def run_assignment(assignment: Message, control: Control, progress: Progress) -> Message:
    """Everything between the assignment and the result; returns the result as JSON."""
    progress.emit({"type": "phase", "phase": "import"})
    import jax

    from launcher.faults import Fault
    from launcher.rank.agreement import agree_before_start, shared_config
    from launcher.rank.compile_cache import use_compile_cache
    from launcher.rank.context import make_context
    from launcher.rank.inject import Injector
    from launcher.rank.profile import StepProfiler
    from workloads.input_files import resolve_inputs
    from workloads.params import file_params, parse

    progress.emit({"type": "phase", "phase": "rendezvous"})
    for name, value in assignment["jax_config"].items():
        jax.config.update(name, value)
    injector = Injector(
        [Fault.from_json(fault) for fault in assignment["faults"]],
        rank=assignment["rank"],
        storage=assignment["storage"],
        say=control.send,
        own_disk=assignment.get("own_disk", False),
    )
    injector.at_start()
    use_compile_cache(assignment.get("compile_cache"))
    rendezvous(assignment, control)
    if jax.process_index() != assignment["rank"]:
        raise RuntimeError(
            f"JAX numbers this process {jax.process_index()}, expected {assignment['rank']}, its rank: "
            f"hosts are not in the order of the accelerator's processes"
        )
    control.send({"type": "joined", "num_devices": jax.device_count(), "local_devices": jax.local_device_count()})
    workload = workload_of(assignment, control)
    config_class = workload.config_class()
    config: Any = parse(config_class, resolve_inputs(file_params(config_class), assignment["settings"]))
    profiler = StepProfiler(
        Path(assignment["output"]),
        assignment["host"],
        progress.emit,
        first=assignment.get("profile"),
        asked=control.take_profile,
    )
    context = make_context(assignment, shared_config(assignment, config), injector, control, progress, profiler)
    agree_before_start(assignment, context)
    progress.emit({"type": "phase", "phase": "load"})
    run = workload.run_function()
    progress.emit({"type": "phase", "phase": "run"})
    result = run(config, context, resume=assignment["resume"])
    profiler.finish()
    context.finish_saves()
    injector.at_end()
    context.agree("result")
    metrics = {name: float(value) for name, value in result.metrics.items()}
    context.finite.look_at_result(metrics)
    problems = [*context.finite.problems, *result.diagnostics.get("problems", ())]
    return {
        "metrics": metrics,
        "diagnostics": {**result.diagnostics, **({"problems": problems} if problems else {})},
        "result_digest": result.result_digest,
    }


def workload_of(assignment: Message, control: Control) -> Any:
    """What runs: a workload, shipped or the user's, or the loop of a gang."""
    from workloads.user import find_workload

    folder = assignment.get("user_folder")
    if assignment["workload"] == WORKLOAD:
        from launcher.rank.session import Session

        return Session(control, Path(folder) if folder else None)
    return find_workload(assignment["workload"], Path(folder or ""))


def rendezvous(assignment: Message, control: Control) -> None:
    """Rank 0 serves and publishes; every other rank waits for the address, then joins."""
    from launcher.rank.mutual_tls import coordinator_event
    from launcher.rank.rendezvous import guard_channels, join, serve

    guard_channels(assignment, control.send)
    if assignment["rank"] == 0:
        serve(
            assignment["address"],
            assignment["num_ranks"],
            assignment["tls"],
            lambda address: control.send(coordinator_event(address)),
        )
    else:
        message = control.receive()
        join(message["address"], assignment["num_ranks"], assignment["rank"], assignment["tls"])


def report_error(error: BaseException, control: Control) -> None:
    """Tells the agent what was raised, at once, and leaves it in the log too."""
    is_ours = any(kind.__module__.partition(".")[0] in OURS for kind in type(error).__mro__)
    peak = peak_bytes(resource.getrusage(resource.RUSAGE_SELF))
    details = error_details(error, error.__traceback__, is_ours=is_ours, peak_bytes=peak)
    control.send({"type": "error", "error": details})
    print(details["traceback"], file=sys.stderr, flush=True)


def leave() -> NoReturn:
    """Ends this process well: JAX's shutdown barrier first (a peer that is still busy must not lose its service)."""
    import jax

    jax.distributed.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
