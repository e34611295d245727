"""`up` and `down`: from a cluster file to hosts whose agents answer, and back to nothing."""

import asyncio
import concurrent.futures
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from cluster.errors import ClusterError
from cluster.provider import Provider, provider_for
from cluster.record import Cluster, cluster_folder, cluster_names
from cluster.spec import ClusterSpec
from launcher.attempt import HostFacts
from launcher.code_copy import digest_code, pack, read_code, source_root, unpack
from launcher.environment import NAMESPACE
from launcher.errors import FailureError, UserError
from launcher.job_folder import all_jobs, jobs_folder, settle_lost_jobs
from launcher.parity import Difference, compare, gather_facts
from launcher.protocol import Connection
from launcher.storage import probe_storage
from launcher.version_skew import digest_launcher, require_same_launcher

ANSWER_TIMEOUT_S = 120.0
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class BringUp:
    """What `up` did.

    Attributes:
        cluster: that is up now.
        facts: one a host; empty if it was up already.
        differences: between hosts, none that matters.
        seconds: it took.
    """

    cluster: Cluster
    facts: Sequence[HostFacts]
    differences: Sequence[Difference]
    seconds: float


def up(spec: ClusterSpec, say: Say) -> BringUp:
    """Brings a cluster up, or finds that it is; whatever it half built is gone when it raises.

    Args:
        spec: what is asked for.
        say: receives one line for each step.

    Raises:
        UserError: a cluster of that name is up with another spec or version of this code, or a job has the name.
        FailureError: hosts did not come up, or they differ in what matters.
    """
    start = time.monotonic()
    code = read_code(source_root())
    existing = Cluster.load(spec.name)
    if existing is not None and existing.alive():
        if existing.spec != spec:
            raise UserError(_describe_change(existing.spec, spec))
        require_same_launcher(existing, code)
        return BringUp(existing, (), (), time.monotonic() - start)
    if (jobs_folder() / spec.name).exists():
        raise UserError(
            f"there is a job {spec.name!r}: a cluster needs another name, or remove it with jobs --prune {spec.name}"
        )
    provider = provider_for(spec.provider.type)
    if spec.name in cluster_names():
        say(f"cleaning up what an earlier cluster {spec.name!r} left")
        _delete(provider, spec.name, "the cluster died while the job ran")
    digest = digest_code(code)
    try:
        cluster = _create(provider, spec, pack(code), digest, say)
        facts = _start_actors(cluster, digest, say)
        cluster = dataclasses.replace(cluster, launcher_digest=digest_launcher(code))
        cluster.save()
    except ClusterError as error:
        raise FailureError(str(error)) from error
    except BaseException:
        _delete(provider, spec.name, "the cluster did not come up")
        raise
    differences = compare(facts, spec.devices_per_host)
    serious = [difference for difference in differences if difference.matters]
    if serious:
        _delete(provider, spec.name, "the cluster did not come up")
        raise FailureError(
            f"cluster {spec.name!r}: its hosts differ, so nothing was left running:\n"
            + "\n".join(f"  {difference}" for difference in serious)
        )
    return BringUp(cluster, facts, differences, time.monotonic() - start)


def down(name: str, *, force: bool, say: Say) -> list[str]:
    """Ends a cluster; job records and checkpoints stay.

    Returns:
        What had to be forced, one line each.

    Raises:
        UserError: no such cluster, or jobs run and `force` is not set.
        ClusterError: another version has brought it up, so that it cannot be asked for jobs, and `force` is not set.
    """
    if name not in cluster_names():
        known = ", ".join(cluster_names()) or "there is none"
        raise UserError(f"no cluster {name!r} (known: {known})")
    try:
        cluster = Cluster.load(name)
    except ClusterError:
        if not force:
            raise
        cluster = None
    if cluster is not None and cluster.alive():
        try:
            with Connection(cluster.socket) as connection:
                for job in connection.ask({"op": "drain", "force": force})["cancelled"]:
                    say(f"cancelled job {job}")
        except FailureError as error:
            say(f"{error}; ending the cluster all the same")
    kind = cluster.spec.provider.type if cluster is not None else "local"
    return _delete(provider_for(kind), name, "the cluster went down while the job ran")


