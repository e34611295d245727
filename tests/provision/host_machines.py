"""Test hosts as the machines of a fake cloud: off until they are given to somebody, with a new disk each time."""

import threading
from collections.abc import Mapping, Sequence

from tests.hosts.machines import TestHosts
from tests.provision.link_local import MachineImage, connect


class HostMachines:
    """See `tests.provision.fake_tpu.Machines`.

    Args:
        hosts: of a set that is up; all of them are switched off.

    Attributes:
        given: `{slice: names of hosts}`.
        image: what is on their disks.
    """

    def __init__(self, hosts: TestHosts):
        self._hosts = hosts
        self._lock = threading.Lock()
        self.given: dict[str, list[str]] = {}
        self.image = MachineImage({})
        self._times = dict.fromkeys(hosts.names, 0)  # that each was given to somebody: a new slice has new addresses
        for host in hosts.hosts.values():
            host.kill()

    def take(self, slice_: str, count: int, metadata: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        own_key = self._hosts.identity.with_suffix(".pub").read_text()
        key = metadata.get("ssh-keys", f"root:{own_key}").partition(":")[2]
        with self._lock:
            taken = [name for names in self.given.values() for name in names]
            free = [name for name in self._hosts.names if name not in taken]
            free = sorted(free, key=self._times.__getitem__)[:count]
            assert len(free) == count, f"{slice_}: {count} machines are asked for, {free} are free"
            self.given[slice_] = free
            for name in free:
                self._times[name] += 1
        for name in free:
            self._hosts.renew(name, key)
            self.image.write(self._hosts[name])
            self._hosts[name].start()  # it boots, as a real one does, while the cloud says already where it is
            connect(self._hosts[name])
        return [(self._hosts[name].address, "") for name in free]

    def give_back(self, slice_: str) -> None:
        with self._lock:
            names = self.given.pop(slice_, [])
        for name in names:
            self._hosts[name].kill()
