"""Deletes from the head what a cluster costs money for: `python -m cluster.delete_from_head NAME`, the head itself too.

Why it could not be deleted goes to standard error, in words.
"""

import subprocess
import sys

from cluster.errors import ClusterError
from cluster.leave import outside_environment
from cluster.provider import provider_for
from cluster.record import Cluster, home

TIMEOUT_S = 900.0
PAUSES_S = (5.0, 15.0, 60.0, 300.0)  # between tries; the last one again and again


def delete_what_costs(name: str) -> str:
    """Has it done by a process that is no part of the cluster; returns why it could not be done, or ''."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cluster.delete_from_head", name],
            env=outside_environment(), cwd=home(), stdin=subprocess.DEVNULL, capture_output=True,
            start_new_session=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return f"what costs money could not be deleted: {error}"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return "" if done.returncode == 0 else (last or [f"exit code {done.returncode}"])[0]


def main(name: str) -> int:
    try:
        cluster = Cluster.load(name)
        if cluster is None:
            raise ClusterError(f"there is no record of cluster {name!r} here")
        provider_for(cluster.spec).delete_from_head()
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
