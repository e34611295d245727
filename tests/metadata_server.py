"""A metadata server of a cloud: speaks the protocol of Google's and of Amazon's, host by host."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Cloud:
    """What it says; `set` wakes those who wait for a change.

    Args:
        is_google: it answers Google's questions, too.

    Attributes:
        values: `{(host, key): value}`; of a host that has none, `defaults`.
        documents: `{path: text}` of what is the same for all hosts, and never changes.
        asked: paths that were asked for, with the status of the answer.
        tokens: of Amazon, that are valid.
    """

    def __init__(self, *, is_google: bool = True) -> None:
        self.is_google = is_google
        self.documents: dict[str, str] = {}
        self.defaults = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.values: dict[tuple[str, str], str] = {}
        self.asked: list[tuple[str, int]] = []
        self.tokens: set[str] = set()
        self.port = 0
        self._changed = threading.Condition()

    @property
    def netloc(self) -> str:
        return f"127.0.0.1:{self.port}"

    def set(self, host: str, key: str, value: str | None) -> None:
        with self._changed:
            self.values.pop((host, key), None)
            if value is not None:
                self.values[host, key] = value
            self._changed.notify_all()

    def google(self, host: str, key: str, etag: str, timeout_s: float) -> tuple[str, str]:
        """Value and etag, once it has another etag than that, or after the time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                value = self.values.get((host, key), self.defaults[key])
                found = f"{hash((host, key, value)):x}"
                left_s = deadline - time.monotonic()
                if found != etag or left_s <= 0:
                    return value, found
                self._changed.wait(left_s)


@contextmanager
def metadata_server(address: str = "127.0.0.1", port: int = 0, *, is_google: bool = True) -> Iterator[Cloud]:
    """A server that runs in this process until the end of the block.

    Args:
        address, port: where it listens; 0: any port.
        is_google: see `Cloud`.
    """
    cloud = Cloud(is_google=is_google)

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, text: str = "", headers: dict[str, str] | None = None) -> None:
            cloud.asked.append((self.path, status))
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            with suppress(ConnectionError):  # who waited for a change is gone
                self.end_headers()
                self.wfile.write(text.encode())

        def do_GET(self) -> None:
            parts, host = urlsplit(self.path), self.headers["User-Agent"].rpartition("host=")[2]
            if parts.path.startswith("/latest/"):
                return self.answer_as_amazon(parts.path, host)
            if not cloud.is_google or self.headers["Metadata-Flavor"] != "Google":
                return self.answer(403 if cloud.is_google else 404)
            flavor = {"Metadata-Flavor": "Google"}
            if parts.path in cloud.documents:
                text = cloud.documents[parts.path]
                kind = "application/json" if text.startswith("{") else "text/plain"
                return self.answer(200, text, {**flavor, "Content-Type": kind})
            key = parts.path.removeprefix("/computeMetadata/v1/instance/")
            if key not in cloud.defaults:
                return self.answer(200 if parts.path == "/" else 404, headers=flavor)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            assert query["wait_for_change"] == "true"
            value, etag = cloud.google(host, key, query["last_etag"], float(query["timeout_sec"]))
            return self.answer(200, value, {**flavor, "ETag": etag})

        def answer_as_amazon(self, path: str, host: str) -> None:
            if self.headers["X-aws-ec2-metadata-token"] not in cloud.tokens:
                return self.answer(401)
            is_action = path == "/latest/meta-data/spot/instance-action"
            found = cloud.values.get((host, "instance-action")) if is_action else cloud.documents.get(path)
            return self.answer(404) if found is None else self.answer(200, found)

        def do_PUT(self) -> None:
            if self.path != "/latest/api/token" or not self.headers["X-aws-ec2-metadata-token-ttl-seconds"]:
                return self.answer(400)
            token = f"token-{len(cloud.tokens)}"
            cloud.tokens.add(token)
            return self.answer(200, token)

        def log_message(self, *words: Any) -> None:
            """Nothing: a test's output is its own."""

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    cloud.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield cloud
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def action(word: str, at: str) -> str:
    """What Amazon's server says of an instance that is to go."""
    return json.dumps({"action": word, "time": at})