def connect_ray(provider: Provider, cluster: Cluster) -> Any:
    """Joins the cluster as a driver, with its own token and at its explicit address; returns the module `ray`."""
    os.environ.update(provider.ray_environment(cluster.name))
    import ray

    ray.init(
        address=cluster.gcs_address,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level="error",
        configure_logging=False,
    )
    return ray


def _create(provider: Provider, spec: ClusterSpec, archive: bytes, digest: str, say: Say) -> Cluster:
    """Makes the hosts; imports Ray here meanwhile, which takes as long as a third of it."""
    folder = cluster_folder(spec.name)
    (folder / "code").mkdir(parents=True, exist_ok=True)
    (folder / "blobs").mkdir(exist_ok=True)
    (folder / "blobs" / digest).write_bytes(archive)
    unpack(archive, folder / "code" / digest, digest)
    os.environ.update(provider.ray_environment(spec.name))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        importing = pool.submit(__import__, "ray")
        cluster = provider.create(spec, {"PYTHONPATH": str(folder / "code" / digest)}, say)
        importing.result()
    return cluster


def _start_actors(cluster: Cluster, digest: str, say: Say) -> list[HostFacts]:
    """Starts one agent a host and the supervisor, and hears from all of them."""
    ray = connect_ray(provider_for(cluster.spec.provider.type), cluster)
    say("starting an agent on each host and counting its devices")
    try:
        return asyncio.run(asyncio.wait_for(_actors(ray, cluster, digest), ANSWER_TIMEOUT_S))
    except TimeoutError as error:
        raise FailureError(
            f"cluster {cluster.name!r}: not all agents answered within {ANSWER_TIMEOUT_S:g} s; "
            f"Ray's logs were in {cluster.ray_folder}"
        ) from error
    finally:
        ray.shutdown()


async def _actors(ray: Any, cluster: Cluster, digest: str) -> list[HostFacts]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

    from launcher.agent import Agent
    from launcher.keeper import KeeperActor
    from launcher.supervisor import Supervisor

    spec = cluster.spec
    lasting = {"lifetime": "detached", "max_restarts": -1, "namespace": NAMESPACE, "max_concurrency": 1000}
    on_head = OnNode(cluster.hosts[0].node_id, soft=False)
    keeper = None
    if spec.head_disk_is_private:
        keeper = (
            ray.remote(KeeperActor)
            .options(name="keeper", num_cpus=0, scheduling_strategy=on_head, max_task_retries=-1, **lasting)
            .remote()
        )
    agents = [
        ray.remote(Agent)
        .options(
            name=f"agent:{host.name}",
            num_cpus=1,
            scheduling_strategy=OnNode(host.node_id, soft=False),
            **lasting,
        )
        .remote(
            host.name,
            host.folder,
            host.address,
            spec.accelerator,
            spec.devices_per_host,
            dict(spec.env),
            digest,
            keeper,
        )
        for host in cluster.hosts
    ]
    supervisor = (
        ray.remote(Supervisor)
        .options(name="supervisor", num_cpus=1, scheduling_strategy=on_head, **lasting)
        .remote(cluster.name)
    )
    serving = supervisor.ready.remote()
    archive = ray.put((cluster.folder / "blobs" / digest).read_bytes())
    await asyncio.gather(*(agent.put_code.remote(digest, archive) for agent in agents))
    facts, _, _ = await asyncio.gather(gather_facts(agents), probe_storage(cluster, agents), serving)
    for agent in agents:
        agent.fill_standby.remote()
    return facts


def _delete(provider: Provider, name: str, why: str) -> list[str]:
    forced = provider.delete(name)
    settle_lost_jobs(all_jobs(), name, why)
    return forced


def _describe_change(old: ClusterSpec, new: ClusterSpec) -> str:
    before, after = old.to_json(), new.to_json()
    changes = ", ".join(f"{key}: {before[key]} -> {after[key]}" for key in after if before[key] != after[key])
    return f"cluster {old.name!r} is up with another specification ({changes}): `spmd-launch down {old.name}` first"
