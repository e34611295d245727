"""On how many hosts a job may run: whole slices that its parameters fit, no fewer than the cluster file allows."""

from cluster.spec import ClusterSpec
from launcher.command import NO_PARAMETERS
from launcher.job import JobSpec
from workloads.errors import ConfigError
from workloads.layout import Layout
from workloads.registry import WORKLOADS, checked_config


def job_sizes(spec: JobSpec, cluster: ClusterSpec) -> list[int]:
    """Numbers of hosts, the one that the job wants first."""
    whole = cluster.hardware.hosts_per_slice
    fewest = min(cluster.min_hosts or cluster.num_hosts, spec.num_hosts)
    fewer = [n for n in range(fewest, spec.num_hosts) if n % whole == 0 and _fits(spec, n, cluster.devices_per_host)]
    return [spec.num_hosts, *fewer]


def _fits(spec: JobSpec, num_hosts: int, devices_per_host: int) -> bool:
    if spec.workload not in WORKLOADS:
        return True  # code of the user's, which alone knows
    files = {param: file.name for param, file in spec.files.items() if param not in NO_PARAMETERS}
    layout = Layout(num_hosts=num_hosts, devices_per_host=devices_per_host)
    try:
        checked_config(spec.workload, {**spec.settings, **files}, layout)
    except ConfigError:
        return False
    return True
