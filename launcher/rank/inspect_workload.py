"""Looks at a workload with what of it is the user's: `python -m launcher.rank.inspect_workload`, a process of its own.

Its input is a line of JSON: `workload`, `folder`, `settings`, `num_hosts`, `devices_per_host`. The line that it prints
after ANSWER, among whatever the user's code prints, is JSON too: `params`, `package` (that offers the workload, if one
does), and where there are settings `config`, every parameter with its value; or `refused`, which is the user's mistake;
or `absent`, where no package here has it.
"""

import dataclasses
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import jax

from launcher.attempt import ANSWER, jax_config
from workloads.errors import ConfigError
from workloads.layout import Layout
from workloads.params import describe, file_params, function_params, parse
from workloads.registry import WORKLOADS, load_reference
from workloads.target import parse_target
from workloads.user import UserWorkload, check, find_workload, installed_workload, load_function

HINT = (
    "\nOn a rank JAX is initialised before the module is imported: leave that line out, or run the file as a script, "
    "with `spmd-launch run -- python FILE`"
)

EXIT_HINT = '\nIt ends Python when it is imported: have it do so below `if __name__ == "__main__":`'


def main() -> None:
    question = json.loads(sys.stdin.readline())
    try:
        answer = look(question)
    except ConfigError as error:
        answer = {"refused": str(error)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's module raises is told
        answer = {"refused": _in_words(question, error)}
    print(f"\n{ANSWER}{json.dumps(answer)}", flush=True)


def _in_words(question: dict[str, Any], error: BaseException) -> str:
    """What the user's module raised, from its first frame on, and what to do where that is known."""
    folder, trace = question["folder"], error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(folder):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip().replace(f"{folder}/", "")
    hint = HINT if "distributed.initialize" in text else EXIT_HINT if isinstance(error, SystemExit) else ""
    return f"{question['workload']}: code of yours cannot be imported on the hosts:\n{text}{hint}"


def look(question: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a workload, and the config that the settings make of them."""
    text, folder = question["workload"], Path(question["folder"])
    installed = installed_workload(text)
    if installed is None and text not in WORKLOADS and parse_target(text) is None:
        return {"absent": True}
    workload = find_workload(text, folder)
    config_class = workload.config_class()
    if isinstance(workload, UserWorkload) and (files := file_params(config_class)):
        raise ConfigError(
            f"{next(iter(files))}: files as parameters are for shipped workloads; read it from the folder"
        )
    answer: dict[str, Any] = {
        "params": [dataclasses.asdict(param) for param in describe(config_class)],
        "package": installed.package if installed else "",
    }
    if question["settings"] is not None:
        config: Any = parse(config_class, question["settings"])
        check(config, Layout(num_hosts=question["num_hosts"], devices_per_host=question["devices_per_host"]))
        answer["config"] = dataclasses.asdict(config)
        check_functions(config, folder)
    return answer


def check_functions(config: Any, folder: Path) -> None:
    """Imports the functions that parameters name, and has each checked as its parameter says.

    Raises:
        ConfigError: there is no such function, or it will not do.
    """
    for name, value in jax_config(dataclasses.asdict(config)).items():  # as in a rank
        jax.config.update(name, value)
    for name, reference in function_params(config).items():
        function = load_function(getattr(config, name), folder)
        if reference is not None:
            load_reference(reference)(function)


if __name__ == "__main__":
    main()
