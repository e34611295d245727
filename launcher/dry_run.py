"""What `up` and `down` would do and what it costs, found out without doing any of it."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from cluster.errors import ClusterError
from cluster.farewell import kept_farewell
from cluster.plan import Action
from cluster.prices import Quote, quotes_of, total
from cluster.provider import Provider, provider_for
from cluster.record import Cluster, cluster_names, load_spec
from cluster.spec import ClusterSpec
from launcher.bringup import find_existing, require_free_name, require_known, require_purge, require_same_request
from launcher.code_copy import read_code, source_root
from launcher.errors import FailureError
from launcher.job_folder import unfinished_jobs
from launcher.mend import lost_hosts
from launcher.record_copy import refresh
from launcher.version_skew import require_same_launcher
from launcher.went_down import went_down

PURGED = "all of ours goes from its hosts: job records, checkpoints and what scripts have saved there, environments"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a command would do.

    Attributes:
        command: `up` or `down`.
        cluster: its name.
        actions: in their order.
        is_paid: whether the hosts cost money while the cluster is up.
        quotes: everything that is rented, with its price; for `down` what is no more, once it is done.
        notes: what else a person should know before, a sentence each.
        is_adopted: whether the hosts are somebody's, whom they cost as much before and afterwards.
    """

    command: str
    cluster: str
    actions: Sequence[Action]
    is_paid: bool
    quotes: Sequence[Quote]
    notes: Sequence[str] = ()
    is_adopted: bool = False

    @property
    def changes_something(self) -> bool:
        return any(action.verb != "keep" for action in self.actions)

    def to_json(self) -> dict[str, Any]:
        """A dict that JSON can hold."""
        price = total(self.quotes)
        return {
            "command": self.command,
            "cluster": self.cluster,
            "actions": [dataclasses.asdict(action) for action in self.actions],
            "is_paid": self.is_paid,
            "price": None if price is None else dataclasses.asdict(price),
            "rentals": [dataclasses.asdict(quote.rental) | {"usd_per_hour": quote.per_hour} for quote in self.quotes],
            "notes": list(self.notes),
        }


def plan_up(spec: ClusterSpec) -> Plan:
    """What `launcher.bringup.up` would do.

    Raises:
        UserError: what `up` would refuse before it begins anything.
        ClusterConfigError: what the cloud says that the file has wrong, or a mistake in the user's price table.
        FailureError: what is there cannot be asked.
    """
    notes = []
    with contextlib.closing(provider_for(spec)) as provider:
        try:
            existing = find_existing(provider, spec)
            if existing is not None:
                require_same_launcher(existing, read_code(source_root()))
                actions, note = _plan_mend(provider, existing)
                notes.append(f"cluster {spec.name} is up already, since {existing.created}{note}")
            else:
                require_free_name(spec)
                actions = provider.plan_up()
                if spec.name in cluster_names() and provider.resumes:
                    require_same_request(load_spec(spec.name), spec)
                elif spec.name in cluster_names():
                    notes.append(f"what an earlier cluster {spec.name!r} left here goes first")
                    actions = [*provider.plan_down(), *actions]
        except ClusterError as error:
            if not spec.provider.is_paid:
                raise FailureError(str(error)) from error
            why = "; ".join(line.strip().rstrip(".") for line in str(error).splitlines())
            notes.append(f"the cloud cannot be asked, so this is as if nothing were there: {why}")
            actions = provider.plan_anew()
    return _plan("up", spec, actions, notes)


def _plan_mend(provider: Provider, existing: Cluster) -> tuple[list[Action], str]:
    """What would be done to a cluster that is up, and a note on it."""
    known = Cluster.load(existing.name)
    note = ": there is nothing to do"
    lost: list[str] = []
    if known is not None and known.cluster_id == existing.cluster_id and known.alive():
        lost = lost_hosts(known)
    else:  # another client's: there is no way to its supervisor yet
        note = "; whether it has lost hosts is known when this client has joined it"
    mending = provider.plan_mend(lost)
    started = {action.name for action in mending if action.kind == "host"}
    if started:
        note = f"; it has lost hosts, which are brought back while its jobs go on: {', '.join(sorted(started))}"
    elif lost:
        note = f"; it has lost {', '.join(lost)}, which `up` cannot bring back: `down` and `up` begin anew"
    kept = [Action(verb="keep", kind="host", name=host.name) for host in existing.hosts if host.name not in started]
    return [*kept, *mending], note


def plan_down(name: str, *, purge: bool = False) -> Plan:
    """What `launcher.bringup.down` would do.

    Args:
        name: of the cluster.
        purge: as there.

    Raises:
        UserError: no such cluster, or `purge` cannot be done.
        ClusterConfigError: a mistake in the user's price table.
        FailureError: what is there cannot be asked.
        ClusterError: another version of this code has written its record.
    """
    if purge:
        require_purge(name)
    if name not in cluster_names() and (farewell := kept_farewell(name)):
        return Plan(command="down", cluster=name, actions=(), is_paid=False, quotes=(), notes=[str(farewell)])
    require_known(name)
    spec = load_spec(name)
    with contextlib.closing(provider_for(spec)) as provider:
        try:
            actions = provider.plan_down()
        except ClusterError as error:
            raise FailureError(str(error)) from error
    plan = _plan("down", spec, actions, [*_jobs_in_the_way(name), *([PURGED] if purge else [])])
    if not spec.provider.is_paid or any(action.verb == "delete" for action in actions):
        return plan
    return dataclasses.replace(plan, quotes=(), notes=[*plan.notes, _not_ended(spec, actions)])


def _not_ended(spec: ClusterSpec, actions: Sequence[Action]) -> str:
    """Why `down` ends nothing that is billed."""
    if spec.rents_hosts:
        return "its cloud lists no machine of it that runs, so nothing is billed by the hour"
    adopted = ", ".join(action.name for action in actions if action.verb == "keep")
    return f"adopted, and billed on, whether the cluster is up or not: {adopted}"


def _jobs_in_the_way(name: str) -> list[str]:
    cluster = Cluster.load(name)
    if cluster is None:
        return ["it did not come up completely, or is partly down"]
    problem = cluster.problem()
    if (problem or not cluster.alive()) and (farewell := went_down(cluster)):
        return [str(farewell)]
    if problem:
        return [f"{problem}; whether jobs run is not known, so `down` needs --force"]
    if not cluster.alive():
        return ["its processes have ended; what they left is removed"]
    with contextlib.suppress(FailureError):  # what is copied here is what was last known
        refresh(cluster, only_records=True)
    jobs = unfinished_jobs(name)
    if not jobs:
        return []
    return [f"these jobs have not ended: {', '.join(jobs)}; `down` refuses, `down --force` ends them as CANCELLED"]


def _plan(command: str, spec: ClusterSpec, actions: Sequence[Action], notes: Sequence[str]) -> Plan:
    return Plan(
        command=command,
        cluster=spec.name,
        actions=actions,
        is_paid=spec.provider.is_paid,
        quotes=quotes_of(spec),
        notes=notes,
        is_adopted=spec.provider.is_paid and not spec.rents_hosts,
    )
