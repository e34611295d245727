"""Between the rendezvous and the workload: do all ranks run the same code, config and programs?"""

import dataclasses
from typing import Any

import jax

from launcher.code_copy import digest_code, read_code, source_root
from launcher.rank.control import Message
from workloads.agreement import programs
from workloads.agreement.environment import check_environment, compare_processors, describe_environment
from workloads.agreement.user_launches import watch_launches, why_unsupported
from workloads.context import Context
from workloads.errors import ConfigError
from workloads.params import file_params
from workloads.processor import processor_name
from workloads.user import installed_workload


def agree_before_start(assignment: Message, context: Context) -> None:
    """Compares the environments of all ranks and puts the program barrier in; every rank must call it.

    Args:
        assignment: as the agent sent it; `program_barrier` (true if missing) says whether to compare programs,
            `watch_launches` (false if missing) whether to record launches that do not go through the context.
        context: this rank's.

    Raises:
        EnvironmentMismatchError: on every rank, naming what differs and where.
        ConfigError: launches are to be watched, and this JAX does not let them be seen.
    """
    installed = installed_workload(assignment["workload"])
    with context.phase("environment"):
        extra = {
            "code": digest_code(read_code(source_root())),
            "config": context.config,
            "seed": context.seed,
            "attempt": assignment["attempt_id"],
            "workload": assignment["workload"],
            "package of the workload": installed.package if installed else "",
            "folder": assignment.get("user_folder", "") and assignment["files"]["folder"][0],
            "program barrier": assignment.get("program_barrier", True),
            "watch launches": assignment.get("watch_launches", False),
        }
        check_environment(describe_environment(extra), exchange=context.exchange, host=context.host)
        processor = processor_name() if jax.default_backend() == "cpu" else ""
        different = compare_processors(processor, exchange=context.exchange, host=context.host)
        if different and context.is_first:
            context.emit({"type": "warning", "text": different})
    if assignment.get("program_barrier", True):
        programs.install(context.exchange, host=context.host, emit=context.emit)
    else:
        context.emit({"type": "barrier-off", "why": "switched off for this job"})
    if assignment.get("watch_launches", False) and not watch_launches(context.launches):
        raise ConfigError(f"--watch-launches: {why_unsupported()}; leave it out to run unwatched, or use another JAX")


def shared_config(assignment: Message, config: Any) -> dict[str, Any]:
    """The config as it must be equal on all hosts: of a file its digest or its name as given, not where it lies."""
    values = dataclasses.asdict(config)
    for name in file_params(type(config)):
        shipped = assignment["files"].get(name)
        values[name] = shipped[0] if shipped else assignment["settings"].get(name)
    return values
