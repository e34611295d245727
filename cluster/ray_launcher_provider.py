"""Machines that Ray's cluster launcher makes in a cloud; what runs on them is brought up over ssh, as on any machines.

All hosts are of one node type of the file, and the first is the head: no Ray but ours is started there, and no
autoscaler that could replace a host under a program that needs all of them.
"""

import dataclasses
import secrets
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil

from cluster.access import Access, Target
from cluster.ask_launcher import CloudRefusedError, ask
from cluster.errors import ClusterError
from cluster.instance_gpus import unsure_of
from cluster.labels import CLUSTER
from cluster.launcher_file import digest, read, setup_commands
from cluster.launcher_request import LauncherRequest
from cluster.launcher_setup import run_all
from cluster.launcher_spec import LauncherProviderSpec
from cluster.on_launcher import RUNNING
from cluster.place_code import Code
from cluster.plan import Action, host_actions
from cluster.provider import Say, Trouble
from cluster.record import Cluster, Host, cluster_folder, home
from cluster.remote_machine import RemoteMachine
from cluster.spec import ClusterSpec
from cluster.ssh import Ssh, SshError
from cluster.ssh_provider import SshProvider, close_tunnel, each, links_folder

SSHD_TIMEOUT_S = 600.0

Machine = dict[str, Any]  # as `cluster.on_launcher` tells it


