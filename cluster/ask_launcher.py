"""The client's side of `cluster.on_launcher`: one order to a cloud, and its answer."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, NotGivenError
from cluster.labels import CLUSTER, ID, USER, own_user
from cluster.launcher_request import LauncherRequest
from cluster.provider import Say
from cluster.record import cluster_folder


class CloudRefusedError(NotGivenError):
    """What the cloud has answered, and what to do; no machine has come of this order."""


def tags(request: LauncherRequest) -> dict[str, str]:
    """What every machine of a request carries."""
    return {CLUSTER: request.name, ID: request.request_id, USER: own_user()}


def ask(what: str, request: LauncherRequest, say: Say, *, gpus: bool = False, taken: bool = False) -> dict[str, Any]:
    """Has `cluster.on_launcher` do it: Ray's launcher prints, ends processes and keeps state, so it has its own.

    Args:
        what: `create`, `list` or `delete`.
        request: of which cluster.
        say: receives what a waiting person wants to know.
        gpus: a list tells also which GPUs machines of this type have; on AWS alone.
        taken: a list tells also which machines the cloud has taken back, where it can.

    Raises:
        CloudRefusedError: what the cloud has refused, and what to do.
        ClusterError: likewise, but machines may have come of it; or it has ended without an answer.
    """
    order = {
        "config": request.config,
        "machines": dataclasses.asdict(request.machines),
        "cluster_name": f"{request.machines.namespace}-{request.name}",
        "names": request.names,
        "tags": tags(request),
        "settle_s": request.settle_s,
        "gpus": gpus,
        "taken": taken,
    }
    folder = cluster_folder(request.name)
    log = folder / "launcher.log" if folder.exists() else Path(os.devnull)
    with open(log, "ab", opener=lambda file, flags: os.open(file, flags, 0o600)) as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cluster.on_launcher", what],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # an interrupt is for us, who end it
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(order, default=str).encode() + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                raise (ClusterError if answer["unsure"] else CloudRefusedError)(answer["error"])
            if "say" not in answer:
                return answer
            say(answer["say"])
        raise ClusterError(f"asking {request.machines.cloud} for machines ended without an answer; see {log}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()
