"""What is asked of a cloud for a cluster: on record before the first call, so that what comes of it is found again."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from cluster.launcher_spec import Machines
from cluster.record import cluster_folder

# A machine that was asked for may be listed only after a while.
SETTLE_S = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LauncherRequest:
    """A request for machines.

    Attributes:
        name: of the cluster.
        request_id: 8 hexadecimal digits, in a tag of every machine.
        machines: that are asked for.
        config: what the launcher's file said then, its secrets too; `down` does not read the file again.
        names: of the machines, the head first.
        identity_file: that lets in; None: as ssh decides.
        asked: machines were asked for, and it is not known that all that came of it have been listed.
    """

    name: str
    request_id: str
    machines: Machines
    config: dict[str, Any] = dataclasses.field(repr=False)
    names: tuple[str, ...]
    identity_file: str | None = None
    asked: bool = False

    @classmethod
    def load(cls, name: str) -> "LauncherRequest | None":
        """The request of that cluster; None if none was begun here."""
        try:
            value = json.loads(_path(name).read_text())
        except FileNotFoundError:
            return None
        return cls(**value | {"machines": Machines(**value["machines"]), "names": tuple(value["names"])})

    def save(self) -> None:
        """Writes it for this user alone, and surely on the disk before it returns."""
        path = _path(self.name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        with open(temporary, "x", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            json.dump(dataclasses.asdict(self), file, indent=1, default=str)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    @property
    def settle_s(self) -> float:
        """For how many seconds from now on a machine could still come up that nobody has seen.

        Not from when it was asked: the process that asks begins by importing and looking, and was ended only lately.
        """
        return SETTLE_S if self.asked else 0.0


def _path(name: str) -> Path:
    return cluster_folder(name) / "launcher.json"
