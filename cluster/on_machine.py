"""What a client asks of a machine over ssh: `python -m cluster.on_machine start|remove`, JSON lines in and out.

`start` reads `{"name", "token", "request"}`, and on a machine without the head a second line with the address of the
head's control service; it answers with what `cluster.machine.MachineUp` holds. Where the connection ends before it is
up, it removes what it has begun. `remove` reads `{"name"}` and answers with the list of what had to be forced.
"""

import json
import sys
import threading

from cluster import machine
from cluster.errors import ClusterError
from cluster.machine import Request


def start() -> int:
    order = json.loads(sys.stdin.readline())
    name, request = order["name"], Request.from_json(order["request"])
    try:
        holder = machine.start_holder(name, request, order["token"])
        if not request.has_head:
            address = sys.stdin.readline()
            if not address:
                raise ClusterError("the client has gone")
            machine.tell_head_address(name, json.loads(address))
        settled = threading.Event()
        threading.Thread(target=_remove_when_abandoned, args=(name, settled), daemon=True).start()
        up = machine.wait_until_up(name, holder)
        settled.set()  # before the answer, after which the client may go
    except ClusterError as error:
        machine.remove(name)
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(up.to_json()), flush=True)
    return 0


def _remove_when_abandoned(name: str, settled: threading.Event) -> None:
    """The client keeps its end open until it has the answer."""
    sys.stdin.read()
    if not settled.is_set():
        machine.remove(name)
        print("the client has gone", file=sys.stderr)


def remove() -> int:
    print(json.dumps(machine.remove(json.loads(sys.stdin.readline())["name"])))
    return 0


if __name__ == "__main__":
    sys.exit({"start": start, "remove": remove}[sys.argv[1]]())
