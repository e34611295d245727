"""The container in which a host of a cluster runs our commands, where the cluster file names an image."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from cluster.host_container import BOOT
from cluster.host_facts import MachineFacts
from cluster.spec import NO_STORAGE, ClusterSpec
from cluster.ssh import CommandError, Ssh

PULL_TIMEOUT_S = 3600.0
REMOVE_TIMEOUT_S = 60.0
SOURCE = Path(__file__).with_name("host_container.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Container:
    """One container, which is there from its first command until the last that runs in it has ended.

    Attributes:
        engine: path of podman or docker on the host.
        image: as the engine names it.
        name: the same for all commands of a cluster on a host, and nobody else's there.
        home: our folder on the host; shared with it, as is /tmp.
        storage: a folder for checkpoints that is shared too, or ''.
        gpu: whether it sees the host's GPUs.
    """

    engine: str
    image: str
    name: str
    home: str
    storage: str
    gpu: bool

    @classmethod
    def of(cls, spec: ClusterSpec, facts: MachineFacts) -> "Container":
        """That of a cluster with an image on a host.

        Raises:
            CommandError: nothing runs containers there.
        """
        assert spec.image is not None and facts.container is not None
        if facts.container["error"]:
            raise CommandError(f"host {facts.host}: cannot run a container: {facts.container['error']}")
        path = spec.storage_path or NO_STORAGE
        asked = {
            "engine": facts.container["engine"],
            "image": spec.image,
            "home": facts.home,
            "storage": path if path.startswith(("/", "~")) else "",
            "gpu": spec.jax_hardware.kind == "gpu",
        }
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]
        return cls(name=f"spmd-launch-{spec.name}-{digest}", **asked)

    def command(self, argv: Sequence[str]) -> list[str]:
        """What to run on the host for `python3 ARGV` to run in the container, with the same standard streams."""
        return self._ask("enter", *argv)

    def remove(self, ssh: Ssh) -> None:
        """Ends it with all that is in it; there may be none.

        Raises:
            SshError: it does not end.
        """
        ssh.run(self._ask("remove"), timeout_s=REMOVE_TIMEOUT_S)

    def _ask(self, verb: str, *argv: str) -> list[str]:
        return ["python3", "-c", BOOT, SOURCE.read_text(), verb, json.dumps(dataclasses.asdict(self)), *argv]


def pull(ssh: Ssh, engine: str, image: str) -> None:
    """Fetches an image that a host does not have.

    Raises:
        CommandError: with the host, the image and what the engine says.
    """
    try:
        ssh.run([engine, "pull", "--quiet", image], timeout_s=PULL_TIMEOUT_S)
    except CommandError as error:
        raise CommandError(
            f"host {ssh.target.label}: image {image} is not there and cannot be pulled: is its name right, and may "
            f"this host fetch it (`{engine} login`)? {error}"
        ) from error
