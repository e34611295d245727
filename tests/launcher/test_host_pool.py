"""Which hosts a job gets, and in which order its ranks are on them."""

from launcher.host_pool import HostPool


def test_a_suspect_is_given_out_last_and_ranks_keep_the_order_of_hosts() -> None:
    pool = HostPool(dict.fromkeys(["lab-0", "lab-1", "lab-2"]))
    pool.suspects = {"lab-0": "a vote of copies"}
    assert pool.order() == ["lab-1", "lab-2", "lab-0"]
    assert pool.in_rank_order(pool.order()) == ["lab-0", "lab-1", "lab-2"]
    assert pool.in_rank_order(pool.order()[:2]) == ["lab-1", "lab-2"]
