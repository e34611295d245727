"""Notices of a cloud that a machine is to go, as its metadata server gives them: Google's, or Amazon's for spot.

The server is asked at 169.254.169.254, or where the variables say that Google's and Amazon's own tools obey.
"""

import contextlib
import dataclasses
import datetime
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import urlsplit

ADDRESS = "169.254.169.254"  # of both clouds, reachable only from a machine of theirs
GOOGLE_VARIABLE = "GCE_METADATA_HOST"
AMAZON_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
FIND_TIMEOUT_S = 1.0
WAIT_S = 60.0  # how long Google's server holds back an answer that has not changed
ANSWER_TIMEOUT_S = 10.0
AMAZON_PERIOD_S = 5.0  # as Amazon advises
TOKEN_S = 21600
RETRY_S = 5.0
MAX_BYTES = 1 << 16
GOOGLE_PREEMPTION_S = 30.0  # what Google gives, at best


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notice:
    """A host is to go.

    Attributes:
        kind: `preemption` or `maintenance`.
        word: the server's own, as `TERMINATE_ON_HOST_MAINTENANCE`.
        within_s: seconds that are left when it is heard; None: not known.
    """

    kind: str
    word: str
    within_s: float | None = None

    def __str__(self) -> str:
        when = "" if self.within_s is None else f" within {self.within_s:.0f} s"
        return f"its cloud will end it{when} ({self.kind}: {self.word})"


Hear = Callable[[str, Notice | None], None]


class MetadataServer(Protocol):
    """One that was found."""

    def follow(self, hear: Hear, ended: threading.Event) -> None:
        """Starts threads that call `hear(source, notice)` on every change of a source; None: it is taken back.

        They go on until `ended`, and then for one more answer at most.
        """


@dataclasses.dataclass(frozen=True)
class Answer:
    """Of an HTTP server."""

    status: int
    headers: Mapping[str, str]
    text: str


class Client:
    """Plain HTTP to a metadata server; never through a proxy.

    Args:
        netloc: HOST or HOST:PORT.
        agent: what we call ourselves.
    """

    def __init__(self, netloc: str, agent: str):
        self._netloc = netloc
        self._agent = agent

    def ask(self, method: str, path: str, headers: Mapping[str, str], timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        """One request, on a connection of its own.

        Raises:
            OSError, http.client.HTTPException: no answer.
        """
        connection = http.client.HTTPConnection(self._netloc, timeout=timeout_s)
        try:
            connection.request(method, path, headers={"User-Agent": self._agent, **headers})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read(MAX_BYTES).decode(errors="replace").strip())
        finally:
            connection.close()


def read_preempted(text: str) -> Notice | None:
    """What `instance/preempted` says: TRUE or FALSE."""
    return Notice(kind="preemption", word=text, within_s=GOOGLE_PREEMPTION_S) if text == "TRUE" else None


def read_maintenance(text: str) -> Notice | None:
    """What `instance/maintenance-event` says: NONE, TERMINATE_..., or MIGRATE_..., which a job does not notice."""
    return Notice(kind="maintenance", word=text) if text.startswith("TERMINATE") else None


class GoogleServer:
    """Of a Compute Engine or TPU VM; it answers when a value changes."""

    HEADERS: Mapping[str, str] = {"Metadata-Flavor": "Google"}  # also in its answers, and in nobody else's
    READERS: Mapping[str, Callable[[str], Notice | None]] = {
        "preempted": read_preempted,
        "maintenance-event": read_maintenance,
    }

    def __init__(self, client: Client):
        self._client = client

    @classmethod
    def at(cls, netloc: str, agent: str, timeout_s: float) -> "GoogleServer | None":
        """The server there, if it is Google's."""
        client = Client(netloc, agent)
        with contextlib.suppress(OSError, http.client.HTTPException):
            if client.ask("GET", "/", cls.HEADERS, timeout_s).headers.get("metadata-flavor") == "Google":
                return cls(client)
        return None

    def follow(self, hear: Hear, ended: threading.Event) -> None:
        for source, read in self.READERS.items():
            threading.Thread(target=self._follow, args=(source, read, hear, ended), name=source, daemon=True).start()

    def _follow(self, source: str, read: Callable[[str], Notice | None], hear: Hear, ended: threading.Event) -> None:
        etag = "0"  # of no value: the first answer comes at once
        while not ended.is_set():
            path = (
                f"/computeMetadata/v1/instance/{source}?wait_for_change=true&timeout_sec={WAIT_S:.0f}&last_etag={etag}"
            )
            try:
                answer = self._client.ask("GET", path, self.HEADERS, WAIT_S + ANSWER_TIMEOUT_S)
            except (OSError, http.client.HTTPException):
                ended.wait(RETRY_S)
                continue
            if answer.status == http.HTTPStatus.NOT_FOUND:
                return  # as on GKE, which hides some
            if answer.status == http.HTTPStatus.OK and not ended.is_set():
                hear(source, read(answer.text))
                etag = answer.headers.get("etag", "0")
            if answer.status != http.HTTPStatus.OK or etag == "0":  # it is itself moved, or cannot wait for a change
                ended.wait(RETRY_S)


