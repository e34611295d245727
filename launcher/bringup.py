"""`up` and `down`: from a cluster file to hosts whose agents answer, and back to nothing."""

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Sequence

from cluster.errors import ClusterError
from cluster.farewell import forget, kept_farewell
from cluster.leftovers import InPlace, Place, remember
from cluster.place_code import Code
from cluster.provider import Provider, Say, provider_for
from cluster.record import Cluster, cluster_folder, cluster_names, load_spec, save_spec
from cluster.slices import slice_problems
from cluster.spec import ClusterSpec
from launcher.attempt import HostFacts
from launcher.code_copy import CodeFile, read_code, source_root
from launcher.drain import drain
from launcher.errors import FailureError, UserError
from launcher.go_on import go_on
from launcher.job_folder import all_jobs, jobs_folder, settle_lost_jobs, unfinished_jobs
from launcher.mend import lost_hosts, mend
from launcher.parity import Difference, compare
from launcher.sending import packed
from launcher.starter import Starter
from launcher.up_lock import alone
from launcher.version_skew import digest_launcher, require_same_launcher
from launcher.went_down import last_words

DIED = "the cluster died while the job ran"


@dataclasses.dataclass(frozen=True)
class BringUp:
    """What `up` did.

    Attributes:
        cluster: that is up now.
        facts: one a host; empty if it was up already.
        differences: between hosts, none that matters.
        mended: hosts that it had lost, and has again.
        seconds: it took.
    """

    cluster: Cluster
    facts: Sequence[HostFacts]
    differences: Sequence[Difference]
    seconds: float
    mended: Sequence[str] = ()


def up(spec: ClusterSpec, say: Say) -> BringUp:
    """Brings a cluster up, or finds that it is, and brings back the hosts that it has lost.

    Whatever it half built is gone when it raises.

    Args:
        spec: what is asked for.
        say: receives one line for each step.

    Raises:
        UserError: a cluster of that name is up with another spec or version of this code, or a job has the name.
        FailureError: hosts did not come up or back, or they differ in what matters.
    """
    start = time.monotonic()
    files = read_code(source_root())
    with contextlib.closing(provider_for(spec)) as provider:
        try:
            with alone(spec.name, say):
                existing = _existing(provider, spec)
                if existing is None:
                    cluster, facts, differences = _begin(provider, spec, files, say)
                    return BringUp(cluster, facts, differences, time.monotonic() - start)
            require_same_launcher(existing, files)
            forget(spec.name)
            lost = lost_hosts(existing)
            cluster = mend(provider, existing, lost, packed(files), say) if lost else existing
            return BringUp(cluster, (), (), time.monotonic() - start, mended=lost)
        except ClusterError as error:
            raise FailureError(str(error)) from error


Up = tuple[Cluster, list[HostFacts], list[Difference]]


def _begin(provider: Provider, spec: ClusterSpec, files: Sequence[CodeFile], say: Say) -> Up:
    """Brings up what is not up, with the jobs of an earlier cluster of that name that go on."""
    require_free_name(spec)
    unfinished = unfinished_jobs(spec.name) if provider.resumes else []
    up = cluster, _, _ = _bring_up(provider, spec, files, say)
    forget(spec.name)
    if unfinished and spec.storage_outlives_hosts:
        go_on(cluster, unfinished, say)
    return up


