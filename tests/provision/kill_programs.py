"""What a test kills: `up` and `down` as the command line calls them, in a process that polls quickly."""

import os
from collections.abc import Mapping

from cluster import tpu_delete, tpu_slices
from cluster.config_file import load
from launcher import bringup


def up(file: str, said: str, environment: Mapping[str, str]) -> None:
    """Brings up what a file describes; each line that it says is added to the file `said`."""
    _prepare(environment)
    with open(said, "w", buffering=1) as lines:
        bringup.up(load(file), lambda line: print(line, file=lines))


def down(name: str, environment: Mapping[str, str]) -> None:
    """Takes a cluster down; exit code 1 if something could not be done."""
    _prepare(environment)
    if bringup.down(name, force=False, say=lambda line: None):
        raise SystemExit(1)


def _prepare(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    tpu_slices.FIRST_POLL_S = tpu_delete.FIRST_POLL_S = tpu_delete.SURE_PAUSE_S = 0.02
