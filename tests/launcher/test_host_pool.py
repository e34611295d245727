"""Which hosts a job gets, and in which order its ranks are on them."""

import asyncio

from launcher.host_pool import HostPool


def test_a_suspect_is_given_out_last_and_ranks_keep_the_order_of_hosts() -> None:
    pool = HostPool(dict.fromkeys(["lab-0", "lab-1", "lab-2"]))
    pool.suspects = {"lab-0": "a vote of copies"}
    assert pool.order() == ["lab-1", "lab-2", "lab-0"]
    assert pool.in_rank_order(pool.order()) == ["lab-0", "lab-1", "lab-2"]
    assert pool.in_rank_order(pool.order()[:2]) == ["lab-1", "lab-2"]


class Gone:
    """An agent whose host answers or not."""

    def __init__(self, answers: bool):
        self.answers = answers
        self.clock = self

    async def remote(self) -> float:
        if not self.answers:
            raise TimeoutError
        return 0.0


def test_a_host_that_is_back_is_given_out_again() -> None:
    agents = {"lab-0": Gone(True), "lab-1": Gone(False)}
    pool = HostPool(agents)
    assert asyncio.run(pool.available("job", [], 0.0)) == ["lab-0"]
    assert not asyncio.run(pool.look_for_lost()) and pool.order() == ["lab-0"]
    agents["lab-1"].answers = True
    assert asyncio.run(pool.look_for_lost()) and pool.order() == ["lab-0", "lab-1"]
