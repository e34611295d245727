"""Programs of ranks for `tests.test_ranks`; without pytest, which each rank would import anew."""

import os
import sys
import time
from typing import Any

import jax

from workloads.context import Context


def leave_a_mark(context: Context) -> list[Any]:
    """What a rank finds, and then leaves in its process for nobody to find."""
    found = [os.environ.get("MARK"), hasattr(jax, "mark"), jax.config.read("jax_enable_x64"), jax.device_count()]
    os.environ["MARK"] = "left"
    jax.mark = True  # type: ignore[attr-defined]
    return found


def end(context: Context, *, how: str) -> None:
    print(f"{how} with pid={os.getpid()};", file=sys.stderr)
    if how == "sleeps":
        (context.output / "child").write_text(str(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")))
        time.sleep(600)
    {"exits": lambda: os._exit(9), "aborts": os.abort, "raises": lambda: {}["no such key"]}[how]()
