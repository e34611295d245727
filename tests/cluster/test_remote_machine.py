"""What becomes of our folder on a machine that is purged. Its ssh is a fake that only answers."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from cluster.access import Target
from cluster.place_code import Code
from cluster.remote_machine import RemoteMachine
from cluster.spec import ClusterSpec, SshProviderSpec
from cluster.ssh import CommandError, Ssh, SshError
from tests.cluster.test_host_facts import facts

HOME = "/root/.spmd-launch/hosts/h1"


class FakeSsh:
    """Machine h1, where no cluster of the name is left, but maybe others are."""

    def __init__(self, others: Sequence[str] = (), is_off: bool = False):
        self.target = Target(name="h1")
        self.others = others
        self.is_off = is_off
        self.commands: list[Sequence[str]] = []

    def run(self, command: Sequence[str], data: bytes = b"", timeout_s: float = 60.0) -> bytes:
        if self.is_off:
            raise SshError("host h1: it does not answer")
        if command[0] == "rmdir":
            raise CommandError("host h1: Directory not empty")
        if command[0] == "python3":
            found = dataclasses.asdict(facts("h1", others=list(self.others))) | {"clock": 0.0, "address": ["10.0.0.1"]}
            return json.dumps({key: found[key] for key in found if key not in ("host", "clock_skew_s")}).encode()
        self.commands.append(command)
        return b""


def machine(ssh: FakeSsh) -> RemoteMachine:
    spec = ClusterSpec(name="lab", provider=SshProviderSpec(hosts=("h1",)), num_hosts=1, devices_per_host=1)
    return RemoteMachine(cast(Ssh, ssh), spec)


CODE: Any = Code("0" * 64, b"")


def test_purge_removes_our_folder_and_leaves_what_other_folders_are_beside_it() -> None:
    ssh = FakeSsh()
    assert machine(ssh).remove(CODE, purge=True) == []
    assert ssh.commands == [["rm", "-rf", "--", HOME]]


def test_without_purge_it_stays() -> None:
    ssh = FakeSsh()
    assert machine(ssh).remove(CODE, purge=False) == [] and not ssh.commands


@pytest.mark.parametrize(
    ("others", "words"), [(["b"], f"cluster b uses {HOME}"), (["b", "c"], f"clusters b, c use {HOME}")]
)
def test_a_cluster_that_came_up_meanwhile_keeps_our_folder(others: Sequence[str], words: str) -> None:
    ssh = FakeSsh()
    one = machine(ssh)
    assert one.other_clusters() == ()
    ssh.others = others
    assert one.remove(CODE, purge=True) == [f"h1: {words}, so all of it stays"] and not ssh.commands


def test_a_machine_that_did_not_answer_when_others_were_looked_for_is_asked_again() -> None:
    """Else it would count as one on which `up` has begun nothing, and its purge as done."""
    ssh = FakeSsh(is_off=True)
    one = machine(ssh)
    for ask in (one.other_clusters, lambda: one.remove(CODE, purge=True)):
        with pytest.raises(SshError, match="does not answer"):
            ask()
    ssh.is_off = False
    assert one.other_clusters() == ()
