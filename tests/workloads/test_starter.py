"""The workload that `new` writes has the same bits however many hosts the devices are on."""

from pathlib import Path

from tests.ranks import run_ranks
from tests.workloads.starter_programs import fit
from workloads.context import Context


def test_the_same_bits_on_one_device_and_on_four_of_one_or_two_hosts(tmp_path: Path) -> None:
    alone = fit(Context.local(tmp_path))
    assert 0 < alone["loss"] < 2
    for num_hosts, devices in ((1, 4), (2, 2)):
        ranks = run_ranks("tests.workloads.starter_programs:fit", num_hosts=num_hosts, devices_per_host=devices)
        assert ranks == [alone] * num_hosts
