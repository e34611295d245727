"""How ssh reaches the machines of a cluster: named in the cluster file, or told by a cloud. Pure."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from cluster.errors import ClusterConfigError

# None of these can begin with a dash, which ssh would take for an option.
USER = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_HOST = rf"(?:(?P<user>{USER})@)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{{1,5}}))?"


@dataclasses.dataclass(frozen=True)
class Target:
    """Where ssh goes.

    Attributes:
        name: as ssh knows the host, or, with an address, as we call it.
        user: None: as ssh decides, or the same on all hosts.
        port: None: as ssh decides.
        address: of a machine whose name no name service has; its host key is kept under the name.
    """

    name: str
    user: str | None = None
    port: int | None = None
    address: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Target":
        """The inverse of what a person writes: `[user@]name[:port]`, an IPv6 address in brackets.

        Raises:
            ClusterConfigError: it is none.
        """
        match = re.fullmatch(_HOST, text) if isinstance(text, str) else None
        if match is None or not 0 < int(match["port"] or 22) < 2**16:
            raise ClusterConfigError("provider.hosts", f"each must be [user@]name[:port], not {text!r}")
        return cls(match["name"].strip("[]"), match["user"], int(match["port"]) if match["port"] else None)

    @property
    def label(self) -> str:
        """What we call the host: its name, with the port where one is given."""
        name = self.name.replace(":", "-")
        return name if self.port is None else f"{name}-{self.port}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """The way to all machines of a cluster.

    Attributes:
        targets: the head first.
        user: for targets that do not say theirs; None: as ssh decides.
        identity_file: a private key; None: as ssh decides.
    """

    targets: tuple[Target, ...]
    user: str | None = None
    identity_file: str | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Access":
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**value, "targets": tuple(Target(**target) for target in value["targets"])})


def check_login(user: Any, identity_file: Any) -> None:
    """Refuses what ssh cannot be told.

    Raises:
        ClusterConfigError: with the setting, one of a provider.
    """
    if user is not None and not (isinstance(user, str) and re.fullmatch(USER, user)):
        raise ClusterConfigError("provider.user", f"must be a user's name, not {user!r}")
    if identity_file is not None and not _is_file_for_ssh(identity_file):
        problem = f"must be a file (printable, without ${{, which ssh would replace), not {identity_file!r}"
        raise ClusterConfigError("provider.identity_file", problem)


def _is_file_for_ssh(path: Any) -> bool:
    return isinstance(path, str) and bool(path) and path.isprintable() and "${" not in path