def down(name: str, *, force: bool, say: Say, purge: bool = False) -> list[str]:
    """Ends a cluster; job records, checkpoints and what scripts have saved stay.

    Args:
        name: of the cluster.
        force: end jobs that run as CANCELLED, and forget hosts that cannot be reached, but for those that cost money.
        say: receives one line for each step.
        purge: remove from its hosts all that was ever written there, that too.

    Returns:
        What had to be forced or could not be done, one line each.

    Raises:
        UserError: no such cluster, jobs run and `force` is not set, or `purge` cannot be done.
        FailureError: its head, or another host, cannot be reached, or its jobs' records cannot be had in full, and
            `force` is not set; or what costs money may be there still.
        ClusterError: another version has brought it up, so that it cannot be asked for jobs, and `force` is not set.
    """
    if purge:
        require_purge(name)
    if name not in cluster_names() and (farewell := kept_farewell(name)):
        forget(name)
        return [str(farewell)]
    require_known(name)
    try:
        cluster = Cluster.load(name)
    except ClusterError:
        if not force:
            raise
        cluster = None
    if cluster is not None:
        drain(cluster, lambda: _find(cluster.spec), say, force=force)
    files = read_code(source_root())
    spec = load_spec(name)
    with contextlib.closing(provider_for(spec)) as provider:
        left = _delete(provider, name, packed(files), "the cluster went down while the job ran", purge=purge)
        after = provider.after_down()
    if name in cluster_names():  # some host could not be reached, or what costs money may be there
        if spec.rents_hosts:
            raise FailureError("\n".join([_still_billed(name), *left]))
        if not force:
            what = f"cluster {name!r} is not down everywhere; again when all can be reached, or --force:"
            raise FailureError("\n".join([what, *left]))
        shutil.rmtree(cluster_folder(name))
        after = ""  # it was not brought to its end
    forget(name)
    if after:
        say(after)
    return left


def _find(spec: ClusterSpec) -> Cluster | None:
    """What is up of that name on its hosts, looked at anew."""
    with contextlib.closing(provider_for(spec)) as provider:
        return provider.find()


def _still_billed(name: str) -> str:
    return (
        f"cluster {name!r} is not down, and what costs money may be there still, so its record stays, --force or not: "
        f"`spmd-launch down {name}` again; only where its cloud's own console shows nothing of it, remove "
        f"{cluster_folder(name)} by hand"
    )


def require_purge(name: str) -> None:
    """Refuses `down --purge` where it cannot do what it says, before anything is taken down.

    Raises:
        UserError: why.
        FailureError: its cloud cannot be asked where its hosts are.
        ClusterError: another version has brought it up.
    """
    if name not in cluster_names() and (farewell := kept_farewell(name)):
        again = "its hosts are not known here any more: `up` of its file, then `down --purge`"
        raise UserError(f"--purge: {farewell.sentence.splitlines()[0]}, and {again}")
    require_known(name)
    with contextlib.closing(provider_for(load_spec(name))) as provider:
        try:
            problem = provider.purge_problem()
        except ClusterError as error:
            raise FailureError(str(error)) from error
    if problem:
        raise UserError(problem)


def require_known(name: str) -> None:
    """Refuses a name of no cluster that has left a trace here.

    Raises:
        UserError: with the names that there are.
    """
    if name not in cluster_names():
        known = ", ".join(cluster_names()) or "there is none"
        raise UserError(f"no cluster {name!r} (known: {known})")


def find_existing(provider: Provider, spec: ClusterSpec) -> Cluster | None:
    """The cluster of that name that is up: known here, or found on its hosts, where another client brought it up.

    Raises:
        UserError: it is up with another spec.
        ClusterError: the hosts cannot be asked.
    """
    known = Cluster.load(spec.name)
    if known is not None and not known.is_remote and known.alive():
        return _as_asked(known, spec)
    found = provider.find()  # of a remote one only its head knows whether it runs: a way to the head says nothing
    return None if found is None else _as_asked(found, spec)


def _existing(provider: Provider, spec: ClusterSpec) -> Cluster | None:
    """The same, known here from now on."""
    found = find_existing(provider, spec)
    if found is None:
        return None
    known = Cluster.load(spec.name)
    if known is not None and known.cluster_id == found.cluster_id and known.hosts == found.hosts and known.alive():
        return known
    save_spec(spec)
    return provider.attach(found)


def _as_asked(cluster: Cluster, spec: ClusterSpec) -> Cluster:
    if not spec.is_met_by(cluster.spec):
        raise UserError(_describe_change(cluster.spec, spec, "is up"))
    return cluster


