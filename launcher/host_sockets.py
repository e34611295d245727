"""What an agent tells of the sockets on its machine; `launcher.exposure` judges it."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import psutil

from cluster.processes import MARKER, ProcessId, marked_processes
from cluster.sockets import Listening, listening, machine_id, port_range

if TYPE_CHECKING:  # it imports Ray, and the command line reads what stands here
    from launcher.host_attempt import HostAttempt


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankHere:
    """A rank that runs on a machine.

    Attributes:
        words: which one.
        coordinator: host:port of the coordination service, if it serves it; else ''.
        mutual_tls: whether that service asks for certificates.
    """

    words: str
    coordinator: str = ""
    mutual_tls: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostSockets:
    """What an agent sees.

    Attributes:
        host: its host's name.
        address: its host's.
        machine: emulated hosts on one machine have one, and see the same.
        port_range: first and last port that the kernel chooses from.
        sockets: of the cluster's processes on that machine.
        ranks: by pid, of this host alone.
    """

    host: str
    address: str
    machine: str
    port_range: tuple[int, int]
    sockets: tuple[Listening, ...]
    ranks: Mapping[int, RankHere]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "HostSockets":
        return cls(
            **{
                **value,
                "port_range": tuple(value["port_range"]),
                "sockets": tuple(Listening.from_json(one) for one in value["sockets"]),
                "ranks": {int(pid): RankHere(**rank) for pid, rank in value["ranks"].items()},
            }
        )


def look_at_sockets(host: str, address: str, attempts: Iterable["HostAttempt"]) -> HostSockets:
    """What the cluster's processes on this machine listen on. Runs in an agent, whose session is the holder's."""
    return HostSockets(
        host=host,
        address=address,
        machine=machine_id(),
        port_range=port_range(),
        sockets=tuple(listening(_processes_of_the_cluster())),
        ranks={attempt.process.pid: _rank(attempt) for attempt in attempts if attempt.process.running},
    )


def _processes_of_the_cluster() -> set[ProcessId]:
    """By marker and session, and by descent from the raylet: its workers rename themselves."""
    found = set(marked_processes(os.environ.get(MARKER, ""), ProcessId.of(os.getsid(0))))
    raylet = psutil.Process(os.getppid())
    identities = {ProcessId.of(process.pid) for process in (raylet, *raylet.children(recursive=True))}
    return found | {identity for identity in identities if identity is not None}


def _rank(attempt: "HostAttempt") -> RankHere:
    serves = attempt.coordinator
    return RankHere(
        words=f"rank {attempt.task.rank}",
        coordinator=serves["address"] if serves else "",
        mutual_tls=bool(serves and serves["mutual_tls"]),
    )
