"""Prices: the table that comes with us is dated and sourced, the user's own goes first, and unknown stays unknown."""

import dataclasses
import datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cluster.accelerator_table import TPU_GENERATIONS
from cluster.accelerators import Accelerator
from cluster.errors import ClusterConfigError
from cluster.price_table import PUBLISHED, Row, read
from cluster.prices import OWN, Price, Rental, price_of, quotes, total, tpu_rental
from cluster.spec import ClusterSpec, LocalProviderSpec

DAY = datetime.date(2026, 1, 2)
CHIPS = Rental(product="gcp/tpu-v6e", region="us-east5", count=16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeRenterSpec(LocalProviderSpec):
    """Local hosts that are said to be rented."""

    is_paid: ClassVar[bool] = True
    spot: bool = False

    def rentals(self, spec: ClusterSpec) -> list[Rental]:
        return [Rental(product="fake/host", region="here", count=spec.num_hosts, spot=self.spot)]


def _row(**settings: Any) -> Row:
    usual = {"product": "gcp/tpu-v6e", "regions": ("us-east5",), "usd_per_hour": 2.0, "date": DAY, "source": "list"}
    return Row(**(usual | settings))


def test_a_price_is_the_sum_with_the_oldest_date_and_every_source() -> None:
    head = Rental(product="aws/m5.large", region="us-east-1", count=1, spot=True)
    older = datetime.date(2025, 3, 4)
    rows = [_row(), _row(product="aws/m5.large", regions=("*",), spot_usd_per_hour=0.5, date=older, source="contract")]
    told = total(quotes([CHIPS, head], rows))
    assert told == Price(per_hour=32.5, date="2025-03-04", source="list, contract", spot=True)


@pytest.mark.parametrize(
    "rental",
    [
        dataclasses.replace(CHIPS, region="us-east1"),
        dataclasses.replace(CHIPS, spot=True),
        dataclasses.replace(CHIPS, product="gcp/tpu-v7x"),
    ],
)
def test_what_no_row_prices_is_unknown_and_so_is_the_sum(rental: Rental) -> None:
    found = quotes([CHIPS, rental], [_row()])
    assert [quote.per_hour for quote in found] == [32.0, None]
    assert total(found) is None
    assert total([]) is None


def test_the_users_own_prices_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPMD_LAUNCH_HOME", str(tmp_path))
    spec = ClusterSpec(name="x", provider=LocalProviderSpec(), num_hosts=3, devices_per_host=1)
    assert price_of(spec) is None, "nothing is rented"
    object.__setattr__(spec, "provider", FakeRenterSpec())  # no type of a cluster file, so `replace` would refuse it
    assert price_of(spec) is None, "no row"
    row = '{ product = "fake/host", regions = ["here"], usd_per_hour = 1.5 }'
    first = f'[[list]]\nsource = "contract"\ndate = 2026-01-02\nprices = [{row}]\n'
    (tmp_path / OWN).write_text(first + first.replace("1.5", "9.0"))
    assert price_of(spec) == Price(per_hour=4.5, date="2026-01-02", source="contract", spot=False)
    object.__setattr__(spec, "provider", FakeRenterSpec(spot=True))
    assert price_of(spec) is None, "the row has no spot price"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("2.0", '"two"', "list 1, price 1: usd_per_hour: must be USD, 0 or more, not 'two'"),
        ("2.0", "-1", "list 1, price 1: usd_per_hour: must be USD, 0 or more, not -1"),
        ("2.0", "true", "list 1, price 1: usd_per_hour: must be USD"),
        ("usd_per_hour", "per_hour", "list 1, price 1: per_hour: no such key; did you mean 'usd_per_hour'?"),
        (", usd_per_hour = 2.0", "", "price 1: usd_per_hour: is missing, and so is spot_usd_per_hour"),
        ("2026-01-02", '"soon"', "price 1: date: must be a day, as in 2026-11-22, not 'soon'"),
        ('["us-east5"]', '"us-east5"', "price 1: regions: must be a list of regions, or ['*'], not 'us-east5'"),
        ('source = "list"', "", "price 1: source: is missing"),
        ("gcp/tpu-v6e", "v6e", "price 1: product: must be CLOUD/NAME, not 'v6e'"),
        ("[[list]]", "[[list", "cannot be read: "),
        ("[[list]]", "[list]", "must be lists, each a [[list]]"),
        ("[[list]]", "[[lists]]", "prices.toml: lists: no such key; did you mean 'list'?"),
        ("prices", "price", "list 1: prices: must be rows, as in [{ product"),
    ],
)
def test_a_mistake_in_a_table_is_told_with_its_row(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / OWN
    row = '{ product = "gcp/tpu-v6e", regions = ["us-east5"], usd_per_hour = 2.0 }'
    good = f'[[list]]\nsource = "list"\ndate = 2026-01-02\nprices = [{row}]\n'
    path.write_text(good)
    assert read(path) == [_row()]
    path.write_text(good.replace(old, new, 1))
    with pytest.raises(ClusterConfigError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}: ") and said in str(refused.value)


def test_each_published_price_stands_once_with_an_address_and_is_of_something_we_know() -> None:
    rows = read(PUBLISHED)
    for row in rows:
        assert row.source.startswith("https://"), row
        assert 0 < (row.usd_per_hour or 0) < 200, row
        assert row.spot_usd_per_hour is None or row.spot_usd_per_hour < (row.usd_per_hour or 0), row
    places = [(row.product, region) for row in rows for region in row.regions]
    assert len(set(places)) == len(places)
    tpus = {row.product.removeprefix("gcp/tpu-").removesuffix("-pod") for row in rows if row.product[:8] == "gcp/tpu-"}
    assert set(TPU_GENERATIONS) - tpus == {"v7x"}, "of which no list was found"
    assert tpus < set(TPU_GENERATIONS)


def test_chips_of_v2_and_v3_cost_otherwise_in_slices_of_several_hosts() -> None:
    products = [tpu_rental(Accelerator.parse(name), slices=2, zone="us-central1-a", spot=True) for name in
                ("tpu-v3-8", "tpu-v3-32", "tpu-v5e-16")]  # fmt: skip
    assert products == [
        Rental(product="gcp/tpu-v3", region="us-central1", count=8, spot=True),
        Rental(product="gcp/tpu-v3-pod", region="us-central1", count=32, spot=True),
        Rental(product="gcp/tpu-v5litepod", region="us-central1", count=32, spot=True),
    ]
    assert [quote.per_hour for quote in quotes(products, read(PUBLISHED))][2] == pytest.approx(32 * 0.244926)
