"""Notices of a cloud, from a server on this machine that speaks the clouds' protocols."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator

import pytest

import launcher.host_notices
import launcher.notices
from launcher.host_notices import HostNotices
from launcher.notices import Notice, find_server, read_action, read_maintenance, read_preempted
from tests.metadata_server import Cloud, action, metadata_server

PREEMPTED = Notice(kind="preemption", word="TRUE", within_s=30.0)
MAINTENANCE = Notice(kind="maintenance", word="TERMINATE_ON_HOST_MAINTENANCE")


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setattr(launcher.notices, "AMAZON_PERIOD_S", 0.02)
    monkeypatch.setattr(launcher.notices, "FIND_TIMEOUT_S", 30.0)
    with metadata_server() as server:
        yield server


def test_what_the_words_mean() -> None:
    assert read_preempted("TRUE") == PREEMPTED and read_preempted("FALSE") is None
    assert read_maintenance("TERMINATE_ON_HOST_MAINTENANCE") == MAINTENANCE
    assert read_maintenance("NONE") is None
    assert read_maintenance("MIGRATE_ON_HOST_MAINTENANCE") is None, "it goes on elsewhere by itself"
    text = action("terminate", "2026-11-22T08:02:00Z")
    assert read_action(text, 1795334400.0) == Notice(kind="preemption", word="terminate", within_s=120.0)
    assert read_action(text, 1795339999.0) == Notice(kind="preemption", word="terminate", within_s=0.0)
    assert read_action("<html>", 0.0) == Notice(kind="preemption", word="<html>")


Last = Callable[[], Notice | None]


def follow(host: str, environment: dict[str, str], steps: Callable[[Last], object]) -> list[Notice | None]:
    """What the agent of a host hears while `steps` are made, which are given what it has heard last."""

    async def run() -> list[Notice | None]:
        notices = HostNotices(host, environment)
        heard: list[Notice | None] = []
        number, doing = -1, asyncio.create_task(asyncio.to_thread(steps, lambda: heard[-1] if heard else None))
        while not doing.done() or number != notices._number:
            number, notice = await notices.wait(number, 0.05)
            if not heard or heard[-1] != notice:
                heard.append(notice)
        await doing
        notices.close()
        return heard

    return asyncio.run(run())


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60.0
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_google_tells_of_a_change_and_of_its_end(cloud: Cloud) -> None:
    def steps(last: Last) -> None:
        cloud.set("lab-0", "preempted", "TRUE")  # another host's
        cloud.set("lab-1", "maintenance-event", MAINTENANCE.word)
        until(lambda: last() == MAINTENANCE)
        cloud.set("lab-1", "preempted", "TRUE")
        until(lambda: last() == PREEMPTED)  # its end is nearer
        cloud.set("lab-1", "preempted", "FALSE")
        until(lambda: last() == MAINTENANCE)
        cloud.set("lab-1", "maintenance-event", "NONE")
        until(lambda: last() is None)

    heard = follow("lab-1", {"GCE_METADATA_HOST": cloud.netloc}, steps)
    assert [notice for notice in heard if notice] == [MAINTENANCE, PREEMPTED, MAINTENANCE] and heard[-1] is None
    assert len(cloud.asked) < 20, "it waits for changes, and does not ask again and again"


def test_amazon_tells_too_and_a_token_that_has_run_out_is_renewed(cloud: Cloud) -> None:
    def steps(last: Last) -> None:
        until(lambda: cloud.tokens)
        cloud.tokens.clear()
        cloud.tokens.add("of somebody else")
        cloud.set("lab-1", "instance-action", action("stop", "2020-01-01T00:00:00Z"))
        until(last)
        cloud.set("lab-1", "instance-action", None)
        until(lambda: last() is None)

    heard = follow("lab-1", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{cloud.netloc}/"}, steps)
    assert [notice for notice in heard if notice] == [Notice(kind="preemption", word="stop", within_s=0.0)]
    assert heard[-1] is None
    assert 401 in {status for _, status in cloud.asked}


def test_a_server_of_nobody_s_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:  # it accepts, and says nothing
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        monkeypatch.setattr(launcher.notices, "ADDRESS", f"127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setattr(launcher.notices, "FIND_TIMEOUT_S", 0.05)
        assert find_server({}, "lab-0") is None
        assert find_server({"NO_GCE_CHECK": "true", "AWS_EC2_METADATA_DISABLED": "true"}, "lab-0") is None


def test_a_server_that_was_late_is_found_when_it_is_looked_for_again(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher.host_notices, "SEARCH_AGAIN_S", (0.2,) * 100)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setattr(launcher.notices, "ADDRESS", f"127.0.0.1:{nobody.getsockname()[1]}")

    def steps(last: Last) -> None:
        time.sleep(0.1)
        monkeypatch.setattr(launcher.notices, "ADDRESS", cloud.netloc)
        cloud.set("lab-1", "preempted", "TRUE")
        until(lambda: last() == PREEMPTED)

    assert PREEMPTED in follow("lab-1", {"AWS_EC2_METADATA_DISABLED": "true"}, steps)


@pytest.mark.parametrize("variables", [{}, {"NO_GCE_CHECK": "true"}])
def test_the_usual_address_is_asked_for_either_cloud(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    monkeypatch.setattr(launcher.notices, "ADDRESS", cloud.netloc)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # which nothing that it is told may go through
    found = find_server(variables, "lab-0")
    assert type(found).__name__ == ("AmazonServer" if variables else "GoogleServer")
