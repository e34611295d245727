"""A client's way to the supervisor of a remote cluster: a Unix socket here that ssh forwards to the one on the head.

The connection lasts in the background until `down`, and is opened again by whoever finds it closed (a laptop that
slept).
"""

import os
import shutil
from pathlib import Path

from cluster.record import Cluster, short_folder
from cluster.ssh import Ssh, SshError


class Tunnel:
    """Of one client to one cluster.

    Args:
        cluster: as this client records it.
    """

    def __init__(self, cluster: Cluster):
        assert cluster.access is not None
        self.cluster = cluster
        self.folder = Path(cluster.run_folder)
        self.ssh = Ssh(cluster.access.targets[0], cluster.access, cluster.name, self.folder)

    def open(self) -> str:
        """Opens it if it is not open; returns why the head cannot be reached, or ''."""
        if self.ssh.connected():
            return ""
        make_run_folder(self.folder)
        try:
            self.ssh.forward(self.cluster.socket, self.cluster.head_socket, self.folder / "ssh.log")
        except SshError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Ends it and removes its folder."""
        self.ssh.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def client_run_folder(cluster_id: str, user: str = "") -> str:
    """A short folder for a client's sockets; another than Ray's, in case the head is this machine."""
    return short_folder(f"client {user or os.getuid()} {cluster_id}")


def make_run_folder(folder: Path) -> None:
    """Makes a folder that is ours alone: who may enter it may give orders to the cluster.

    Raises:
        SshError: somebody else has made it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise SshError(f"{folder} belongs to another user or is open to others: remove it")
