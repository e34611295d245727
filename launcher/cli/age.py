"""How old a cluster is, what it has cost, and when it goes down: for `status` and `list`."""

import datetime
from typing import Any

from cluster.durations import in_units
from cluster.errors import ClusterConfigError
from cluster.prices import price_of
from cluster.spec import ClusterSpec


def age_and_cost(spec: ClusterSpec, created: str) -> dict[str, Any]:
    """`age_s` since `up`, and `cost` in USD so far: None where nothing is paid for.

    Args:
        spec: of a cluster, whether or not it can be reached: what cannot be reached costs as much.
        created: when it was brought up, or asked for; ISO 8601.
    """
    since = datetime.datetime.fromisoformat(created)
    age_s = max(0.0, (datetime.datetime.now().astimezone() - since).total_seconds())
    return {"age_s": round(age_s, 1), "cost": _cost(spec, age_s)}


def _cost(spec: ClusterSpec, age_s: float) -> dict[str, Any] | None:
    if not spec.provider.is_paid:
        return None
    unknown = {"usd": None, "usd_per_hour": None, "date": None, "source": None, "spot": None}
    try:
        price = price_of(spec)
    except ClusterConfigError as error:  # the user's own table has a mistake
        return unknown | {"problem": str(error)}
    if price is None:
        return unknown | {"problem": "no price of its hosts is known; prices.toml in the state folder may say one"}
    return {
        "usd": round(price.per_hour * age_s / 3600, 2),
        "usd_per_hour": price.per_hour,
        "date": price.date,
        "source": price.source,
        "spot": price.spot,
        "problem": "",
    }


def describe_age(cluster: dict[str, Any]) -> list[str]:
    """Lines for people, of what `launcher.cli.status.cluster_status` tells."""
    limits = cluster.get("limits")
    idle = f", without a job for {short(limits['idle_s'])}" if limits and limits["idle_s"] else ""
    lines = [f"  up for {short(cluster['age_s'])}{idle}"]
    if cluster["cost"] is not None:
        lines.append(f"  {describe_cost(cluster['cost'])}")
    return lines + ([] if limits is None else [*describe_waiting(limits), *describe_end(limits)])


def describe_waiting(limits: dict[str, Any]) -> list[str]:
    """Of jobs that wait for hosts while none runs, which keeps no cluster up that has a limit."""
    if not limits.get("waiting") or not limits["idle_down_after"]:
        return []
    return [f"! waits for hosts that are lost, which counts as no job: {', '.join(limits['waiting'])}"]


def describe_remains(cluster: dict[str, Any]) -> list[str]:
    """Lines on one of which nothing answers, or that did not come up; of what `cluster_status` tells."""
    lines = [f"  {cluster['message']}"]
    if cluster.get("cost") is not None:
        began = "asked for" if cluster["state"] == "INCOMPLETE" else "up"
        lines.append(f"  {began} {short(cluster['age_s'])} ago: {describe_cost(cluster['cost'])}, if all are there")
    return lines


def describe_cost(cost: dict[str, Any]) -> str:
    """The cost so far, with what it is reckoned from."""
    if cost["usd"] is None:
        return f"cost so far unknown: {cost['problem']}"
    changes = ", and spot prices change" if cost["spot"] else ""
    return f"about ${cost['usd']:.2f} so far, at ${cost['usd_per_hour']:.2f} an hour (of {cost['date']}{changes})"


def describe_end(limits: dict[str, Any]) -> list[str]:
    """When the cluster takes itself down, as far as that is known; of what `launcher.cost_guard` tells."""
    if limits["going_down"]:
        problem = f": {limits['problem']}; it is tried again" if limits["problem"] else ""
        return [f"! goes down, {limits['going_down']}{problem}"]
    if limits["warning"]:
        return [f"! {limits['warning']}"]
    if limits["ends_in_s"] is not None:
        at = datetime.datetime.now() + datetime.timedelta(seconds=limits["ends_in_s"])
        left, limit = short(limits["ends_in_s"]), limits[limits["ends_by"]]
        return [f"  goes down at {at:%H:%M} on {at:%d %B}, in {left}: {limits['ends_by']} is {limit}"]
    return [f"  goes down after {limits['idle_down_after']} without a job"] if limits["idle_down_after"] else []


def short(seconds: float) -> str:
    """A time in units of which the small ones are left out where they say nothing: `2d3h`, `1h5m`, `40s`."""
    for unit in (3600, 60):
        if seconds >= 24 * unit:
            return in_units(seconds - seconds % unit)
    return in_units(seconds)