class RayLauncherProvider:
    """See `cluster.provider.Provider`."""

    resumes: ClassVar[bool] = True

    def __init__(self, spec: ClusterSpec):
        assert isinstance(spec.provider, LauncherProviderSpec)
        self.spec, self.provider, self.name = spec, spec.provider, spec.name
        self.machines, self.file = self.provider.machines, Path(self.provider.file)
        self.names = tuple(f"{spec.name}-{index}" for index in range(spec.num_hosts + spec.spares))
        self._hosts: SshProvider | None = None
        self._found: LauncherRequest | None = None  # another client's, maybe
        self._unsure = ""  # why it is not known beforehand whether the machines have the right GPUs
        self._asked: tuple[str, ...] = ()  # names of machines that `mend` has asked for

    def find(self) -> Cluster | None:
        request = LauncherRequest.load(self.name)
        asked = request or self._new_request()
        found = [each for each in self._look(asked) if request is None or each["id"] == request.request_id]
        running = {each["name"]: each for each in found if each["state"] == RUNNING}
        if asked.names[0] not in running:  # the head, which knows whether the cluster is up
            return None
        hosts = self._connect([running[name] for name in asked.names if name in running], asked.identity_file)
        try:
            cluster = hosts.find()
        except SshError:
            if request is None or Cluster.load(self.name) is not None:
                raise  # it came up, and may run: what `up` would make anew, it would also delete
            return None  # ours, and still booting
        self._found = dataclasses.replace(asked, request_id=running[asked.names[0]]["id"])
        return cluster

    def create(self, code: Code, say: Say, head_has_code: Callable[[], None]) -> Cluster:
        request = LauncherRequest.load(self.name) or self._new_request()
        self._require_key(request)
        self._found = None
        close_tunnel(self.name)
        (cluster_folder(self.name) / "cluster.json").unlink(missing_ok=True)
        what = self.machines.machine_type or self._kind()
        say(f"{self.machines.cloud}, {self.machines.region}: {len(self.names)} x {what}, {self._market()}")
        if self._unsure:
            say(f"! {self._not_known()}: it is compared when they are up, and paid for")
        if not self.spec.storage_outlives_hosts:
            say("! checkpoints lie on the machines' own disks, and go with them; storage_path: s3://BUCKET/... keeps "
                "them")  # fmt: skip
        node_type = request.config["available_node_types"][self.machines.node_type]
        if self.machines.cloud == "aws" and "IamInstanceProfile" not in node_type["node_config"]:
            say(f"! {self.file.name} names no IamInstanceProfile, so the head cannot end these machines, only `down`")
        answer = self._make(request, self.names, say)
        request = dataclasses.replace(request, identity_file=answer["identity_file"], asked=False)
        request.save()
        hosts = self._connect(answer["machines"], request.identity_file)
        if answer["made"]:  # other machines had these names before
            hosts.machines[0].ssh.known_hosts.unlink(missing_ok=True)
        say(f"waiting for sshd on {len(self.names)} host(s)")
        hosts.wait_for_sshd(hosts.machines, SSHD_TIMEOUT_S)
        self._set_up(hosts.machines, request, say)
        return hosts.create(code, say, head_has_code)

    def _make(self, request: LauncherRequest, names: tuple[str, ...], say: Say) -> dict[str, Any]:
        """Asks for those of a request's machines that are not there."""
        dataclasses.replace(request, asked=True).save()
        try:
            answer = ask("create", dataclasses.replace(request, names=names), say)
        except CloudRefusedError:
            request.save()  # no machine can come up unseen, but for those of an earlier order
            raise
        dataclasses.replace(request, asked=False).save()
        return answer

    def plan_up(self) -> list[Action]:
        request = LauncherRequest.load(self.name)
        found = self._list(request) if request is not None else []
        return self._plan({each["name"] for each in found if request and each["id"] == request.request_id})

    def plan_anew(self) -> list[Action]:
        return self._plan(set())

    def _plan(self, there: set[str]) -> list[Action]:
        words = [self.machines.machine_type, self.machines.region, self._market()]
        detail = ", ".join(filter(None, [*words, self._not_known() if self._unsure else ""]))
        machines = [
            Action(verb="keep" if name in there else "create", kind=self._kind(), name=name, detail=detail)
            for name in self.names
        ]
        return [*machines, *host_actions("start", self.names, self.spec.accelerator)]

    def plan_mend(self, lost: Sequence[str]) -> list[Action]:
        request = LauncherRequest.load(self.name) or self._found or self._new_request()
        there = self._running(request)
        missing = [name for name in self.names if name not in there]
        machines = [action for action in self._plan(set(there)) if action.verb == "create"]
        return [*machines, *(Action(verb="start", kind="host", name=name) for name in dict.fromkeys([*missing, *lost]))]

    def mend(self, cluster: Cluster, lost: Sequence[str], code: Code, say: Say) -> Sequence[Host]:
        request = LauncherRequest.load(self.name)
        assert request is not None  # `attach` has kept it
        there = self._running(request)
        self._asked = tuple(name for name in lost if name not in there)
        if self._asked:
            for name in self._asked:  # before: who goes on after a kill finds the new machines there already
                Ssh(Target(name), Access(targets=()), self.name, links_folder(self.name)).forget_host_key()
            self._make(request, self._asked, say)
            there = self._running(request)
        hosts = self._connect([there[name] for name in self.names if name in there], request.identity_file)

        def prepare(machine: RemoteMachine) -> bool:
            try:
                hosts.wait_for_sshd([machine], SSHD_TIMEOUT_S if machine.host in self._asked else 0.0)
                self._set_up([machine], request, say)
            except ClusterError as error:  # the others need not stay lost for it
                say(f"! {error}")
                return False
            return True

        machines = [machine for machine in hosts.machines if machine.host in lost]
        able = [machine.host for machine, is_able in zip(machines, each(machines, prepare), strict=True) if is_able]
        if not able:
            raise ClusterError(f"none of {', '.join(lost)} could be brought back")
        back = hosts.mend(cluster, able, code, say)
        self._end_useless(set(self._asked) - {host.name for host in back}, say)
        return back

    def _end_useless(self, names: Collection[str], say: Say) -> None:
        """Ends machines that were asked for and are no hosts: they would cost as long as the cluster is up."""
        if names:
            say(f"ending {', '.join(sorted(names))} again")
            try:
                self._end(sorted(names))
            except ClusterError as error:
                say(f"! {', '.join(sorted(names))} may be there still, and cost: {error}")

    def unmend(self, code: Code) -> None:
        try:
            if self._hosts is not None:
                self._hosts.unmend(code)
        finally:  # what costs money, whatever ssh has come to
            self._end(self._asked)

    def _end(self, names: Sequence[str]) -> None:
        """Ends those of a request's machines that have these names."""
        request = LauncherRequest.load(self.name)
        if names and request is not None:
            ask("end", dataclasses.replace(request, names=tuple(names)), lambda _: None)

    def plan_down(self) -> list[Action]:
        request = LauncherRequest.load(self.name)
        if request is None:
            return []
        found = [each for each in self._list(request) if each["id"] == request.request_id]
        return [
            *host_actions("end", [each["name"] for each in found]),
            *(Action(verb="delete", kind=self._kind(), name=each["name"], detail=each["node"]) for each in found),
        ]

    def start_on_head(self, module: str, code: Code) -> subprocess.Popen[bytes]:
        assert self._hosts is not None
        return self._hosts.start_on_head(module, code)

    def attach(self, cluster: Cluster) -> Cluster:
        assert self._hosts is not None
        attached = self._hosts.attach(cluster)
        if self._found is not None:
            self._found.save()  # with it, `down` ends the machines from here too
        return attached

    def purge_problem(self) -> str:
        return ""  # the machines go

    def delete(self, code: Code, *, purge: bool = False) -> list[str]:
        close_tunnel(self.name)
        self.close()
        request = LauncherRequest.load(self.name)
        lines: list[str] = []
        if request is not None:
            try:
                answer = ask("delete", request, lambda _: None)
            except ClusterError as error:
                answer = {"lines": [str(error)], "gone": False}
            lines = answer["lines"]
            if not answer["gone"]:
                (cluster_folder(self.name) / "cluster.json").unlink(missing_ok=True)
                return [*lines, f"machines of {self.name!r} may be there still, and cost: {', '.join(request.names)}"]
        shutil.rmtree(cluster_folder(self.name), ignore_errors=True)
        (home() / "known_hosts" / self.name).unlink(missing_ok=True)
        return lines

    def delete_from_head(self) -> None:
        """Ends all machines of the cluster, the head last; called on the head, with the rights of its instance profile.

        Raises:
            ClusterError: what could not be ended, and what to do.
        """
        if self.machines.cloud != "aws":
            raise ClusterError(
                f"a head on {self.machines.cloud} cannot end its own machines: `down` from the client does"
            )
        from cluster.aws_leftovers import end_from_inside

        addresses = psutil.net_if_addrs().values()
        end_from_inside(self.machines.region, self.name, {each.address for card in addresses for each in card})

    def troubles(self) -> Sequence[Trouble]:
        request = LauncherRequest.load(self.name)
        if request is None:
            return []
        answer = ask("list", request, lambda _: None, taken=True)
        running = {each["name"] for each in answer["machines"] if each["state"] == RUNNING}
        taken = answer["taken"]  # where the cloud does not tell who has ended a machine, nobody asks again unbidden
        return [
            Trouble(
                text=f"machine {name}: {'taken back by the cloud' if name in taken else 'does not run'}",
                head_is_gone=name == self.names[0],
                by_order=name not in taken,
                gone=(name,),
            )
            for name in self.names
            if name not in running
        ]

    def after_down(self) -> str:
        if self.machines.cloud == "gcp":
            return (
                "none of its machines runs any more; those that Google has stopped to take them back are not listed by "
                "Ray's launcher, and their disks cost: `gcloud compute instances list "
                f"--filter=labels.{CLUSTER}={self.name}`"
            )
        return f"all its machines have ended; {self.provider.place} lists none"

    def close(self) -> None:
        if self._hosts is not None:
            self._hosts.close()

    def _kind(self) -> str:
        return {"aws": "EC2 instance", "gcp": "Compute Engine VM", "azure": "Azure VM"}[self.machines.cloud]

    def _not_known(self) -> str:
        return f"whether it has {self.spec.accelerator} is not known ({self._unsure})"

    def _market(self) -> str:
        return "spot" if self.machines.spot else "on demand"

    def _new_request(self) -> LauncherRequest:
        config = read(self.file)
        if digest(config) != self.machines.digest:
            raise ClusterError(f"{self.file} is no longer what it was when the cluster file was read: `up` again")
        return LauncherRequest(
            name=self.name,
            request_id=secrets.token_hex(4),
            machines=self.machines,
            config=config,
            names=self.names,
            identity_file=config["auth"].get("ssh_private_key"),
        )

    def _require_key(self, request: LauncherRequest) -> None:
        key = request.config["auth"].get("ssh_private_key")
        if key is not None and not Path(key).expanduser().exists():
            raise ClusterError(f"{self.file}: auth.ssh_private_key: {key} is not there, so nobody could log in")

    def _look(self, request: LauncherRequest) -> list[Machine]:
        """As `_list`; and sees whether the cluster file names the GPUs that these machines have.

        Raises:
            ClusterConfigError: it names others.
        """
        if self.spec.emulate or self.spec.hardware.kind != "gpu":
            return self._list(request)
        if self.machines.cloud != "aws":
            self._unsure = f"{self.machines.cloud} is not asked"
            return self._list(request)
        answer = ask("list", request, lambda _: None, gpus=True)
        self._unsure = unsure_of(answer["gpus"], self.spec.hardware, self.provider)
        found: list[Machine] = answer["machines"]
        return found

    def _list(self, request: LauncherRequest) -> list[Machine]:
        machines: list[Machine] = ask("list", request, lambda _: None)["machines"]
        return machines

    def _connect(self, machines: Sequence[Machine], identity_file: str | None) -> SshProvider:
        """The way to machines, the head first."""
        targets = tuple(Target(machine["name"], address=machine["address"]) for machine in machines)
        access = Access(targets=targets, user=self.machines.user, identity_file=identity_file)
        self._hosts = SshProvider(self.spec, access)
        return self._hosts

    def _running(self, request: LauncherRequest) -> dict[str, Machine]:
        """Those of a request's machines that run, by name."""
        found = [each for each in self._list(request) if each["id"] == request.request_id]
        return {each["name"]: each for each in found if each["state"] == RUNNING}

    def _set_up(self, machines: Sequence[RemoteMachine], request: LauncherRequest, say: Say) -> None:
        commands = setup_commands(request.config, self.machines.node_type)
        if commands and machines:
            say(f"running {len(commands)} setup command(s) of {self.file.name} on {len(machines)} host(s)")
            each(machines, lambda machine: run_all(machine.ssh, commands))
