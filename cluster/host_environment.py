"""The Python of a remote host: the one that the cluster file names, or an environment made there once a lock file."""

import hashlib
import json
import platform
import sys
from pathlib import Path

from cluster.errors import ClusterError
from cluster.host_facts import MachineFacts
from cluster.provider import Say
from cluster.ssh import Ssh

MAKE_TIMEOUT_S = 1800.0
# What a host needs, with hashes, by the kind of its accelerator: JAX sees no device whose plugin is not there. `make
# lock` solves them again, all to the versions of requirements.lock.
LOCKS = {
    kind: Path(__file__).with_name(name)
    for kind, name in {"cpu": "hosts.lock", "gpu": "hosts-gpu.lock", "tpu": "hosts-tpu.lock"}.items()
}
MAKE = Path(__file__).with_name("make_environment.py")


def host_python(ssh: Ssh, facts: MachineFacts, python: str | None, kind: str, say: Say) -> str:
    """The interpreter that runs our code on a host.

    Args:
        ssh: the way to it.
        facts: of it.
        python: a version, of which an environment is made from our hash-locked requirements if it is not there yet; an
            absolute path, which is taken as it is; None: the version that runs here.
        kind: of the accelerator that JAX is to find there: `cpu`, `gpu` or `tpu`.
        say: receives a line if it will take long.

    Raises:
        ClusterError: no environment can be made there; with the last lines of why.
    """
    if python is not None and python.startswith("/"):
        return python
    version = python or f"{sys.version_info.major}.{sys.version_info.minor}"
    lock = LOCKS[kind].read_bytes()
    key = hashlib.sha256(lock + version.encode()).hexdigest()[:16]
    uv = b"" if facts.uv else _our_uv(facts)
    order = {"home": facts.home, "key": key, "version": version, "lock_bytes": len(lock), "uv": facts.uv,
             "uv_bytes": len(uv)}  # fmt: skip
    ready = f"{facts.home}/env/{key}/bin/python"
    if facts.environments.get(key) is None:
        say(f"{facts.host}: making an environment of Python {version}; minutes, this once")
        ssh.run(["python3", "-c", MAKE.read_text()], json.dumps(order).encode() + b"\n" + lock + uv, MAKE_TIMEOUT_S)
    return ready


def _our_uv(facts: MachineFacts) -> bytes:
    """The uv of this machine, for a host that has none."""
    try:
        from uv import find_uv_bin
    except ImportError as error:
        raise ClusterError(
            f"host {facts.host}: has no uv, and neither has this machine: `pip install uv` here or there"
        ) from error
    if facts.machine != platform.machine() or facts.system != platform.system():
        raise ClusterError(f"host {facts.host}: has no uv, and ours is for {platform.machine()}: install uv there")
    return Path(find_uv_bin()).read_bytes()
