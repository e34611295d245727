"""What a job gets: a cluster, its part of the hosts, and a name."""

from cluster.farewell import kept_farewell
from cluster.record import Cluster, cluster_names, running_clusters
from launcher.errors import FailureError, UserError
from launcher.job import NAME_RULE, valid_name
from launcher.job_folder import jobs_folder
from launcher.record_names import is_used
from workloads.layout import Layout


def choose_cluster(name: str | None) -> Cluster:
    """The cluster of that name, or the only one that is up.

    Raises:
        UserError: none, or several, or not that one.
        FailureError: its head cannot be reached.
    """
    if name is not None:
        return _named_cluster(name)
    running = running_clusters()
    if len(running) == 1:
        return running[0]
    if not running:
        raise UserError("no cluster is up: `spmd-launch up FILE` starts one")
    names = " or --cluster ".join(cluster.name for cluster in running)
    raise UserError(f"several clusters are up, say which: --cluster {names}")


def _named_cluster(name: str) -> Cluster:
    cluster = Cluster.load(name) if name in cluster_names() else None
    if farewell := kept_farewell(name):
        raise UserError(f"{farewell}; `spmd-launch up FILE` brings it up again")
    if cluster is not None and (problem := cluster.problem()):
        raise FailureError(f"cluster {name!r} cannot be reached: {problem}")
    if cluster is None or not cluster.alive():
        names = ", ".join(cluster.name for cluster in running_clusters())
        raise UserError(f"no cluster {name!r} is up (up: {names or 'none'})")
    return cluster


def choose_layout(cluster: Cluster, num_hosts: int | None) -> Layout:
    """What a job gets of a cluster.

    Args:
        cluster: that is up.
        num_hosts: asked for; None: all.

    Raises:
        UserError: there are not so many, or not in whole slices.
    """
    num_hosts = cluster.spec.num_hosts if num_hosts is None else num_hosts
    if not 1 <= num_hosts <= cluster.spec.num_hosts:
        raise UserError(f"--num-hosts {num_hosts}: cluster {cluster.name!r} has {cluster.spec.num_hosts} host(s)")
    accelerator = cluster.spec.hardware
    if num_hosts % accelerator.hosts_per_slice:
        raise UserError(
            f"--num-hosts {num_hosts}: a job gets whole slices, and one of {accelerator.name} is "
            f"{accelerator.hosts_per_slice} hosts"
        )
    return Layout(num_hosts=num_hosts, devices_per_host=cluster.spec.devices_per_host)


def choose_name(given: str | None, workload: str) -> str:
    """The name of a new job: as given, or the first free WORKLOAD-N.

    Raises:
        UserError: it is no name, or taken.
    """
    if given is None:
        names = (f"{workload}-{number}" for number in range(1, 10**6))
        return next(name for name in names if not is_used(name))
    if not valid_name(given):
        raise UserError(f"--name {given!r}: {NAME_RULE}")
    if given in cluster_names():
        raise UserError(f"--name {given!r}: a cluster has that name")
    if (jobs_folder() / given).exists():
        raise UserError(
            f"--name {given!r}: there is a job of that name; choose another, or `spmd-launch jobs --prune {given}`"
        )
    return given
