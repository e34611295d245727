"""Hosts of the local provider, with no launcher on them: they start at the same moment and nothing is left of them."""

from pathlib import Path

import pytest

from cluster.local import LocalProvider
from cluster.place_code import Code
from cluster.record import Cluster, save_spec
from cluster.spec import ClusterSpec, LocalProviderSpec
from tests.conftest import assert_nothing_left, command_of, processes_of

EMPTY_ARCHIVE = b"PK\x05\x06" + bytes(18)  # a zip file of nothing

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),  # the holder is to outlive us
]


def test_hosts_that_start_at_once_all_come_up_and_have_no_agents_of_ray(home: Path) -> None:
    """One in three such starts used to fail: Ray's dashboard agent of one node ended, and with it the node."""
    spec = ClusterSpec(name="four", provider=LocalProviderSpec(), num_hosts=4, devices_per_host=1)
    provider, code = LocalProvider(spec), Code("0" * 64, EMPTY_ARCHIVE)
    save_spec(spec)
    cluster = provider.create(code, lambda _: None, lambda: None)
    cluster.save()
    try:
        assert cluster == Cluster.load("four") and cluster.alive()
        assert [host.name for host in cluster.hosts] == [f"four-{index}" for index in range(4)]
        assert len({host.node_id for host in cluster.hosts}) == 4
        record = {"cluster_id": cluster.cluster_id, "holder": cluster.holder.to_json(), "spec": spec.to_json(),
                  "run_folder": cluster.run_folder, "gcs_address": cluster.gcs_address}  # fmt: skip
        commands = [" ".join(command_of(process)) for process in processes_of(record)]
        assert sum("/raylet/raylet" in command for command in commands) == 4
        assert not [command for command in commands if "agent.py" in command or "runtime_env/agent" in command]
    finally:
        forced = provider.delete(code)
    assert not forced
    assert_nothing_left(record, home)
