"""What a cluster costs by the hour: published prices, each with its date and source; an unknown one is None."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from cluster import price_table
from cluster.accelerators import Accelerator
from cluster.price_table import Row

if TYPE_CHECKING:  # specs name what they rent in the words of this module
    from cluster.spec import ClusterSpec

OWN = "prices.toml"  # in the state folder: what the user pays


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


def tpu_rental(slice_: Accelerator, *, slices: int, zone: str, spot: bool) -> Rental:
    """The chips of Cloud TPU slices.

    Args:
        slice_: of which type each is.
        slices: how many.
        zone: of Google Cloud.
        spot: as in `Rental`.
    """
    generation = slice_.tpu_type.partition("-")[0]
    # Of the oldest generations, chips of a single host have one price and those of larger slices another.
    pod = "-pod" if generation in ("v2", "v3") and slice_.hosts_per_slice > 1 else ""
    chips = slices * slice_.hosts_per_slice * slice_.chips_per_host
    return Rental(product=f"gcp/tpu-{generation}{pod}", region=zone.rpartition("-")[0], count=chips, spot=spot)


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


@dataclasses.dataclass(frozen=True)
class Quote:
    """What is rented, with the row that prices it; None: no row does.

    Attributes:
        per_hour: in USD, for all of them.
    """

    rental: Rental
    row: Row | None = None
    per_hour: float | None = None


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
    return quotes(spec.provider.rentals(spec), all_rows())


def all_rows() -> list[Row]:
    """All prices that are known, the user's own first.

    Raises:
        ClusterConfigError: as for `price_of`.
    """
    from cluster.record import home  # here, because records hold specs

    own = home() / OWN
    return [*(price_table.read(own) if own.exists() else []), *price_table.read(price_table.PUBLISHED)]


def quotes(rentals: Iterable[Rental], rows: Sequence[Row]) -> list[Quote]:
    """Each rental with the first row that prices it."""
    return [_quote(rental, rows) for rental in rentals]


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


def _quote(rental: Rental, rows: Sequence[Row]) -> Quote:
    for row in rows:
        each = row.price(rental.product, rental.region, spot=rental.spot)
        if each is not None:
            return Quote(rental, row, each * rental.count)
    return Quote(rental)
