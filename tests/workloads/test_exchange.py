"""Out-of-band messages between real processes."""

import math
import re

from launcher.watchdog import Bounds
from tests.ranks import run_ranks
from workloads.exchange import Exchange


def test_a_single_rank_receives_its_own_value_as_json() -> None:
    exchange = Exchange(0, 1)
    assert exchange.all_gather("topic", (1, "a")) == [[1, "a"]]
    (value,) = exchange.all_gather("topic", math.nan)
    assert math.isnan(value)


def test_every_rank_receives_all_values_in_rank_order() -> None:
    ranks = run_ranks("tests.workloads.exchange_programs:gather", num_hosts=2, devices_per_host=1)
    for rank in ranks:
        assert rank["first"] == [{"rank": 0}, {"rank": 1}]
        assert rank["second"] == [[0, None, 0.1], [1, None, 0.1]]
        assert rank["large"] == [1_000_000, 1_000_000]
        assert rank["left"] <= 4, "old rounds are deleted"


def test_an_absent_rank_is_named_in_time() -> None:
    first, absent = run_ranks("tests.workloads.exchange_programs:stay_away", num_hosts=2, devices_per_host=1)
    said = re.match(r"rank 0 waited (\d+\.\d) s for 'skipped' from rank\(s\) 1: ", first["error"])
    assert said is not None, first["error"]
    assert 1.4 < float(said[1]) < first["waited_s"] + 0.1 < 15.0, "1.5 s on a quiet machine"
    assert absent["error"] == ""


def test_a_rank_that_gets_on_is_waited_for_and_one_that_need_not_be_is_not() -> None:
    first, late = run_ranks("tests.workloads.exchange_programs:get_on", num_hosts=2, devices_per_host=1)
    assert first["waited_s"] > 3.0 and late["waited_s"] < 2.0
    assert len(first["errors"]) == 100 and all("from rank(s) 1: " in error for error in first["errors"])
    assert min(first["at_once_s"]) < 1.0, "0 is no default"


def test_the_watchdog_names_who_is_late_before_anybody_gives_up_waiting() -> None:
    bounds = Bounds()
    longest_s = max(bounds.compile_s, bounds.checkpoint_s, bounds.other_s, bounds.start_s, bounds.script_s)
    assert Exchange(0, 2).timeout_s > 1.5 * longest_s
    assert Exchange(0, 2).apart("programs").timeout_s == Exchange(0, 2).timeout_s


def test_only_the_absent_rank_is_named() -> None:
    _, *others = run_ranks("tests.workloads.exchange_programs:first_stays_away", num_hosts=3, devices_per_host=1)
    for message in others:
        assert "from rank(s) 0: " in message
