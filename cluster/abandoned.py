"""Ranks whose agent is gone. A frozen rank cannot notice it, nor can a child of one: somebody else must end them."""

import json
import os
import signal
from pathlib import Path

from cluster.processes import ProcessId, marked_processes


def end_abandoned_ranks(host_folder: Path, cluster_id: str) -> list[str]:
    """Ends the process groups of a host's ranks whose agent is gone; one line for each that was there.

    Called by the holder all the time, and by an agent that begins: where Ray is not ours, there is no holder.
    """
    found = []
    for path in host_folder.glob("ranks/*.json"):
        try:
            value = json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            continue  # removed, or being written
        agent, rank = ProcessId.from_json(value["agent"]), ProcessId.from_json(value["rank"])
        if not agent.alive():
            left = [process for process in marked_processes(cluster_id) if _group(process) == rank.pid]
            if left:
                found.append(f"ending {len(left)} process(es) of rank {rank.pid}: its agent (pid {agent.pid}) is gone")
            for process in left:
                process.signal(signal.SIGKILL)
            path.unlink(missing_ok=True)
    return found


def _group(process: ProcessId) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None
