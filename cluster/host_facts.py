"""What a look at a machine has found (`cluster.host_check`), and whether hosts can be made of such machines. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

MIN_FREE_BYTES = 2 * 2**30
MAX_CLOCK_SKEW_S = 60.0
PACKAGES_THAT_MATTER = ("ray", "jax", "jaxlib", "numpy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """One machine.

    Attributes:
        host: what we call it.
        home: our folder there.
        address: of that machine, where this connection came in: where the other hosts reach it.
        hostname, resolves_to: its name, and the IPv4 addresses that the name has there.
        clock_skew_s: its clock minus this one's; the connection's delay is in it.
        free_bytes: on the disk of our folder; -1: unknown.
        writable: '' if our folder can be written, else why not.
        machine: processor, as `uname -m` says.
        python: of the given interpreter: `version`, `packages`, or `error`; empty if none was given.
        container: where the cluster file names an image: `engine`, its path; `error`, why there is none, or '';
            `ends_at_logout`, whether containers of this user end with his last session; `has_image`. Else None.
        uv: where it is there, or ''.
        environments: that we have made there: `{key: interpreter}`.
        cluster: what an earlier cluster of this name has left: `record`, `cluster_id`, `holder_lives`; None: nothing.
        others: names of other clusters that use our folder there: they are up, or are being brought up.
        processes: of clusters of ours that no holder holds: `pid`, `age_s`, `cluster_id`, `command`.
    """

    host: str
    home: str
    address: str
    hostname: str
    resolves_to: tuple[str, ...]
    clock_skew_s: float
    free_bytes: int
    free_shm_bytes: int
    writable: str
    machine: str
    system: str
    python: Mapping[str, Any]
    container: Mapping[str, Any] | None
    uv: str
    environments: Mapping[str, str]
    cluster: Mapping[str, Any] | None
    others: tuple[str, ...]
    processes: tuple[Mapping[str, Any], ...]

    @classmethod
    def from_json(cls, host: str, value: Mapping[str, Any], clock: float) -> "MachineFacts":
        """From the check's answer; `clock` is this machine's when it came."""
        rest = {key: found for key, found in value.items() if key not in ("clock", "address")}
        rest |= {key: tuple(rest[key]) for key in ("resolves_to", "others", "processes")}
        return cls(
            **rest,
            host=host,
            address=(value["address"] or [""])[0],
            clock_skew_s=value["clock"] - clock,
        )


def problems(facts: Sequence[MachineFacts]) -> list[str]:
    """Why these machines cannot be made hosts, one line each; empty if they can."""
    found = [problem for machine in facts for problem in _own_problems(machine)]
    addresses: dict[str, str] = {}
    for machine in facts:
        other = addresses.setdefault(machine.address, machine.host)
        if other != machine.host:
            found.append(f"{machine.host} and {other} are one machine: both have address {machine.address}")
    return found + _odd_pythons(facts)


def _own_problems(machine: MachineFacts) -> list[str]:
    found = []
    if machine.system != "Linux":
        found.append(f"runs {machine.system}; a host must run Linux")
    if not machine.address:
        found.append("its sshd does not say SSH_CONNECTION, so its address is not known")
    if 0 <= machine.free_bytes < MIN_FREE_BYTES:
        found.append(
            f"{machine.free_bytes} bytes ({machine.free_bytes / 2**30:.1f} GiB) are free at {machine.home}, "
            f"at least {MIN_FREE_BYTES / 2**30:g} GiB are needed"
        )
    elif machine.writable:
        found.append(f"{machine.home} cannot be written: {machine.writable}")
    if machine.container is not None and machine.container["error"]:
        found.append(f"cannot run a container for this user: {machine.container['error']}")
    if "error" in machine.python:
        found.append(f"its Python does not run: {machine.python['error']}")
    missing = [name for name, version in machine.python.get("packages", {}).items() if not version]
    if missing:
        found.append(f"its Python has no {', '.join(missing)}")
    return [f"{machine.host}: {problem}" for problem in found]


def _odd_pythons(facts: Sequence[MachineFacts]) -> list[str]:
    """Versions that differ: Ray refuses them with a message about something else, or goes wrong later."""
    first = facts[0].python
    found = []
    for machine in facts[1:]:
        versions = {"Python": machine.python.get("version")} | {
            name: machine.python.get("packages", {}).get(name) for name in PACKAGES_THAT_MATTER
        }
        expected = {"Python": first.get("version")} | {
            name: first.get("packages", {}).get(name) for name in PACKAGES_THAT_MATTER
        }
        found += [
            f"{machine.host}: has {name} {have}, expected {expected[name]}, as {facts[0].host} has"
            for name, have in versions.items()
            if have and expected[name] and have != expected[name]
        ]
    return found


def warnings(machine: MachineFacts) -> list[str]:
    """What does not hinder, but a person should know."""
    found = []
    if abs(machine.clock_skew_s) > MAX_CLOCK_SKEW_S:
        found.append(f"its clock is {machine.clock_skew_s:+.0f} s off this machine's; only times in its logs suffer")
    if machine.address not in machine.resolves_to:
        names = ", ".join(machine.resolves_to) or "nothing"
        found.append(f"its name {machine.hostname} resolves to {names}, not {machine.address}; its address is used")
    if machine.container is not None and machine.container["ends_at_logout"]:
        found.append("containers of this user end when his last session does: `loginctl enable-linger` keeps them")
    found += [_left_over(process, machine) for process in machine.processes]
    return [f"{machine.host}: {warning}" for warning in found]


def _left_over(process: Mapping[str, Any], machine: MachineFacts) -> str:
    text = f"pid {process['pid']} ({process['command']}), {process['age_s']:.0f} s old, is left of"
    if machine.cluster is not None and machine.cluster["cluster_id"] == process["cluster_id"]:
        return f"{text} an earlier cluster of this name: it is ended"
    return f"{text} a cluster of ours that nobody holds any more: `kill {process['pid']}` on {machine.host} ends it"
