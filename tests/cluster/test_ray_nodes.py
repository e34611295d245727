"""Which nodes of a Ray that is not ours become hosts, and what is said when there are too few."""

import pytest

from cluster.errors import ClusterError
from cluster.ray_nodes import RayNode, choose, host_names, supervisor_cpus


def node(number: int, *, cpus: float = 4.0, free: float | None = None, head: bool = False) -> RayNode:
    return RayNode(
        node_id=f"{number:04x}",
        address=f"10.0.0.{number}",
        hostname=f"pod-{number}",
        is_head=head,
        cpus=cpus,
        free_cpus=cpus if free is None else free,
        holders=("actor Server 'web' (pid 7, namespace other): 4",) if free is not None else (),
    )


def numbers(chosen: list[RayNode]) -> list[int]:
    return [int(found.address.rpartition(".")[2]) for found in chosen]


def test_the_head_comes_first_then_addresses_as_numbers() -> None:
    nodes = [node(10), node(9), node(30, head=True), node(2)]
    assert numbers(choose(nodes, "0009", 0, 0)) == [30, 2, 9, 10]
    assert numbers(choose(nodes, "0009", 2, 1)) == [30, 2, 9]
    assert choose(list(reversed(nodes)), "0009", 3, 0) == choose(nodes, "0009", 3, 0)


def test_a_head_without_cpus_is_no_host_and_may_have_the_supervisor() -> None:
    head = node(1, cpus=0.0, head=True)
    assert numbers(choose([head, node(2), node(3)], head.node_id, 0, 0)) == [2, 3]
    assert supervisor_cpus(head) == 0.0


def test_the_clients_node_needs_a_cpu_more() -> None:
    one = node(1, cpus=1.0, head=True)
    assert numbers(choose([one, node(2)], one.node_id, 0, 0)) == [2]
    assert numbers(choose([one, node(2)], "0002", 0, 0)) == [1, 2]
    with pytest.raises(ClusterError, match=r"no CPU free for the supervisor:\n  10.0.0.1 .*held by actor Server 'web'"):
        choose([node(1, free=0.0), node(2)], "0001", 1, 0)


def test_a_busy_node_is_passed_over_where_there_are_others_and_else_named_with_who_holds_it() -> None:
    nodes = [node(1, head=True), node(2, free=0.5), node(3)]
    assert numbers(choose(nodes, "0001", 2, 0)) == [1, 3]
    with pytest.raises(ClusterError) as refused:
        choose(nodes, "0001", 0, 0)
    assert str(refused.value) == (
        "3 node(s) are wanted as hosts, 2 of 3 can be one now\n  10.0.0.2 (pod-2): 0.5 of 4 CPU(s) free, 1 needed; "
        "held by actor Server 'web' (pid 7, namespace other): 4"
    )


def test_too_few_nodes() -> None:
    with pytest.raises(ClusterError, match=r"^3 node\(s\) are wanted as hosts, 1 of 2 .*\n  10.0.0.2 .* offers 0 CPU"):
        choose([node(1), node(2, cpus=0.0)], "0001", 2, 1)
    with pytest.raises(ClusterError, match=r"^1 node\(s\) are wanted as hosts, 0 of 1"):
        choose([node(1, cpus=0.0)], "0001", 0, 0)


def test_hosts_on_one_machine_are_numbered() -> None:
    assert host_names([node(1), node(2)]) == ["pod-1", "pod-2"]
    assert host_names([node(1), node(1)]) == ["pod-1-0", "pod-1-1"]
