"""What the supervisor tells clients of its hosts, asked of all agents at once."""

import asyncio
import dataclasses
from collections.abc import Sequence

import ray
from ray.exceptions import RayError

from cluster.host_environment import MAKE_TIMEOUT_S
from cluster.record import Cluster
from launcher.blobs import BlobStore, ship
from launcher.command_process import Executed
from launcher.errors import FailureError
from launcher.exposure import RAYLET_PORTS
from launcher.host_pool import HostPool
from launcher.lock_requirements import NO_UV
from launcher.lock_requirements import TIMEOUT_S as LOCK_TIMEOUT_S
from launcher.parity import gather_facts
from launcher.protocol import Message
from launcher.user_process import INSPECTION_TIMEOUT_S

FACTS_TIMEOUT_S = 120.0
STATE_TIMEOUT_S = 5.0
LOOK_TIMEOUT_S = STATE_TIMEOUT_S + INSPECTION_TIMEOUT_S


async def answer(pool: HostPool, blobs: BlobStore, request: Message) -> Message:
    """Answers a client's request that is about the hosts alone."""
    match request["op"]:
        case "facts":
            return {"facts": await facts(pool)}
        case "sockets":
            return await sockets(pool)
        case "inspect":
            return await inspect(pool, blobs, request)
        case "lock":
            return await lock(pool, request)
    hosts = list(pool.agents) if request["host"] is None else [request["host"]]
    return {"hosts": await execute(pool, hosts, request["words"], request["timeout_s"])}


async def states(cluster: Cluster, pool: HostPool) -> list[Message]:
    """Each host: name, address, standby, the job that holds it, why it is suspect, the notice that it is to go."""
    standbys = await asyncio.gather(*(_standby(pool, host.name) for host in cluster.hosts))
    return [
        {
            "name": host.name,
            "address": host.address,
            "standby": standby,
            "job": pool.held.get(host.name),
            "suspect": pool.suspects.get(host.name),
            "notice": str(pool.leaving[host.name]) if host.name in pool.leaving else None,
        }
        for host, standby in zip(cluster.hosts, standbys, strict=True)
    ]


async def _standby(pool: HostPool, host: str) -> str:
    try:
        state: str = await asyncio.wait_for(pool.agents[host].standby_state.remote(), STATE_TIMEOUT_S)
    except (RayError, TimeoutError):
        return "LOST"
    return state


async def facts(pool: HostPool) -> list[Message]:
    """Each host: a `launcher.attempt.HostFacts`."""
    found = await asyncio.wait_for(gather_facts(list(pool.agents.values())), FACTS_TIMEOUT_S)
    return [dataclasses.asdict(fact) for fact in found]


async def inspect(pool: HostPool, blobs: BlobStore, request: Message) -> Message:
    """Has hosts import a user's workload: `{host: what launcher.rank.inspect_workload says}`.

    What travels is the same everywhere, so that the first host which answers will do; what is installed may differ, so
    that all are asked. A host that is lost says nothing.
    """
    folder, lock, code = request["folder"], request["requirements"], request["code"]
    files = [(file[0], file[1]) for file in (folder, lock) if file]
    timeout_s = LOOK_TIMEOUT_S + (MAKE_TIMEOUT_S if lock else 0.0)
    missing = blobs.missing([*(digest for digest, _ in files), code])
    if missing:
        return {"missing": missing}
    question = {key: request[key] for key in ("workload", "settings", "num_hosts", "devices_per_host")}

    async def ask(host: str) -> Message:
        agent = pool.agents[host]
        try:
            await asyncio.wait_for(ship(blobs, [agent], code, files), LOOK_TIMEOUT_S)
            answer: Message = await asyncio.wait_for(agent.inspect.remote(question, code, folder, lock), timeout_s)
        except (RayError, TimeoutError):
            return {}
        return {host: answer}

    answers: Message = {}
    if request["every_host"]:
        for answer in await asyncio.gather(*map(ask, pool.agents)):
            answers |= answer
    else:
        for host in pool.agents:
            answers = answers or await ask(host)
    if not answers:
        raise FailureError("no host has answered, so that nobody could look at the workload; see `spmd-launch status`")
    return {"hosts": answers}


async def lock(pool: HostPool, request: Message) -> Message:
    """Has the first host that answers tell the `lock` of a requirements file, or why it is `refused`."""
    hosts = list(pool.agents)
    asked = await asyncio.gather(*(_has_uv(pool, host) for host in hosts))
    if without := [host for host, has in zip(hosts, asked, strict=True) if has is False]:
        return {"refused": f"host {', '.join(without)}: {NO_UV}"}
    for host in hosts:
        asked_of = pool.agents[host].lock_requirements
        try:
            answer: Message = await asyncio.wait_for(
                asked_of.remote(request["requirements"], request["variables"], request["beneath"]),
                STATE_TIMEOUT_S + LOCK_TIMEOUT_S,
            )
        except (RayError, TimeoutError):
            continue  # that host is lost
        return answer
    raise FailureError("no host has answered, so that nobody could resolve it; see `spmd-launch status`")


async def _has_uv(pool: HostPool, host: str) -> bool | None:
    """None: it does not answer."""
    try:
        found: bool = await asyncio.wait_for(pool.agents[host].has_uv.remote(), STATE_TIMEOUT_S)
    except (RayError, TimeoutError):
        return None
    return found


async def execute(pool: HostPool, hosts: Sequence[str], words: Sequence[str], timeout_s: float) -> list[Message]:
    """Runs a command on these hosts at once: of each host `host` and a `launcher.command_process.Executed`."""
    return list(await asyncio.gather(*(_execute(pool, host, words, timeout_s) for host in hosts)))


async def _execute(pool: HostPool, host: str, words: Sequence[str], timeout_s: float) -> Message:
    asked = pool.agents[host].execute.remote(list(words), timeout_s)
    try:
        done: Executed = await asyncio.wait_for(asked, timeout_s + STATE_TIMEOUT_S)
    except (RayError, TimeoutError) as error:
        done = Executed(code=None, error=f"its agent does not answer ({type(error).__name__})")
    output = done.output.decode(errors="replace")
    return {"host": host, "code": done.code, "output": output, "num_cut": done.num_cut, "error": done.error}


async def sockets(pool: HostPool) -> Message:
    """What each host listens on, and the names of the raylets' ports; see `launcher.exposure`."""
    agents = pool.agents.values()
    seen = await asyncio.wait_for(asyncio.gather(*(agent.sockets.remote() for agent in agents)), FACTS_TIMEOUT_S)
    nodes = [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"]]
    return {
        "hosts": [host.to_json() for host in seen],
        "raylet_ports": {
            f"{node['NodeManagerAddress']}:{node[key]}": name for node in nodes for key, name in RAYLET_PORTS.items()
        },
    }
