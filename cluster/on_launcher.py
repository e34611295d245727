"""Has Ray's cluster launcher make, list and end machines: `python -m cluster.on_launcher create|list|end|delete`.

Reads one line of JSON, so that no credential is in a command line; writes JSON lines: `{"say": ...}` on the way and at
last the answer, or `{"error": ..., "unsure": ...}`. Ends when its input is closed: nothing is made for a client
that is gone.

Only the part of Ray's launcher that talks to the cloud is used. Its own `create_or_update_cluster` would start Ray as
the file says and leave an autoscaler on a head with rights to make and end machines: it could replace a host under a
program that needs all of them. The modules are private, and Ray is pinned to one minor version.
"""

import concurrent.futures
import contextlib
import copy
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from cluster.instance_gpus import told_by_aws
from cluster.labels import CLUSTER, HOST, ID, USER
from cluster.launcher_config import bootstrapped, ready_to_end, ready_to_list
from cluster.launcher_errors import Copy, RefusedError, UnsureError, is_answer, refusal

Order = dict[str, Any]
START_TIMEOUT_S = 900.0
END_TIMEOUT_S = 600.0
POLL_S = 3.0
AT_ONCE = 8  # requests for machines
ANSWERS = 1  # where answers go; in the process of its own another than what Ray prints to
NO_GROUP = "ResourceNotFoundError"  # of Azure, whose resource group the first `up` makes
STARTING, RUNNING = "starting", "running"


class Launcher:
    """The machines of one cluster in a cloud.

    Args:
        order: `config`, what the launcher's file says; `cluster_name` for Ray's own tag; `tags` of all machines;
            `machines`, see `cluster.launcher_spec.Machines`.
        config: bootstrapped where that is needed.
    """

    def __init__(self, order: Order, config: dict[str, Any]):
        from ray.autoscaler._private.providers import _get_node_provider

        self.tags: dict[str, str] = order["tags"]
        self.config = config
        self.node_type = order["machines"]["node_type"]
        self.internal = order["machines"]["internal_ips"]
        self.provider = _get_node_provider(config["provider"], order["cluster_name"])

    def listed(self) -> list[dict[str, Any]]:
        """All machines of the cluster, whoever has asked for them, by name."""
        found = []
        for node in self.provider.non_terminated_nodes({CLUSTER: self.tags[CLUSTER]}):
            tags = self.provider.node_tags(node)
            running = self.provider.is_running(node)
            address = self._address(node) if running else None
            found.append(
                {
                    "node": node,
                    "name": tags.get(HOST, node),
                    "id": tags.get(ID, ""),
                    "user": tags.get(USER, ""),
                    "state": RUNNING if running and address else STARTING,
                    "address": address,
                }
            )
        return sorted(found, key=lambda machine: (len(machine["name"]), machine["name"]))

    def _address(self, node: str) -> str | None:
        address: str | None = (self.provider.internal_ip if self.internal else self.provider.external_ip)(node)
        return address

    def make(self, names: list[str]) -> None:
        """Asks for a machine for each name, several at once; raises what the first refusal was.

        Raises:
            UnsureError: some may be made all the same.
        """
        from ray.autoscaler.tags import (
            NODE_KIND_WORKER,
            STATUS_UP_TO_DATE,
            TAG_RAY_NODE_KIND,
            TAG_RAY_NODE_NAME,
            TAG_RAY_NODE_STATUS,
            TAG_RAY_USER_NODE_TYPE,
        )

        node_config = self.config["available_node_types"][self.node_type]["node_config"]
        common = {
            TAG_RAY_NODE_KIND: NODE_KIND_WORKER,
            TAG_RAY_USER_NODE_TYPE: self.node_type,
            TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
        }

        def ask(name: str) -> None:
            tags = common | self.tags | {TAG_RAY_NODE_NAME: name, HOST: name}
            self.provider.create_node(copy.deepcopy(node_config), tags, 1)

        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            futures = [pool.submit(ask, name) for name in names]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error if all(map(is_answer, errors)) else UnsureError from error

    def end(self, nodes: list[str]) -> None:
        self.provider.terminate_nodes(nodes)


def create(order: Order) -> Order:
    """Makes the machines that are missing, and waits until all run.

    Returns:
        `machines`, `identity_file` that lets in, and `made`, the names of those that were not there before.

    Raises:
        UnsureError: machines may be there, or come.
    """
    launcher = Launcher(order, bootstrapped(order))
    time.sleep(order["settle_s"])  # what a killed `up` has asked for may not be listed yet, and would be made twice
    own = _own(launcher, order)
    missing = [name for name in order["names"] if name not in {machine["name"] for machine in own}]
    if missing:
        say(f"asking for {', '.join(missing)}")
        launcher.make(missing)
    try:
        machines = _wait_until_running(launcher, order)
    except Exception as error:
        raise UnsureError from error
    identity = launcher.config["auth"].get("ssh_private_key")
    return {"machines": machines, "identity_file": identity, "made": missing}


