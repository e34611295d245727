"""The supervisor's ear for notices that hosts are to go: asks every agent, which answers when there is news."""

import asyncio
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayError

from launcher.host_pool import HostPool
from launcher.notices import Notice
from launcher.rank_process import keep

WAIT_S = 60.0
ANSWER_TIMEOUT_S = 10.0
RETRY_S = 5.0
UNKNOWN = -1  # no number of a notice: the answer comes at once


def follow_notices(pool: HostPool, changed: Callable[[str, Notice | None], None]) -> None:
    """From now on `pool.leaving` is what the hosts say; `changed(host, notice)` is called after every change."""
    for host, agent in pool.agents.items():
        keep(_follow(host, agent, pool, changed))


async def _follow(host: str, agent: Any, pool: HostPool, changed: Callable[[str, Notice | None], None]) -> None:
    known = UNKNOWN
    while True:
        try:
            known, notice = await asyncio.wait_for(agent.notice.remote(known, WAIT_S), WAIT_S + ANSWER_TIMEOUT_S)
        except (RayError, TimeoutError):  # an agent that was started again counts anew
            known = UNKNOWN
            await asyncio.sleep(RETRY_S)
            continue
        if notice != pool.leaving.get(host):
            pool.set_leaving(host, notice)
            changed(host, notice)
