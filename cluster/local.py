"""Emulated hosts on this machine: Ray nodes of one holder process, each with a home, disk and identity of its own."""

import datetime
import os
import secrets
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import ClassVar

from cluster import machine
from cluster.errors import ClusterError
from cluster.machine import LOOPBACK, HostRequest, Request, ray_environment
from cluster.place_code import Code
from cluster.plan import Action, host_actions
from cluster.provider import Say, Trouble
from cluster.record import Cluster, Host, cluster_folder, home, short_folder
from cluster.slices import emulated_place
from cluster.spec import ClusterSpec


class LocalProvider:
    """See `cluster.provider.Provider`."""

    resumes: ClassVar[bool] = False

    def __init__(self, spec: ClusterSpec):
        self.spec = spec
        self.folder = cluster_folder(spec.name)

    def find(self) -> Cluster | None:
        return None  # it would be in the state folder, and the caller has looked there

    def plan_up(self) -> list[Action]:
        return host_actions("start", self._names(), f"emulated, {self.spec.devices_per_host} device(s)")

    def plan_anew(self) -> list[Action]:
        return self.plan_up()

    def plan_mend(self, lost: Sequence[str]) -> list[Action]:
        return []

    def plan_down(self) -> list[Action]:
        return host_actions("end", self._names())

    def create(self, code: Code, say: Say, head_has_code: Callable[[], None]) -> Cluster:
        spec = self.spec
        code.place(self.folder)
        cluster_id = uuid.uuid4().hex
        names = self._names()
        request = Request(
            cluster_id=cluster_id,
            ray_folder=short_folder(cluster_id),
            node_env={"PYTHONPATH": str(code.folder(self.folder))},
            accelerator=spec.accelerator,
            hosts=tuple(
                HostRequest(index=k, name=host, address=LOOPBACK, place=emulated_place(spec.hardware, spec.name, k))
                for k, host in enumerate(names)
            ),
        )
        say(f"starting {spec.num_hosts} emulated host(s) with {spec.devices_per_host} device(s) each")
        try:
            holder = machine.start_holder(spec.name, request, secrets.token_hex(32))
            head_has_code()
            up = machine.wait_until_up(spec.name, holder)
        except BaseException:  # an interrupt too must not leave half a cluster
            self.delete(code)
            raise
        return Cluster(
            spec=spec,
            cluster_id=cluster_id,
            holder=up.holder,
            gcs_address=up.gcs_address,
            run_folder=request.ray_folder,
            hosts=tuple(
                Host(
                    index=k,
                    name=host,
                    node_id=up.node_ids[host],
                    address=LOOPBACK,
                    folder=str(self.folder / "hosts" / host),
                    place=up.places[host],
                )
                for k, host in enumerate(names)
            ),
            created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        )

    def mend(self, cluster: Cluster, lost: Sequence[str], code: Code, say: Say) -> Sequence[Host]:
        raise ClusterError(
            f"an emulated host that has died does not come back: `spmd-launch down {self.spec.name} --force` and `up` "
            "again, then `spmd-launch submit --resume JOB`"
        )

    def unmend(self, code: Code) -> None:
        pass  # nothing was begun

    def start_on_head(self, module: str, code: Code) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", module],
            env=os.environ | ray_environment(self.folder, LOOPBACK) | {"PYTHONPATH": str(code.folder(self.folder))},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def attach(self, cluster: Cluster) -> Cluster:
        return cluster

    def purge_problem(self) -> str:
        return (
            "--purge is for hosts over ssh: emulated ones are this machine, whose state folder is every cluster's; "
            f"`down` without it, and what scripts have saved on them lies in {home() / 'saved'}, to be removed by hand"
        )

    def delete(self, code: Code, *, purge: bool = False) -> list[str]:
        return machine.remove(self.spec.name)

    def delete_from_head(self) -> None:
        pass  # nothing of it is paid for

    def troubles(self) -> Sequence[Trouble]:
        return ()

    def after_down(self) -> str:
        return ""

    def close(self) -> None:
        pass

    def _names(self) -> list[str]:
        return [f"{self.spec.name}-{index}" for index in range(self.spec.num_hosts + self.spec.spares)]
