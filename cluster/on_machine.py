"""What a client asks of a machine over ssh: `python -m cluster.on_machine start|remove`, JSON lines in and out.

`start` reads `{"name", "token", "request"}`, and on a machine without the head a second line with the address of the
head's control service; it answers with what `cluster.machine.MachineUp` holds, and waits for a last line, which says
that the whole cluster is up. Where the connection ends before that line, it removes what it has begun: a client that
is killed in the middle of `up` leaves nothing. `remove` reads `{"name"}` and answers with
the list of what had to be forced.
"""

import json
import os
import sys
import threading
from pathlib import Path

from cluster import machine
from cluster.errors import ClusterError
from cluster.machine import Request

SETTLE_TIMEOUT_S = 600.0  # a client that is gone without a word: nothing on this side would ever notice


def start() -> int:
    line = sys.stdin.readline()
    if not line:  # the client has gone when only the code was here
        if not Path("request.json").exists():
            machine.remove(Path.cwd().name)
        return 1
    order = json.loads(line)
    name, request = order["name"], Request.from_json(order["request"])
    settled, removing = threading.Event(), threading.Lock()
    try:
        holder = machine.start_holder(name, request, order["token"])
        if not request.has_head:
            address = sys.stdin.readline()
            if not address:
                raise ClusterError("the client has gone")
            machine.tell_head_address(name, json.loads(address))
        threading.Thread(
            target=_read_last_line, args=(name, request.cluster_id, settled, removing), daemon=True
        ).start()
        up = machine.wait_until_up(name, holder)
        print(json.dumps(up.to_json()), flush=True)
        if not settled.wait(SETTLE_TIMEOUT_S):
            raise ClusterError(f"the client has not said within {SETTLE_TIMEOUT_S:g} s that the cluster is up")
    except (ClusterError, OSError) as error:  # OSError: what is waited for is being removed, or a full disk
        with removing:
            machine.remove(name, request.cluster_id)
        print(error, file=sys.stderr)
        return 1
    return 0


def _read_last_line(name: str, cluster_id: str, settled: threading.Event, removing: threading.Lock) -> None:
    """The client keeps its end open until the whole cluster is up."""
    if os.read(sys.stdin.fileno(), 1):  # not by `sys.stdin`, whose lock would be held when this process ends
        settled.set()
        return
    with removing:
        machine.remove(name, cluster_id)
        os._exit(1)  # nobody would hear why


def remove() -> int:
    print(json.dumps(machine.remove(json.loads(sys.stdin.readline())["name"])))
    return 0


if __name__ == "__main__":
    sys.exit({"start": start, "remove": remove}[sys.argv[1]]())
