"""Refuses settings that a spec does not have, with the one that was meant, and asks for those that it lacks."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from cluster.errors import ClusterConfigError, nearest

# What users of other launchers write first.
_KEY_ALIASES = {
    "hosts": "num_hosts",
    "nodes": "num_hosts",
    "num_nodes": "num_hosts",
    "num_workers": "num_hosts",
    "workers": "num_hosts",
    "max_hosts": "num_hosts",
    "min_workers": "min_hosts",
    "spare_hosts": "spares",
    "devices": "devices_per_host",
    "num_devices": "devices_per_host",
    "chips_per_host": "devices_per_host",
    "gpus_per_node": "devices_per_host",
    "cluster_name": "name",
    "environment": "env",
    "env_vars": "env",
    "storage": "storage_path",
    "checkpoint_dir": "storage_path",
    "autostop": "idle_down_after",
    "autodown": "idle_down_after",
    "idle_timeout": "idle_down_after",
    "idle_timeout_minutes": "idle_down_after",
    "lifetime": "max_lifetime",
    "ttl": "max_lifetime",
    "max_age": "max_lifetime",
}


def check_keys(given: Mapping[str, Any], spec: type, prefix: str = "", also: tuple[str, ...] = ()) -> None:
    """Refuses keys that a spec does not have, then keys that it lacks.

    Args:
        given: the mapping to check.
        spec: a dataclass; its fields are the allowed keys, those without a default are required. A field with
            `derived` in its metadata may be there, but is not offered: it is none of the user's.
        prefix: put before a key in the message.
        also: allowed keys that are not fields.
    """
    fields = dataclasses.fields(spec)
    allowed = [*also, *(field.name for field in fields)]
    derived = {field.name for field in fields if field.metadata.get("derived")}
    for key in given:
        if key not in allowed:
            hint = nearest(key, allowed, _KEY_ALIASES)
            offered = [name for name in allowed if name not in derived]
            raise ClusterConfigError(f"{prefix}{key}", f"no such key{hint} (allowed: {', '.join(offered)})")
    for field in fields:
        no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if no_default and field.name not in given:
            raise ClusterConfigError(f"{prefix}{field.name}", "is missing")