def _own(launcher: Launcher, order: Order) -> list[dict[str, Any]]:
    found = launcher.listed()
    others = [machine for machine in found if machine["id"] != order["tags"][ID]]
    if others:
        shown = ", ".join(f"{machine['name']} ({machine['node']})" for machine in others)
        raise RefusedError(
            f"there are machines of another cluster {order['tags'][CLUSTER]!r}, made by "
            f"{others[0]['user'] or 'somebody'}: {shown}. Its own client ends them with `down`; or give this cluster "
            "another name, or its launcher's file another cluster_name"
        )
    return found


def _wait_until_running(launcher: Launcher, order: Order) -> list[dict[str, Any]]:
    names, seen = order["names"], dict[str, str]()
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        found = {machine["name"]: machine for machine in launcher.listed()}
        for name in names:
            state = found[name]["state"] if name in found else "not listed"
            if seen.get(name, "not listed") != "not listed" and name not in found:
                raise RefusedError(f"{name} was {seen[name]} and is gone: the cloud has taken it back; `up` again")
            if state == RUNNING != seen.get(name):
                say(f"{name}: {found[name]['node']}, running")
            seen[name] = state
        if all(seen[name] == RUNNING for name in names):
            return [found[name] for name in names]
        if time.monotonic() > deadline:
            states = ", ".join(f"{name}: {seen[name]}" for name in names if seen[name] != RUNNING)
            raise RefusedError(f"not all machines run after {START_TIMEOUT_S:g} s ({states})")
        time.sleep(POLL_S)


def list_machines(order: Order) -> Order:
    """`machines`, as they are now.

    With `taken` in the order also the names of those that the cloud has taken back, where it tells; with `gpus` those
    of their type, see `cluster.instance_gpus`.
    """
    launcher = Launcher(order, ready_to_list(order))
    try:
        answer: Order = {"machines": launcher.listed()}
    except Exception as error:
        if type(error).__name__ != NO_GROUP:
            raise
        answer = {"machines": []}
    if order["taken"]:
        from cluster import aws

        is_aws = order["machines"]["cloud"] == "aws"
        answer["taken"] = aws.taken_back(launcher.provider.ec2.meta.client, order["tags"]) if is_aws else []
    if order["gpus"]:
        answer["gpus"] = told_by_aws(launcher.provider.ec2.meta.client, order["machines"]["machine_type"])
    return answer


def end(order: Order) -> Order:
    """Ends the machines of one request that have these names, those too that were asked for just now."""
    launcher = Launcher(order, ready_to_end(order))
    if left := _end_machines(launcher, order, lambda machine: machine["name"] in order["names"]):
        raise RefusedError(left)
    return {}


def delete(order: Order) -> Order:
    """Ends the machines of one request, and looks until the cloud lists none.

    Returns:
        `lines`, what a person should know; `gone`, whether nothing is left that could cost money.
    """
    launcher = Launcher(order, ready_to_end(order))
    if left := _end_machines(launcher, order, lambda machine: True):
        return {"lines": [left], "gone": False}
    if order["machines"]["cloud"] == "aws":
        from cluster import aws

        return aws.end_rest(launcher.provider.ec2.meta.client, order["tags"], order["cluster_name"])
    if clean := getattr(launcher.provider, "cleanup_cluster_resources", None):  # Azure's groups and identities
        clean()
    return {"lines": [], "gone": True}


def _end_machines(launcher: Launcher, order: Order, is_meant: Callable[[Order], bool]) -> str:
    """Ends machines of one request until none is listed; '' then, else which ones still run after END_TIMEOUT_S."""
    start = time.monotonic()
    while True:
        own = [machine for machine in launcher.listed() if machine["id"] == order["tags"][ID]]
        nodes = [machine["node"] for machine in own if is_meant(machine)]
        if not nodes and time.monotonic() - start >= order["settle_s"]:
            return ""
        if time.monotonic() - start > END_TIMEOUT_S:
            return f"{', '.join(nodes)} still run after {END_TIMEOUT_S:g} s"
        if nodes:
            launcher.end(nodes)
        time.sleep(1)


def say(text: str) -> None:
    _answer({"say": text})


def _answer(value: Order) -> None:
    os.write(ANSWERS, json.dumps(value).encode() + b"\n")


def _end_with_client() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


ACTIONS: dict[str, Callable[[Order], Order]] = {
    "create": create, "list": list_machines, "end": end, "delete": delete,
}  # fmt: skip


def main() -> None:
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_client, daemon=True).start()
    printed = Copy(sys.stderr)
    try:
        with contextlib.redirect_stderr(printed):
            answer = ACTIONS[sys.argv[1]](order)
    except Exception as error:  # noqa: BLE001  whatever the cloud's client raises is told, not shown as a traceback
        traceback.print_exc()  # into the log
        unsure = isinstance(error, UnsureError)
        cause = error.__cause__ or error if unsure else error
        answer = {"error": refusal(cause, order["machines"], printed.getvalue()), "unsure": unsure}
    _answer(answer)
    os._exit(0)  # threads of the cloud's client may wait


if __name__ == "__main__":
    ANSWERS = os.dup(1)
    os.dup2(2, 1)  # what Ray prints goes into the log
    main()
