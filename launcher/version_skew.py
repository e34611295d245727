"""Client and cluster of two versions. A job brings its own code, but agents and supervisor run what `up` brought.

So workloads may change from job to job, and the launcher may not: the rank that a job brings talks to the agent that is
there. Commands that only ask need no equal versions; what they do not find in an answer, they say
(`launcher.protocol.Line`).
"""

from collections.abc import Sequence

from cluster.record import Cluster
from launcher.code_copy import CodeFile, digest_code
from launcher.errors import UserError

_LAUNCHER = ("launcher/", "cluster/")
_CLIENT = "launcher/cli/"  # runs on no host


def digest_launcher(code: Sequence[CodeFile]) -> str:
    """sha256 over the code that agents, supervisor and ranks must have in common."""
    return digest_code([file for file in code if file.path.startswith(_LAUNCHER) and not file.path.startswith(_CLIENT)])


def require_same_launcher(cluster: Cluster, code: Sequence[CodeFile]) -> None:
    """Refuses to use a cluster that another version of the launcher has brought up.

    Args:
        cluster: that is up.
        code: the client's.

    Raises:
        UserError: naming both, and what to do.
    """
    here = digest_launcher(code)
    if cluster.launcher_digest != here:
        there = cluster.launcher_digest[:12] or "of a version that did not record it"
        raise UserError(
            f"cluster {cluster.name!r} was brought up by another version of spmd-launch: expected launcher code "
            f"{here[:12]}, as here, got {there}; `spmd-launch down {cluster.name} && spmd-launch up FILE`"
        )
