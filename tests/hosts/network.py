"""The network of a set of test hosts: a bridge in a namespace of its own, a cable to each host, no way out.

Host I of set N has the address 10.77.N.I; the operator's machine, if it is let in, comes from 10.77.N.1.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tests.hosts.commands import NAMESPACES, command, end_all_in

T = TypeVar("T")
BRIDGE = "br0"
CLONE_NEWNET = 0x40000000


class Network:
    """The switch of one set and its cables.

    Args:
        number: of the set, 0 to 254.
    """

    def __init__(self, number: int):
        self.number = number
        self.prefix = f"slh{number}"
        self.switch = f"{self.prefix}-switch"

    def address(self, index: int) -> str:
        return f"10.77.{self.number}.{index}"

    def namespace(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def namespaces(self) -> list[str]:
        """Every namespace of the set that there is, whoever made it."""
        found = NAMESPACES.iterdir() if NAMESPACES.exists() else iter(())
        return sorted(path.name for path in found if path.name.startswith(f"{self.prefix}-"))

    def up(self) -> None:
        command("ip", "netns", "add", self.switch)
        self._in_switch("link", "set", "lo", "up")
        self._in_switch("link", "add", BRIDGE, "type", "bridge")
        self._in_switch("address", "add", f"{self.address(1)}/24", "dev", BRIDGE)
        self._in_switch("link", "set", BRIDGE, "up")

    def down(self) -> None:
        """Ends every process in the set's namespaces, and removes them with their cables. Idempotent."""
        with suppress(RuntimeError):  # there is none
            command("ip", "link", "delete", self.prefix)
        for namespace in self.namespaces():
            end_all_in(namespace)
            command("ip", "netns", "delete", namespace)

    def let_machine_in(self) -> None:
        """The machine reaches the hosts, and they cannot call it: what it sends is translated, nothing else passes."""
        machine = self.address(254)
        command("ip", "link", "add", self.prefix, "type", "veth", "peer", "name", "machine", "netns", self.switch)
        self._in_switch("link", "set", "machine", "up")
        self._in_switch("route", "add", machine, "dev", "machine")
        command("ip", "address", "add", f"{machine}/32", "dev", self.prefix)
        command("ip", "link", "set", self.prefix, "up")
        route = f"{self.address(0)}/24 via {self.address(1)} dev {self.prefix} onlink src {machine}"
        command("ip", "route", "add", *route.split())
        for rule in (
            "-P FORWARD DROP",
            f"-A FORWARD -i {BRIDGE} -o {BRIDGE} -j ACCEPT",  # some kernels show bridged packets to iptables
            f"-A FORWARD -i machine -o {BRIDGE} -j ACCEPT",
            "-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            f"-t nat -A POSTROUTING -s {machine} -o {BRIDGE} -j SNAT --to-source {self.address(1)}",
        ):
            self.iptables(self.switch, rule)
        command("ip", "netns", "exec", self.switch, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def add_host(self, name: str, index: int) -> None:
        """A namespace with an interface; its hardware address stays the same over boots, as a real card's does."""
        namespace = self.namespace(name)
        card = f"02:4d:00:00:{self.number:02x}:{index:02x}"
        command("ip", "netns", "add", namespace)
        peer = f"peer name eth0 address {card} netns {namespace}"
        self._in_switch("link", "add", _port(index), "type", "veth", *peer.split())
        self._in_switch("link", "set", _port(index), "up")
        command("ip", "-n", namespace, "link", "set", "lo", "up")
        command("ip", "-n", namespace, "address", "add", f"{self.address(index)}/24", "dev", "eth0")
        command("ip", "-n", namespace, "link", "set", "eth0", "up")

    def remove_host(self, name: str, index: int) -> None:
        """The host's side is gone with whatever its kernel would still have sent."""
        with suppress(RuntimeError):  # not there: it had not come that far
            self._in_switch("link", "delete", _port(index))
        if self.namespace(name) in self.namespaces():
            command("ip", "netns", "delete", self.namespace(name))

    def plug(self, index: int) -> None:
        self._in_switch("link", "set", _port(index), "master", BRIDGE)

    def unplug(self, index: int) -> None:
        """At the switch: the host's link stays up, and what it sends goes nowhere, without an error."""
        self._in_switch("link", "set", _port(index), "nomaster")

    def slow(self, namespace: str, address: str, mbit: float) -> None:
        """What a host sends to that address passes at so many Mbit/s; everything else as ever."""
        self.even(namespace)
        for words in (
            "qdisc add dev eth0 root handle 1: htb default 1",
            "class add dev eth0 parent 1: classid 1:1 htb rate 10gbit quantum 60000",
            f"class add dev eth0 parent 1: classid 1:2 htb rate {mbit}mbit burst 64kb quantum 60000",
            f"filter add dev eth0 parent 1: protocol ip u32 match ip dst {address}/32 flowid 1:2",
        ):
            command("tc", "-n", namespace, *words.split())

    def even(self, namespace: str) -> None:
        """Ends `slow`."""
        with suppress(RuntimeError):  # nothing is slow
            command("tc", "-n", namespace, "qdisc", "delete", "dev", "eth0", "root")

    def iptables(self, namespace: str, rule: str) -> None:
        command("ip", "netns", "exec", namespace, "iptables", "-w", *rule.split())

    def _in_switch(self, *argv: str) -> None:
        command("ip", "-n", self.switch, *argv)


def _port(index: int) -> str:
    return f"port{index}"


def within(namespace: Path, act: Callable[[], T]) -> T:
    """Has a thread of this process do it in another network: what it binds stays there."""

    def enter_and_act() -> T:
        network = os.open(namespace, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(network, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(network)
        return act()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(enter_and_act).result()
