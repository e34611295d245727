"""What the supervisor tells clients of its hosts, asked of all agents at once."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from cluster.host_environment import MAKE_TIMEOUT_S
from cluster.record import Cluster
from launcher.blobs import BlobStore, ship
from launcher.command_process import Executed
from launcher.errors import FailureError
from launcher.exposure import RAYLET_PORTS
from launcher.host_pool import HostPool
from launcher.host_sockets import HostSockets
from launcher.host_wait import HostError, in_words
from launcher.lock_requirements import NO_UV
from launcher.lock_requirements import TIMEOUT_S as LOCK_TIMEOUT_S
from launcher.parity import gather_facts
from launcher.protocol import Message
from launcher.user_process import INSPECTION_TIMEOUT_S

FACTS_TIMEOUT_S = 90.0  # shorter than a client waits
STATE_TIMEOUT_S = 5.0
LOOK_TIMEOUT_S = STATE_TIMEOUT_S + INSPECTION_TIMEOUT_S
T = TypeVar("T")


async def answer(pool: HostPool, blobs: BlobStore, request: Message) -> Message:
    """Answers a client's request that is about the hosts alone."""
    match request["op"]:
        case "facts":
            return await facts(pool)
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


async def facts(pool: HostPool) -> Message:
    """`facts`: of each host that answers a `launcher.attempt.HostFacts`; `lost`: the names of the others."""
    lost = await pool.silent(pool.agents, 0.0)
    agents = [agent for host, agent in pool.agents.items() if host not in lost]
    found = await _answer_of_all(gather_facts(agents))
    return {"facts": [dataclasses.asdict(fact) for fact in found], "lost": lost}


async def _answer_of_all(asked: Awaitable[T]) -> T:
    """What hosts say that have answered just now.

    Raises:
        FailureError: one of them does not any more, or cannot look.
    """
    try:
        return await asyncio.wait_for(asked, FACTS_TIMEOUT_S)
    except RayTaskError as error:
        raise FailureError(f"a host cannot look at itself: {in_words(error)}") from error
    except (RayError, TimeoutError) as error:
        why = f"does not answer any more, or not within {FACTS_TIMEOUT_S:g} s ({type(error).__name__})"
        raise FailureError(f"a host that has answered at first {why}; see `spmd-launch status`") from error


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
            await asyncio.wait_for(ship(blobs, {host: agent}, code, files), LOOK_TIMEOUT_S)
            answer: Message = await asyncio.wait_for(agent.inspect.remote(question, code, folder, lock), timeout_s)
        except RayTaskError as error:
            raise FailureError(f"host {host} could not look at the workload: {in_words(error)}") from error
        except HostError as error:
            if not error.lost:
                raise
            return {}
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
        except RayTaskError as error:
            raise FailureError(f"host {host} could not resolve it: {in_words(error)}") from error
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
    except RayTaskError as error:
        done = Executed(code=None, error=f"its agent could not run it: {in_words(error)}")
    except (RayError, TimeoutError) as error:
        done = Executed(code=None, error=f"its agent does not answer ({type(error).__name__})")
    output = done.output.decode(errors="replace")
    return {"host": host, "code": done.code, "output": output, "num_cut": done.num_cut, "error": done.error}


async def sockets(pool: HostPool) -> Message:
    """What each host listens on, and the names of the raylets' ports; see `launcher.exposure`.

    Raises:
        FailureError: a host is lost, without which nobody can say whom a firewall must let in.
    """
    if lost := await pool.silent(pool.agents, 0.0):
        raise FailureError(f"host {', '.join(lost)} does not answer: `spmd-launch up FILE` brings back what can be")
    asked = asyncio.gather(*(agent.sockets.remote() for agent in pool.agents.values()))
    seen: list[HostSockets] = await _answer_of_all(asked)
    nodes = [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"]]
    return {
        "hosts": [host.to_json() for host in seen],
        "raylet_ports": {
            f"{node['NodeManagerAddress']}:{node[key]}": name for node in nodes for key, name in RAYLET_PORTS.items()
        },
    }
