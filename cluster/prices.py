"""What a cluster costs by the hour: published prices, each with its date and source; an unknown one is None."""

import dataclasses
import datetime
import math
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cluster.errors import ClusterConfigError, nearest
from cluster.setting_names import check_keys

if TYPE_CHECKING:  # specs name what they rent in the words of this module
    from cluster.spec import ClusterSpec

PUBLISHED = Path(__file__).with_name("prices.toml")
OWN = "prices.toml"  # in the state folder: what the user pays
ANYWHERE = "*"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rental:
    """Things of one kind that a cluster rents.

    Attributes:
        product: CLOUD/NAME: `gcp/tpu-v5litepod` is one chip, `gcp/a3-highgpu-8g`, `aws/p5.48xlarge` and
            `azure/Standard_ND96isr_H100_v5` are one machine.
        region: as that cloud names it, without the zone.
        count: how many.
        spot: whether they may be taken away at any time.
    """

    product: str
    region: str
    count: int
    spot: bool = False

    def __str__(self) -> str:
        return f"{self.count} x {self.product}, {self.region}, {'spot' if self.spot else 'on demand'}"


@runtime_checkable
class Renter(Protocol):
    """A provider's spec that knows what its hosts are sold as."""

    def rentals(self, spec: "ClusterSpec") -> Sequence[Rental]:
        """Everything that is paid for by the hour while the cluster is up, disks and traffic left out."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Price:
    """What a whole cluster costs.

    Attributes:
        per_hour: in USD.
        date: of the oldest price in it, ISO 8601.
        source: where the prices stand, as addresses with commas between them.
        spot: whether it is of machines that may be taken away, whose price changes from day to day.
    """

    per_hour: float
    date: str
    source: str
    spot: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a price table.

    Attributes:
        product: as in `Rental`.
        regions: in which it holds; `*` for all.
        usd_per_hour: of one, on demand; None: not known.
        spot_usd_per_hour: of one, on spot; None: not known.
        date: on which the source said so.
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

    def of(self, rental: Rental) -> float | None:
        """USD per hour for one of what is rented; None where this row does not tell."""
        if self.product != rental.product or not {rental.region, ANYWHERE}.intersection(self.regions):
            return None
        return self.spot_usd_per_hour if rental.spot else self.usd_per_hour


@dataclasses.dataclass(frozen=True)
class Quote:
    """What is rented, with the row that prices it; None: no row does."""

    rental: Rental
    row: Row | None

    @property
    def per_hour(self) -> float | None:
        """In USD, for all of them."""
        each = self.row.of(self.rental) if self.row else None
        return None if each is None else each * self.rental.count


def price_of(spec: "ClusterSpec") -> Price | None:
    """What the hosts of a cluster cost while it is up; None: not known, or nothing is rented.

    Raises:
        ClusterConfigError: the user's own price table has a mistake.
    """
    return total(quotes_of(spec))


def quotes_of(spec: "ClusterSpec") -> list[Quote]:
    """Everything that a cluster rents, priced.

    Raises:
        ClusterConfigError: as for `price_of`.
    """
    if not isinstance(spec.provider, Renter):
        return []
    return quotes(spec.provider.rentals(spec), [*own_rows(), *read(PUBLISHED)])


def quotes(rentals: Iterable[Rental], rows: Sequence[Row]) -> list[Quote]:
    """Each rental with the first row that prices it."""
    return [Quote(rental, next((row for row in rows if row.of(rental) is not None), None)) for rental in rentals]


def total(quotes: Sequence[Quote]) -> Price | None:
    """The sum; None where a part of it is not known, or there is none."""
    rows = [quote.row for quote in quotes if quote.row is not None]
    if not rows or len(rows) < len(quotes):
        return None
    return Price(
        per_hour=sum(quote.per_hour or 0.0 for quote in quotes),
        date=min(row.date for row in rows).isoformat(),
        source=", ".join(dict.fromkeys(row.source for row in rows)),
        spot=any(quote.rental.spot for quote in quotes),
    )


def own_rows() -> list[Row]:
    """What the user says that they pay; it goes before what is published."""
    from cluster.record import home  # here, because records hold specs

    path = home() / OWN
    return read(path) if path.exists() else []


def read(path: Path) -> list[Row]:
    """The rows of a price table, each a `[[price]]`.

    Raises:
        ClusterConfigError: with the file, the row and what is allowed.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ClusterConfigError("", f"cannot be read: {error}", str(path)) from None
    for key in table:
        if key != "price":
            raise ClusterConfigError(key, f"no such key{nearest(key, ['price'])}", str(path))
    rows = table.get("price", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ClusterConfigError("price", "must be rows, each a [[price]]", str(path))
    return [_row(row, f"{path}: price {index}") for index, row in enumerate(rows, start=1)]


def _row(value: dict[str, Any], where: str) -> Row:
    try:
        check_keys(value, Row)
        return Row(**value)
    except ClusterConfigError as error:
        raise ClusterConfigError(error.key, error.problem, where) from None


def _require(good: bool, key: str, allowed: str, found: object) -> None:
    if not good:
        raise ClusterConfigError(key, f"must be {allowed}, not {found!r}")
