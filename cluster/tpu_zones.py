"""Which zones have a type of slice, asked when one has refused it: all at once, and for a few seconds only."""

import contextlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import tpu_v2
from google.cloud.location import locations_pb2

from cluster.accelerators import Accelerator
from cluster.errors import ClusterConfigError
from cluster.gcp_spec import GcpTpuProviderSpec
from cluster.prices import all_rows, quotes, tpu_rental

TIMEOUT_S = 4.0  # for the list of zones, and again for what they have
AT_ONCE = 32
MAX_ZONES = 200
SHOWN = 8


def ask_zones(client: tpu_v2.TpuClient, project: str, tpu_type: str) -> dict[str, bool | None]:
    """Whether each zone of a project has that type; None: it did not answer in time."""
    try:
        order = locations_pb2.ListLocationsRequest(name=f"projects/{project}", page_size=MAX_ZONES)
        found = client.list_locations(order, retry=None, timeout=TIMEOUT_S).locations
    except (exceptions.GoogleAPICallError, GoogleAuthError):
        return {}
    zones = [location.location_id for location in found]
    pool = ThreadPoolExecutor(AT_ONCE)
    asked = {zone: pool.submit(_has, client, f"projects/{project}/locations/{zone}", tpu_type) for zone in zones}
    answered, _ = wait(asked.values(), TIMEOUT_S)
    pool.shutdown(wait=False, cancel_futures=True)
    return {zone: future.result() if future in answered else None for zone, future in asked.items()}


def _has(client: tpu_v2.TpuClient, parent: str, tpu_type: str) -> bool | None:
    request = tpu_v2.ListAcceleratorTypesRequest(parent=parent)
    try:
        types = client.list_accelerator_types(request, retry=None, timeout=TIMEOUT_S)
        return any(each.type_ == tpu_type for each in types)
    except (exceptions.GoogleAPICallError, GoogleAuthError):
        return None


def in_words(zones: Mapping[str, bool | None], provider: GcpTpuProviderSpec, accelerator: Accelerator) -> str:
    """What a person who was refused wants to know of other zones; '' where none has answered.

    Args:
        zones: as `ask_zones` returns them.
        provider: in whose zone it was refused.
        accelerator: that was refused.
    """
    if all(has is None for has in zones.values()):
        return ""
    others = [zone for zone, has in zones.items() if has and zone != provider.zone]
    shown = _by_price(others, provider, accelerator)
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    there = f"elsewhere: {', '.join(shown[:SHOWN])}{more}" if shown else "no other zone that answers has it"
    return f"{_here(zones, provider.zone, accelerator.tpu_type)}; {there}"


def _here(zones: Mapping[str, bool | None], zone: str, tpu_type: str) -> str:
    if zone not in zones:
        return f"the project has no zone {zone} with TPUs"
    has = {True: "has", False: "has no", None: "does not say whether it has"}[zones[zone]]
    return f"{zone} {has} {tpu_type}"


def _by_price(zones: Collection[str], provider: GcpTpuProviderSpec, accelerator: Accelerator) -> list[str]:
    """The zones, those of the lowest known price first, each with what a slice costs there."""
    rows = []
    with contextlib.suppress(ClusterConfigError):  # a mistake in the user's own table, which `up` tells
        rows = all_rows()
    rentals = [tpu_rental(accelerator, slices=1, zone=zone, spot=provider.spot) for zone in zones]
    prices: dict[str, Any] = {zone: quote.per_hour for zone, quote in zip(zones, quotes(rentals, rows), strict=True)}
    known = sorted((price, zone) for zone, price in prices.items() if price is not None)
    unknown = sorted(zone for zone, price in prices.items() if price is None)
    return [*(f"{zone} ({price:,.2f} USD an hour)" for price, zone in known), *unknown]