class AmazonServer:
    """Of an EC2 instance; spot instances have notices there, two minutes ahead."""

    PATH = "/latest/meta-data/spot/instance-action"

    def __init__(self, client: Client, token: str):
        self._client = client
        self._token = token

    @classmethod
    def at(cls, netloc: str, agent: str, timeout_s: float) -> "AmazonServer | None":
        """The server there, if it is Amazon's."""
        client = Client(netloc, agent)
        with contextlib.suppress(OSError, http.client.HTTPException):
            if token := _token(client, timeout_s):
                return cls(client, token)
        return None

    def follow(self, hear: Hear, ended: threading.Event) -> None:
        threading.Thread(target=self._follow, args=(hear, ended), name="instance-action", daemon=True).start()

    def _follow(self, hear: Hear, ended: threading.Event) -> None:
        last: Notice | None = None
        while not ended.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                answer = self._client.ask("GET", self.PATH, {"X-aws-ec2-metadata-token": self._token})
                if answer.status == http.HTTPStatus.UNAUTHORIZED:
                    self._token = _token(self._client, ANSWER_TIMEOUT_S)
                    continue
                if answer.status in (http.HTTPStatus.OK, http.HTTPStatus.NOT_FOUND):
                    found = read_action(answer.text, time.time()) if answer.status == http.HTTPStatus.OK else None
                    if (found is None) != (last is None) and not ended.is_set():
                        hear("instance-action", found)
                    last = found
            ended.wait(AMAZON_PERIOD_S)


def _token(client: Client, timeout_s: float) -> str:
    """A token of IMDSv2, or ''."""
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
    answer = client.ask("PUT", "/latest/api/token", headers, timeout_s)
    return answer.text if answer.status == http.HTTPStatus.OK else ""


def read_action(text: str, now_s: float) -> Notice | None:
    """What `spot/instance-action` says: `{"action": "terminate", "time": "2026-11-22T08:00:00Z"}`.

    Args:
        now_s: seconds since the epoch.
    """
    try:
        said = json.loads(text)
        action, at = said["action"], datetime.datetime.fromisoformat(said["time"])
    except (ValueError, KeyError, TypeError):
        return Notice(kind="preemption", word=text[:80])  # that there is one is all that counts
    if at.tzinfo is None:
        at = at.replace(tzinfo=datetime.UTC)
    return Notice(kind="preemption", word=str(action), within_s=max(0.0, at.timestamp() - now_s))


def find_server(environment: Mapping[str, str], host: str) -> MetadataServer | None:
    """The metadata server of this machine; takes FIND_TIMEOUT_S, twice at most, where there is none.

    Args:
        environment: variables that redirect or forbid the search.
        host: our name of this machine, which the server is told.
    """
    agent = f"spmd-launch host={host}"
    amazon = urlsplit(environment.get(AMAZON_VARIABLE, "")).netloc
    google = environment.get(GOOGLE_VARIABLE, "")
    if google:
        return GoogleServer.at(google, agent, ANSWER_TIMEOUT_S)
    if amazon:
        return AmazonServer.at(amazon, agent, ANSWER_TIMEOUT_S)
    found: MetadataServer | None = None
    if environment.get("NO_GCE_CHECK", "").lower() != "true":
        found = GoogleServer.at(ADDRESS, agent, FIND_TIMEOUT_S)
    if found is None and environment.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
        found = AmazonServer.at(ADDRESS, agent, FIND_TIMEOUT_S)
    return found
