"""Hosts that are there already, reached over ssh: checked, given our code and Python, and made Ray nodes.

Nothing on them needs root. What is written there lies in `~/.spmd-launch/hosts/HOST`, and while the cluster is up,
sockets in a folder of /tmp.
"""

import concurrent.futures
import contextlib
import datetime
import secrets
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from cluster.access import Access
from cluster.errors import ClusterError
from cluster.host_facts import problems, warnings
from cluster.machine import MachineUp
from cluster.place_code import Code
from cluster.plan import Action, host_actions
from cluster.provider import Say, Trouble
from cluster.record import Cluster, Host, cluster_folder, home, short_folder
from cluster.remote_host import record_of, rejoin, request_of
from cluster.remote_machine import RemoteMachine, in_use
from cluster.spec import ClusterSpec, SshProviderSpec
from cluster.ssh import Ssh, SshError
from cluster.tunnel import Tunnel, client_run_folder, make_run_folder

T = TypeVar("T")

SSHD_PAUSE_S = 1.0


class SshProvider:
    """See `cluster.provider.Provider`.

    Args:
        spec: of the cluster.
        access: the way to its machines, where the spec does not have it.
    """

    resumes: ClassVar[bool] = False

    def __init__(self, spec: ClusterSpec, access: Access | None = None):
        if access is None:
            assert isinstance(spec.provider, SshProviderSpec)
            access = spec.provider.access
        self.access = access
        self.spec = spec
        self.name = spec.name
        self._links = links_folder(spec.name)
        self.machines = [RemoteMachine(Ssh(target, access, spec.name, self._links), spec) for target in access.targets]
        self._mended: list[RemoteMachine] = []

    def find(self) -> Cluster | None:
        make_run_folder(self._links)
        record = self.machines[0].look().cluster
        if record is None or record["record"] is None or not record["holder_lives"]:
            return None
        return Cluster.from_json(self.name, record["record"])

    def plan_up(self) -> list[Action]:
        return host_actions("start", [machine.host for machine in self.machines], self.spec.accelerator)

    def plan_anew(self) -> list[Action]:
        return self.plan_up()

    def plan_mend(self, lost: Sequence[str]) -> list[Action]:
        return [Action(verb="start", kind="host", name=host, detail="lost, and brought back") for host in lost]

    def plan_down(self) -> list[Action]:
        return host_actions("end", [machine.host for machine in self.machines], "the machine goes on")

    def create(self, code: Code, say: Say, head_has_code: Callable[[], None]) -> Cluster:
        make_run_folder(self._links)
        say(f"looking at {len(self.machines)} host(s)")
        self._require_good(self.machines, say)
        try:
            each(self.machines, lambda machine: machine.prepare(code, say))
            return self._start(code, say, head_has_code)
        except BaseException as error:  # an interrupt too must not leave half a cluster
            left, _ = self.end(code)
            if left and isinstance(error, ClusterError):
                raise ClusterError(f"{error}\nnot all that was begun could be undone:\n{_indented(left)}") from error
            raise

    def mend(self, cluster: Cluster, lost: Sequence[str], code: Code, say: Say) -> Sequence[Host]:
        make_run_folder(self._links)
        head, *others = self.machines
        self._mended = [machine for machine in others if machine.host in lost]
        token = head.ssh.run(["cat", str(Path(head.look().home) / "clusters" / self.name / "token")]).decode()
        known = {host.name: host for host in cluster.hosts}

        def mend(machine: RemoteMachine) -> Host | None:
            try:
                self._require_good([machine], say, beside=[head])
                return rejoin(machine, known[machine.host], cluster, token, code, say)
            except ClusterError as error:
                machine.take_back(code)
                say(f"! {error}")
                return None

        say(f"looking at {', '.join(lost)}")
        back = [host for host in each(self._mended, mend) if host is not None]
        if not back:
            raise ClusterError(f"none of {', '.join(lost)} could be brought back")
        return back

    def unmend(self, code: Code) -> None:
        each(self._mended, lambda machine: machine.take_back(code))

    def start_on_head(self, module: str, code: Code) -> subprocess.Popen[bytes]:
        return self.machines[0].start(code, "-m", module)

    def attach(self, cluster: Cluster) -> Cluster:
        folder = Path(client_run_folder(cluster.cluster_id))
        attached = cluster.seen_from_elsewhere(self.spec, str(folder), self.access)
        if problem := Tunnel(attached).open():
            raise ClusterError(f"cluster {self.name!r}: no way to its head could be opened: {problem}")
        each(self.machines, RemoteMachine.settle)
        attached.save()
        return attached

    def purge_problem(self) -> str:
        make_run_folder(self._links)

        def look(machine: RemoteMachine) -> str:
            try:
                others = machine.other_clusters()
            except SshError:  # `delete` says so
                return ""
            return f"on {machine.host}, {in_use(machine.known.home, others)}" if others else ""

        found = [line for line in each(self.machines, look) if line]
        return f"--purge would take from other clusters what they use: {'; '.join(found)}" if found else ""

    def delete(self, code: Code, *, purge: bool = False) -> list[str]:
        left, reached = self.end(code, purge=purge)
        if reached:
            shutil.rmtree(cluster_folder(self.name), ignore_errors=True)
            if purge:
                self.machines[0].ssh.known_hosts.unlink(missing_ok=True)
        else:
            (cluster_folder(self.name) / "cluster.json").unlink(missing_ok=True)
        return left

    def end(self, code: Code, *, purge: bool = False) -> tuple[list[str], bool]:
        """As `delete`, but that the record here stays.

        Returns:
            Its lines, and whether all machines could be reached.
        """
        make_run_folder(self._links)
        close_tunnel(self.name)

        def remove(machine: RemoteMachine) -> tuple[list[str], bool]:
            try:
                return machine.remove(code, purge), True
            except SshError as error:
                return [f"{error}; what {machine.host} has of the cluster stays until `down` reaches it"], False

        answers = each(self.machines, remove)
        return [line for lines, _ in answers for line in lines], all(done for _, done in answers)

    def troubles(self) -> Sequence[Trouble]:
        return ()

    def delete_from_head(self) -> None:
        pass  # nothing of it is paid for

    def after_down(self) -> str:
        return ""

    def close(self) -> None:
        for machine in self.machines:
            machine.ssh.close()
        shutil.rmtree(self._links, ignore_errors=True)

    def wait_for_sshd(self, machines: Sequence[RemoteMachine], timeout_s: float) -> None:
        """Waits until machines let us in: new ones boot, and learn of our key, some time after they are given to us.

        Raises:
            ClusterError: why one does not, when the time is over.
        """
        make_run_folder(self._links)
        deadline = time.monotonic() + timeout_s

        def wait(machine: RemoteMachine) -> None:
            while True:
                try:
                    machine.ssh.run(["true"])
                    return
                except SshError:
                    if time.monotonic() > deadline:
                        raise
                time.sleep(SSHD_PAUSE_S)

        each(machines, wait)

    def _require_good(self, machines: Sequence[RemoteMachine], say: Say, beside: Sequence[RemoteMachine] = ()) -> None:
        """Refuses machines that cannot be hosts, alone or `beside` those that are.

        Raises:
            ClusterError: why.
        """
        hosts = [machine.known for machine in beside]
        facts = each(machines, RemoteMachine.look)
        self._require_no(problems([*hosts, *facts]))
        if self.spec.image is not None:
            facts = each(machines, lambda machine: machine.fetch_image(say))
            self._require_no(problems([*hosts, *facts]))
        for machine in facts:
            for warning in warnings(machine):
                say(f"! {warning}")

    def _require_no(self, found: Sequence[str]) -> None:
        if found:
            raise ClusterError(f"cluster {self.name!r} cannot be made of these hosts:\n{_indented(found)}")

    def _start(self, code: Code, say: Say, head_has_code: Callable[[], None]) -> Cluster:
        """Starts all machines at once; those without the head wait there until they are told its address."""
        cluster_id, token = uuid.uuid4().hex, secrets.token_hex(32)
        head, *others = self.machines
        for index, machine in enumerate(self.machines):
            machine.begin(code, request_of(machine, index, cluster_id, code), token)
        head_has_code()
        head_up = head.wait_until_up()
        say(f"{head.host}: up, the head")

        def join(machine: RemoteMachine) -> MachineUp:
            up = machine.join(head_up.gcs_address)
            say(f"{machine.host}: up")
            return up

        ups = [head_up, *each(others, join)]
        return Cluster(
            spec=self.spec,
            cluster_id=cluster_id,
            holder=head_up.holder,
            gcs_address=head_up.gcs_address,
            run_folder=short_folder(cluster_id),
            hosts=tuple(record_of(*machine) for machine in zip(self.machines, range(len(ups)), ups, strict=True)),
            created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        )


def links_folder(name: str) -> Path:
    """Where the sockets of connections to a cluster's machines lie, while a command has them open."""
    return Path(short_folder(f"links {home()} {name}"))


def close_tunnel(name: str) -> None:
    """Ends this client's way to a cluster, if there is one."""
    with contextlib.suppress(ClusterError):
        cluster = Cluster.load(name)
        if cluster is not None and cluster.is_remote:
            Tunnel(cluster).close()


def each(machines: Iterable[RemoteMachine], act: Callable[[RemoteMachine], T]) -> list[T]:
    """Does it on all of them at once, and waits for all.

    Raises:
        ClusterError: with what went wrong on each.
    """
    chosen = list(machines)
    with concurrent.futures.ThreadPoolExecutor(max(1, len(chosen))) as pool:
        futures = [pool.submit(act, machine) for machine in chosen]
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, ClusterError):
            raise error
    if any(errors):
        raise ClusterError("\n".join(str(error) for error in errors if error is not None))
    return [future.result() for future in futures]


def _indented(lines: Iterable[str]) -> str:
    return "\n".join("  " + line for line in lines)
