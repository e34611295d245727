"""Nodes of a Ray cluster that runs already and is not ours, KubeRay's for one: nothing of it is started or stopped.

The client must be on one of its nodes: its supervisor runs there, and writes into the client's own state folder. On the
hosts everything of ours lies in `~/.spmd-launch/hosts/HOST`.
"""

import dataclasses
import datetime
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from cluster.errors import ClusterConfigError, ClusterError
from cluster.place_code import Code
from cluster.plan import Action, host_actions
from cluster.processes import ProcessId
from cluster.provider import Say, Trouble
from cluster.ray_spec import RayProviderSpec
from cluster.record import Cluster, Host, cluster_folder, short_folder, write_json
from cluster.spec import ClusterSpec
from cluster.tunnel import make_run_folder

ANSWER_TIMEOUT_S = 150.0
NO_TOKEN = "Token authentication is enabled but Ray couldn't find an authentication token"


class RayProvider:
    """See `cluster.provider.Provider`."""

    resumes: ClassVar[bool] = False

    def __init__(self, spec: ClusterSpec):
        assert isinstance(spec.provider, RayProviderSpec)
        self.spec = spec
        self.address = spec.provider.address
        self.folder = cluster_folder(spec.name)

    def find(self) -> Cluster | None:
        return None  # another client's has another state folder; `create` refuses its name

    def plan_up(self) -> list[Action]:
        answer = self._ask("plan", None, {"num_hosts": self.spec.num_hosts, "spares": self.spec.spares})
        return [
            Action(verb="start", kind="host", name=name, detail=f"on the node {node}")
            for name, node in zip(answer["hosts"], answer["nodes"], strict=True)
        ]

    def plan_anew(self) -> list[Action]:
        return self.plan_up()

    def plan_mend(self, lost: Sequence[str]) -> list[Action]:
        return []

    def plan_down(self) -> list[Action]:
        try:
            hosts = json.loads((self.folder / "request.json").read_text())["hosts"]
        except FileNotFoundError:
            return []  # nothing had been begun
        return host_actions("end", [host["name"] for host in hosts], "the node goes on")

    def create(self, code: Code, say: Say, head_has_code: Callable[[], None]) -> Cluster:
        cluster_id = uuid.uuid4().hex
        code.place(self.folder)
        write_json(self.folder / "request.json", {"cluster_id": cluster_id, "hosts": [], "raylet": None})
        run_folder = short_folder(cluster_id)
        try:
            say(f"joining the Ray at {self.address}, which is not ours")
            head_has_code()
            order = {"num_hosts": self.spec.num_hosts, "spares": self.spec.spares, "digest": code.digest}
            answer = self._ask("create", code, order | {"cluster_id": cluster_id})
            make_run_folder(Path(run_folder))
            cluster = self._cluster(cluster_id, run_folder, answer)
        except BaseException as error:  # an interrupt too must not leave half a cluster
            try:
                self.delete(code)
            except ClusterError as left:
                raise ClusterError(f"{error}\nwhat was begun could not be undone: {left}") from error
            raise
        say(f"hosts: {', '.join(f'{host.name} ({host.address})' for host in cluster.hosts)}")
        return cluster

    def mend(self, cluster: Cluster, lost: Sequence[str], code: Code, say: Say) -> Sequence[Host]:
        raise ClusterError(
            f"the Ray at {self.address} is not ours, and only its owner can start nodes of it again; then "
            f"`spmd-launch down {self.spec.name}` and `up`"
        )

    def unmend(self, code: Code) -> None:
        pass  # nothing was begun

    def start_on_head(self, module: str, code: Code) -> subprocess.Popen[bytes]:
        return self._start(code, module)

    def _start(self, code: Code | None, *arguments: str) -> subprocess.Popen[bytes]:
        """`python -m ARGUMENTS` with the user's own settings of Ray.

        Args:
            code: that the cluster runs; None: there is no cluster, so the client's own.
            arguments: of Python.
        """
        path = Path(__file__).parent.parent if code is None else code.folder(self.folder)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *arguments],
            env=os.environ | {"PYTHONPATH": str(path), "RAY_USAGE_STATS_ENABLED": "0"},
            cwd=None if code is None else self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def attach(self, cluster: Cluster) -> Cluster:
        return cluster

    def purge_problem(self) -> str:
        return ""  # a node that another cluster uses keeps our folder, and `delete` says so

    def delete(self, code: Code, *, purge: bool = False) -> list[str]:
        lines: list[str] = []
        try:
            request = json.loads((self.folder / "request.json").read_text())
        except FileNotFoundError:
            request = None  # nothing had been begun
        if request is not None and request["hosts"]:
            code.place(self.folder)
            lines = self._remove(code, request, purge)
        if request is not None:
            shutil.rmtree(short_folder(request["cluster_id"]), ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        return lines

    def delete_from_head(self) -> None:
        pass  # nothing of it is paid for

    def troubles(self) -> Sequence[Trouble]:
        return ()

    def after_down(self) -> str:
        return f"detached; the Ray at {self.address} is left as it was"

    def close(self) -> None:
        pass

    def _cluster(self, cluster_id: str, run_folder: str, answer: dict[str, Any]) -> Cluster:
        num_hosts = len(answer["hosts"]) - self.spec.spares
        try:
            spec = dataclasses.replace(self.spec, num_hosts=num_hosts)
        except ClusterConfigError as error:
            raise ClusterError(f"with the {num_hosts} host(s) that this Ray has now: {error}") from error
        return Cluster(
            spec=spec,
            cluster_id=cluster_id,
            holder=ProcessId.from_json(answer["raylet"]),
            gcs_address=self.address,
            run_folder=run_folder,
            hosts=tuple(
                Host(
                    index=index,
                    name=host["name"],
                    node_id=host["node_id"],
                    address=host["address"],
                    folder=f"{host['home']}/clusters/{self.spec.name}/hosts/{host['name']}",
                )
                for index, host in enumerate(answer["hosts"])
            ),
            created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        )

    def _remove(self, code: Code, request: dict[str, Any], purge: bool) -> list[str]:
        order = {"cluster_id": request["cluster_id"], "hosts": request["hosts"], "purge": purge}
        try:
            lines: list[str] = self._ask("remove", code, order)["lines"]
            return lines
        except RayGoneError as error:
            if ProcessId.from_json(request["raylet"]).alive():
                raise ClusterError(f"{error}, though its node here runs: `down` again when it answers") from error
        from cluster.ray_host import remove  # the same, but here and by ourselves

        lines = []
        for host in request["hosts"]:
            folder = f"{host['home']}/clusters/{self.spec.name}"
            if host["is_here"]:
                remove(folder, request["cluster_id"], [], host["home"] if purge else "")
            else:
                lines.append(f"{host['name']}: its Ray has ended, so it cannot be reached; {folder} stays there")
        return lines

    def _ask(self, what: str, code: Code | None, order: dict[str, Any]) -> dict[str, Any]:
        """Has `cluster.on_ray` do it.

        Raises:
            RayGoneError: no Ray listens there.
            ClusterError: what went wrong.
        """
        process = self._start(code, "cluster.on_ray", what)
        line = json.dumps({"name": self.spec.name, "address": self.address} | order).encode() + b"\n"
        try:
            output, errors = process.communicate(line, timeout=ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"the Ray at {self.address} has not answered within {ANSWER_TIMEOUT_S:g} s") from error
        finally:
            process.kill()
            process.wait()
        if not output:
            raise ClusterError(_crash(self.address, errors.decode(errors="replace")))
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        if "error" in answer:
            raise (RayGoneError if answer.get("gone") else ClusterError)(answer["error"])
        return answer


class RayGoneError(ClusterError):
    """No Ray listens at its address any more."""


def _crash(address: str, errors: str) -> str:
    """Why joining ended the process: Ray does that to its drivers."""
    if NO_TOKEN in errors:
        return f"RAY_AUTH_MODE is token here, but no token is given for {address}: set RAY_AUTH_TOKEN_PATH to its file"
    last = "\n".join("  " + line for line in errors.strip().splitlines()[-15:])
    return f"joining the Ray at {address} failed:\n{last or '  without a word'}"
