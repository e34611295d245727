"""Has Ray's cluster launcher make, list and end machines: `python -m cluster.on_launcher create|list|delete`.

Reads one line of JSON, so that no credential is in a command line; writes JSON lines: `{"say": ...}` on the way and at
last the answer, or `{"error": ...}`. Ends when its input is closed: nothing is made for a client that is gone.

Only the part of Ray's launcher that talks to the cloud is used. Its own `create_or_update_cluster` would start Ray as
the file says and leave an autoscaler on a head with rights to make and end machines: it could replace a host under a
program that needs all of them. The modules are private, and Ray is pinned to one minor version.
"""

import concurrent.futures
import contextlib
import copy
import io
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from cluster.launcher_errors import advice

Order = dict[str, Any]
START_TIMEOUT_S = 900.0
END_TIMEOUT_S = 600.0
POLL_S = 3.0
AT_ONCE = 8  # requests for machines
ANSWERS = 1  # where answers go; in the process of its own another than what Ray prints to
PANIC = "PANIC"  # how Ray marks its last words
STARTING, RUNNING = "starting", "running"

# The tags, or labels, that mark a machine as ours.
CLUSTER, ID, USER, HOST = "spmd-launch-cluster", "spmd-launch-id", "spmd-launch-user", "spmd-launch-host"


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
        """Asks for a machine for each name, several at once; raises what the first refusal was."""
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
        for future in futures:
            future.result()

    def end(self, nodes: list[str]) -> None:
        self.provider.terminate_nodes(nodes)


class RefusedError(Exception):
    """What cannot be done, in words."""


def create(order: Order) -> Order:
    """Makes the machines that are missing, and waits until all run.

    Returns:
        `machines`, `identity_file` that lets in, and `made`, the names of those that were not there before.
    """
    launcher = Launcher(order, bootstrapped(order))
    own = _own(launcher, order)
    missing = [name for name in order["names"] if name not in {machine["name"] for machine in own}]
    if missing:
        say(f"asking for {', '.join(missing)}")
        launcher.make(missing)
    machines = _wait_until_running(launcher, order)
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
    """`machines`, as they are now."""
    return {"machines": Launcher(order, ready_to_ask(order)).listed()}


def delete(order: Order) -> Order:
    """Ends the machines of one request, and looks until the cloud lists none.

    Returns:
        `lines`, what a person should know; `gone`, whether nothing is left that could cost money.
    """
    launcher = Launcher(order, ready_to_ask(order))
    start = time.monotonic()
    while True:
        nodes = [machine["node"] for machine in launcher.listed() if machine["id"] == order["tags"][ID]]
        if not nodes and time.monotonic() - start >= order["settle_s"]:
            break
        if time.monotonic() - start > END_TIMEOUT_S:
            return {"lines": [f"{', '.join(nodes)} still run after {END_TIMEOUT_S:g} s"], "gone": False}
        if nodes:
            launcher.end(nodes)
        time.sleep(1)
    if order["machines"]["cloud"] == "aws":
        from cluster import aws

        return aws.end_rest(launcher.provider.ec2.meta.client, order["tags"], order["cluster_name"])
    if clean := getattr(launcher.provider, "cleanup_cluster_resources", None):  # Azure's groups and identities
        clean()
    return {"lines": [], "gone": True}


def bootstrapped(order: Order) -> dict[str, Any]:
    """The file completed as Ray does it: networks, keys and groups of the cloud are looked up, or made.

    Ray's cache of this in the common /tmp is not used: it holds what the file says of credentials.
    """
    from ray.autoscaler._private.providers import _get_node_provider_cls
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(_reduced(order))
    validate_config(config)
    is_aws = order["machines"]["cloud"] == "aws"
    node_config = config["available_node_types"][order["machines"]["node_type"]]["node_config"]
    if is_aws:
        from cluster import aws

        aws.mark_volumes(node_config, order["tags"])
        own_profile = node_config.setdefault("IamInstanceProfile", aws.NO_PROFILE) is not aws.NO_PROFILE
    done: dict[str, Any] = _get_node_provider_cls(config["provider"]).bootstrap_config(config)
    if is_aws and not own_profile:
        del done["available_node_types"][order["machines"]["node_type"]]["node_config"]["IamInstanceProfile"]
    return done


def ready_to_ask(order: Order) -> dict[str, Any]:
    """What is enough to list machines; nothing is made where the cloud's provider can do without."""
    return _reduced(order) if order["machines"]["cloud"] != "azure" else bootstrapped(order)


def _reduced(order: Order) -> dict[str, Any]:
    """The file with the one node type of our hosts, under our cluster's name, without what Ray would run on them.

    Machines are ended at `down`, not stopped: a stopped one's disk costs, and so does forgetting it.
    """
    config, node_type = copy.deepcopy(order["config"]), order["machines"]["node_type"]
    chosen = config["available_node_types"][node_type]
    config["provider"]["cache_stopped_nodes"] = False
    return config | {
        "cluster_name": order["cluster_name"],
        "max_workers": max(1, len(order["names"])),
        "available_node_types": {
            node_type: {
                "node_config": chosen["node_config"],
                "resources": chosen.get("resources") or {"CPU": 1},
                "min_workers": 0,
                "max_workers": max(1, len(order["names"])),
            }
        },
        "head_node_type": node_type,
    }


def say(text: str) -> None:
    _answer({"say": text})


def _answer(value: Order) -> None:
    os.write(ANSWERS, json.dumps(value).encode() + b"\n")


def refusal(error: BaseException, machines: dict[str, Any], printed: str = "") -> str:
    """The innermost reason that the cloud gave, whatever Ray has wrapped around it.

    Args:
        error: of Ray's launcher, or ours.
        machines: that were asked for.
        printed: what Ray has written to standard error: its own checks say why only there, and raise an empty error.
    """
    if isinstance(error, RefusedError):
        return str(error)
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    for link in chain:
        response = getattr(link, "response", None)
        told = response.get("Error", {}) if isinstance(response, dict) else {}
        code = str(told.get("Code", "") or getattr(link, "category", ""))
        message = str(told.get("Message", "") or getattr(link, "description", "") or link)
        hint = advice(type(link).__name__, code, message, machines)
        if hint or code:
            said = f"{code}: {message}" if code else message
            return f"{machines['cloud']} refuses: {said}" + (f"\n{hint}" if hint else "")
    panics = [line.partition(" -- ")[2] for line in printed.splitlines() if PANIC in line]
    if panics:
        return f"{machines['cloud']}: {panics[-1]}"
    return f"{machines['cloud']}: {type(error).__name__}: {error}"


class Copy(io.StringIO):
    """Remembers what is written, and writes it to a stream."""

    def __init__(self, stream: TextIO):
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._stream.flush()


def _end_with_client() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


ACTIONS: dict[str, Callable[[Order], Order]] = {"create": create, "list": list_machines, "delete": delete}


def main() -> None:
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_client, daemon=True).start()
    printed = Copy(sys.stderr)
    try:
        with contextlib.redirect_stderr(printed):
            answer = ACTIONS[sys.argv[1]](order)
    except Exception as error:  # noqa: BLE001  whatever the cloud's client raises is told, not shown as a traceback
        traceback.print_exc()  # into the log
        answer = {"error": refusal(error, order["machines"], printed.getvalue())}
    _answer(answer)
    os._exit(0)  # threads of the cloud's client may wait


if __name__ == "__main__":
    ANSWERS = os.dup(1)
    os.dup2(2, 1)  # what Ray prints goes into the log
    main()