def require_free_name(spec: ClusterSpec) -> None:
    """Refuses a cluster that would have the name of a job.

    Raises:
        UserError: with what to do.
    """
    if (jobs_folder() / spec.name).exists():
        raise UserError(
            f"there is a job {spec.name!r}: a cluster needs another name, or remove it with jobs --prune {spec.name}"
        )


def _bring_up(provider: Provider, spec: ClusterSpec, files: Sequence[CodeFile], say: Say) -> Up:
    code = packed(files)
    if farewell := last_words(spec.name):
        say(str(farewell))
    if spec.name in cluster_names():
        _make_room(provider, spec, code, say)
    save_spec(spec)
    if isinstance(spec.provider, InPlace):
        remember(Place(spec.provider.type, spec.provider.place))
    starters: list[Starter] = []
    try:
        cluster = provider.create(code, say, lambda: starters.append(Starter(provider, code)))
        _require_whole_slices(cluster)
        cluster = dataclasses.replace(cluster, launcher_digest=digest_launcher(files))
        say("starting an agent on each host and counting its devices")
        facts = starters[0].start(cluster, code.digest)
        differences = compare(facts, spec.devices_per_host, spec.jax_hardware)
        _require_alike(spec, differences)
        return provider.attach(cluster), facts, differences
    except BaseException:
        for starter in starters:
            starter.end()
        if provider.resumes:
            say("deleting what was asked for")
        for line in _delete(provider, spec.name, code, "the cluster did not come up"):
            say(f"! {line}")
        raise


def _make_room(provider: Provider, spec: ClusterSpec, code: Code, say: Say) -> None:
    """Ends what an earlier cluster of that name has left, but for what this one goes on with."""
    if provider.resumes:
        require_same_request(load_spec(spec.name), spec)
        settle_lost_jobs(all_jobs(), spec.name, DIED)
        return
    say(f"cleaning up what an earlier cluster {spec.name!r} left")
    left = _delete(provider, spec.name, code, DIED)
    if spec.name in cluster_names():
        raise FailureError("\n".join([f"an earlier cluster {spec.name!r} cannot be removed:", *left]))
    for line in left:
        say(line)


def require_same_request(old: ClusterSpec, new: ClusterSpec) -> None:
    """Refuses to go on where another cluster file has begun: what is there, and billed, would not be found.

    Raises:
        UserError: with what has changed.
    """
    if (old.provider, old.accelerator, old.all_slices) != (new.provider, new.accelerator, new.all_slices):
        raise UserError(_describe_change(old, new, "was asked for"))


def _require_whole_slices(cluster: Cluster) -> None:
    found = slice_problems(cluster.spec.hardware, {host.name: host.place for host in cluster.hosts})
    if found:
        raise FailureError(
            f"cluster {cluster.name!r}: its hosts are not whole slices of {cluster.spec.accelerator}, so nothing was "
            "left running:\n" + "\n".join(f"  {problem}" for problem in found)
        )


def _require_alike(spec: ClusterSpec, differences: Sequence[Difference]) -> None:
    serious = [difference for difference in differences if difference.matters]
    if serious:
        raise FailureError(
            f"cluster {spec.name!r}: its hosts differ, so nothing was left running:\n"
            + "\n".join(f"  {difference}" for difference in serious)
        )


def _delete(provider: Provider, name: str, code: Code, why: str, *, purge: bool = False) -> list[str]:
    forced = provider.delete(code, purge=purge)
    settle_lost_jobs(all_jobs(), name, why)
    return forced


def _describe_change(old: ClusterSpec, new: ClusterSpec, what: str) -> str:
    before, after = old.to_json(), new.to_json()
    changes = ", ".join(f"{key}: {before[key]} -> {after[key]}" for key in after if before[key] != after[key])
    return f"cluster {old.name!r} {what} with another specification ({changes}): `spmd-launch down {old.name}` first"
