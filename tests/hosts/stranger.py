"""What a stranger's machine runs against a cluster, sent there as it is: `python -c THIS KIND JSON`, JSON lines back.

It keeps its connections until its input ends, so that what they do to a job can be seen.
"""

import contextlib
import json
import socket
import sys
import time

PATIENCE_S = 2.0
NOISES = {
    "silence": b"",
    "garbage": bytes(range(256)) * 64,
    "http": b"GET /api/jobs/ HTTP/1.1\r\nHost: head\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096,  # frames of 16 MiB that never come
    "tls": bytes.fromhex("1603010100010000fc0303") + bytes(245),
    "ours": b'{"op": "status", "num_bytes": 0}\n',  # as a client asks the supervisor
    "pair": (5000).to_bytes(8, "little") + bytes(64),  # as gloo's peers begin
}


def scan(hosts):
    """Ports that answer: `{host: [port]}`."""
    found = {}
    for host in hosts:
        found[host] = []
        for port in range(1, 2**16):
            with socket.socket() as probe:
                probe.settimeout(PATIENCE_S)
                if probe.connect_ex((host, port)) == 0:
                    found[host].append(port)
    return found


def knock(places):
    """Which of `[host, port]` take a connection, asked all at once."""
    probes = []
    for host, port in places:
        probe = socket.socket()
        probe.setblocking(False)
        probe.connect_ex((host, port))
        probes.append(probe)
    time.sleep(PATIENCE_S)
    return [place for place, probe in zip(places, probes, strict=True) if is_connected(probe)]


def is_connected(probe):
    try:
        probe.getpeername()
    except OSError:
        return False
    return True


def noise(places):
    """What came back on each of `[host, port]` for each noise: `[host, port, noise, text]`."""
    for host, port in places:
        for data in NOISES.values():
            connection = socket.create_connection((host, port), timeout=PATIENCE_S)
            connection.setblocking(False)
            KEPT.append((host, port, connection))
            with contextlib.suppress(OSError):  # closed already
                connection.sendall(data)
    time.sleep(PATIENCE_S)
    names = list(NOISES) * len(places)
    return [[host, port, name, heard(c)] for name, (host, port, c) in zip(names, KEPT, strict=True)]


def heard(connection):
    try:
        return connection.recv(1 << 16).decode("latin-1")
    except BlockingIOError:
        return "(nothing)"
    except OSError as error:
        return f"({error})"


KEPT = []


if __name__ == "__main__":
    print(json.dumps({"scan": scan, "knock": knock, "noise": noise}[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)
    sys.stdin.read()
