"""Looks at a user's workload in a process of its own: `python -m launcher.rank.inspect_workload`.

Its input is a line of JSON: `workload`, `folder`, `settings`, `num_hosts`, `devices_per_host`. The last line that it
prints is JSON too: `params`, and where there are settings `config`, every parameter with its value; or `refused`, which
is the user's mistake.
"""

import dataclasses
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from workloads.errors import ConfigError
from workloads.layout import Layout
from workloads.params import describe, file_params, parse
from workloads.user import check, load

HINT = (
    "\nOn a rank JAX is initialised before the module is imported: leave that line out, or run the file as a script, "
    "with `spmd-launch run -- python FILE`"
)


def main() -> None:
    question = json.loads(sys.stdin.readline())
    try:
        answer = look(question)
    except ConfigError as error:
        answer = {"refused": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever the user's module raises when it is imported is told
        answer = {"refused": _in_words(question, error)}
    print(f"\n{json.dumps(answer)}", flush=True)


def _in_words(question: dict[str, Any], error: Exception) -> str:
    """What the user's module raised, from its first frame on, and what to do where that is known."""
    folder, trace = question["folder"], error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(folder):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip().replace(f"{folder}/", "")
    hint = HINT if "distributed.initialize" in text else ""
    return f"{question['workload']} cannot be imported on the hosts:\n{text}{hint}"


def look(question: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a workload, and the config that the settings make of them."""
    config_class = load(question["workload"], Path(question["folder"])).config_class()
    if files := file_params(config_class):
        raise ConfigError(
            f"{next(iter(files))}: files as parameters are for shipped workloads; read it from the folder"
        )
    answer: dict[str, Any] = {"params": [dataclasses.asdict(param) for param in describe(config_class)]}
    if question["settings"] is not None:
        config: Any = parse(config_class, question["settings"])
        check(config, Layout(num_hosts=question["num_hosts"], devices_per_host=question["devices_per_host"]))
        answer["config"] = dataclasses.asdict(config)
    return answer


if __name__ == "__main__":
    main()
