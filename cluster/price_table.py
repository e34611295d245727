"""A table of prices: what things cost by the hour, each with its source and the date on which it was read there."""

import dataclasses
import datetime
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cluster.errors import ClusterConfigError, nearest
from cluster.setting_names import check_keys

PUBLISHED = Path(__file__).with_name("prices.toml")
ANYWHERE = "*"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table.

    Attributes:
        product: CLOUD/NAME, see `cluster.prices.Rental`.
        regions: in which it holds; `*` for all.
        usd_per_hour: of one, on demand; None: not known.
        spot_usd_per_hour: of one, on spot; None: not known.
        date: on which it was read in its source.
        source: an address, or words.

    Raises:
        ClusterConfigError: naming the setting, what is allowed and what was found.
    """

    product: str
    regions: tuple[str, ...]
    usd_per_hour: float | None = None
    spot_usd_per_hour: float | None = None
    date: datetime.date
    source: str

    def __post_init__(self) -> None:
        _require(isinstance(self.product, str) and "/" in self.product, "product", "CLOUD/NAME", self.product)
        regions = self.regions if isinstance(self.regions, list | tuple) else ()
        names = all(isinstance(region, str) for region in regions)
        _require(bool(regions) and names, "regions", f"a list of regions, or [{ANYWHERE!r}]", self.regions)
        object.__setattr__(self, "regions", tuple(regions))  # TOML has no tuples
        _require(type(self.date) is datetime.date, "date", "a day, as in 2026-11-22", self.date)
        _require(isinstance(self.source, str) and self.source != "", "source", "where it was read", self.source)
        for key, value in (("usd_per_hour", self.usd_per_hour), ("spot_usd_per_hour", self.spot_usd_per_hour)):
            is_price = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
            _require(value is None or is_price, key, "USD, 0 or more", value)
        if self.usd_per_hour is None and self.spot_usd_per_hour is None:
            raise ClusterConfigError("usd_per_hour", "is missing, and so is spot_usd_per_hour: a row has a price")

    def price(self, product: str, region: str, *, spot: bool) -> float | None:
        """USD per hour for one of them; None where this row does not tell."""
        if product != self.product or not {region, ANYWHERE}.intersection(self.regions):
            return None
        return self.spot_usd_per_hour if spot else self.usd_per_hour


def read(path: Path) -> list[Row]:
    """The rows of a table: of each `[[list]]` its `prices`, with the source and date of the list.

    Raises:
        ClusterConfigError: with the file, the row and what is allowed.
    """
    where = str(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ClusterConfigError("", f"cannot be read: {error}", where) from None
    rows = []
    for place, values in _rows(table, where):
        try:
            check_keys(values, Row, also=("prices",))
            rows.append(Row(**values))
        except ClusterConfigError as error:
            raise ClusterConfigError(error.key, error.problem, place) from None
    return rows


def _rows(table: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each row stands, and what it says together with its list."""
    for key in table:
        if key != "list":
            raise ClusterConfigError(key, f"no such key{nearest(key, ['list'])}", where)
    for number, part in enumerate(_mappings(table.get("list", []), "list", "lists, each a [[list]]", where), start=1):
        place = f"{where}: list {number}"
        prices = _mappings(part.get("prices"), "prices", "rows, as in [{ product = ..., usd_per_hour = ... }]", place)
        common = {key: value for key, value in part.items() if key != "prices"}
        for index, row in enumerate(prices, start=1):
            yield f"{place}, price {index}", common | row


def _mappings(value: Any, key: str, allowed: str, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise ClusterConfigError(key, f"must be {allowed}", where)
    return value


def _require(good: bool, key: str, allowed: str, found: object) -> None:
    if not good:
        raise ClusterConfigError(key, f"must be {allowed}, not {found!r}")
