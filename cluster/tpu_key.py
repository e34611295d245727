"""The ssh key that the machines of a cluster are given: the cluster's own, or one that the cluster file names."""

import subprocess
from pathlib import Path

from cluster.errors import ClusterError
from cluster.gcp_spec import GcpTpuProviderSpec
from cluster.record import cluster_folder

KEY = "ssh_key"  # in the cluster's folder, 0600


def private_key(provider: GcpTpuProviderSpec, cluster: str) -> str | None:
    """The file that lets this client in; None: as ssh decides.

    Args:
        provider: what the cluster file says.
        cluster: its name.
    """
    own = cluster_folder(cluster) / KEY
    return provider.identity_file or (str(own) if own.exists() else None)


def make_key(provider: GcpTpuProviderSpec, cluster: str) -> dict[str, str]:
    """Makes the cluster's key where it needs one; returns what the machines' metadata say of it.

    Raises:
        ClusterError: the key that the cluster file names cannot be used.
    """
    if provider.os_login:
        return {}
    private = Path(provider.identity_file or cluster_folder(cluster) / KEY).expanduser()
    public = private.with_name(private.name + ".pub")
    if provider.identity_file is None and not public.exists():
        private.unlink(missing_ok=True)
        _ssh_keygen("-q", "-t", "ed25519", "-N", "", "-C", cluster, "-f", str(private))
    try:
        kind, words = public.read_text().split()[:2]
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"identity_file {private}: its public half {public} cannot be read ({error}); "
            f"`ssh-keygen -y -f {private} > {public}` makes it"
        ) from error
    return {"ssh-keys": f"{provider.login_user}:{kind} {words} {provider.login_user}"}


def _ssh_keygen(*words: str) -> None:
    done = subprocess.run(["ssh-keygen", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"ssh-keygen failed: {done.stderr.strip()}")
