"""Strangers without credentials against the channels of a job that runs: what docs/security.md says is shown here."""

import inspect
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.certificates import Authority, new_request, write_files
from tests.conftest import ROOT, Cli
from tests.e2e.attackers import PATIENCE_S

pytestmark = pytest.mark.cluster

# Rank 1 sleeps while the strangers come: the job cannot end before they have, however fast the machine is.
SLEEPS = tuple(word for step in (20, 40, 50) for word in ("--inject", f"sleep rank=1 step={step} seconds=7"))
STEPS = ("--set", "steps=60", "--set", "size=32", "--set", "report_every=10")


def has_mutual_tls() -> bool:
    import jax

    return "mtls_cert_file" in inspect.signature(jax.distributed.initialize).parameters


@pytest.fixture
def needs_mutual_tls() -> None:
    if not has_mutual_tls():
        pytest.skip("this JAX has no mutual TLS")


@pytest.fixture(scope="module")
def calm_digest(cli: Cli, cluster: str) -> str:
    cli("submit", "psum-check", *STEPS, "--name", "unmolested")
    digest: str = cli.json("results", "unmolested")["result_digest"]
    return digest


class Attackers:
    """Processes of strangers, ready to attack."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, kind: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "e2e" / "attackers.py"), kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.processes.append(process)
        assert line(process) == "ready"
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def attackers() -> Iterator[Attackers]:
    strangers = Attackers()
    yield strangers
    strangers.end()


def say(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(words + "\n")
    process.stdin.flush()


def line(process: subprocess.Popen[str]) -> str:
    """The stranger's next answer; empty if it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def start_job(cli: Cli, name: str) -> str:
    """Starts a job and waits until rank 1 sleeps between two steps; returns the coordinator's address."""
    cli("submit", "psum-check", *STEPS, *SLEEPS, "--name", name, "--detach")
    cli.wait_for(lambda: events(cli, name, "injected"))
    (coordinator,) = events(cli, name, "coordinator")
    address: str = coordinator["address"]
    return address


def events(cli: Cli, job: str, kind: str) -> list[dict[str, Any]]:
    lines = (cli.home / "jobs" / job / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["type"] == kind]


def assert_runs(cli: Cli, name: str) -> None:
    """The strangers were there while the job ran, or nothing is shown."""
    assert not events(cli, name, "result") and cli.json("status", name)["state"] != "SUCCEEDED"


def finish(cli: Cli, name: str) -> dict[str, Any]:
    cli.wait_for(lambda: cli.json("status", name)["state"] in ("SUCCEEDED", "FAILED"), 120.0)
    return cli.job(name)


def listening(pid: int) -> list[Any]:
    """Addresses on which the process listens, by its open files and the kernel's tables."""
    found = psutil.Process(pid).net_connections("tcp")
    return [connection.laddr for connection in found if connection.status == psutil.CONN_LISTEN]


def pids(cli: Cli, name: str) -> list[int]:
    return [rank["pid"] for rank in cli.json("status", name)["ranks"]]


def test_ranks_listen_on_their_hosts_address_and_nowhere_else(cli: Cli, cluster: str) -> None:
    coordinator = start_job(cli, "listens")
    found = [listening(pid) for pid in pids(cli, "listens")]
    expected = {host["address"] for host in cli.record(cluster)["hosts"]}
    assert [len(addresses) for addresses in found] == [2, 1], "gloo on each, the coordination service on the first"
    assert int(coordinator.rpartition(":")[2]) in {address.port for address in found[0]}
    assert {address.ip.removeprefix("::ffff:") for addresses in found for address in addresses} == expected
    cli("cancel", "listens")


@pytest.mark.long
def test_noise_and_silence_change_nothing(cli: Cli, cluster: str, calm_digest: str, attackers: Attackers) -> None:
    strangers = [attackers.start(kind) for kind in ("garbage", "hold") for _ in range(3)]
    coordinator = start_job(cli, "noise")
    addresses = {f"127.0.0.1:{address.port}" for pid in pids(cli, "noise") for address in listening(pid)}
    assert coordinator in addresses and len(addresses) == 3
    for stranger, address in zip(strangers, [*addresses, *addresses], strict=True):
        say(stranger, address)
    assert all(line(stranger) for stranger in strangers)
    assert_runs(cli, "noise")
    job = finish(cli, "noise")
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 1)
    assert job["result"]["result_digest"] == calm_digest


def credentials(cli: Cli, cluster: str, folder: Path, whose: str, attempt_id: str) -> str:
    """Certificates as a stranger might have them: of an authority of its own, or of another attempt of this cluster."""
    home = cli.home / "clusters" / cluster
    if whose == "own authority":
        home = folder / "authority"
        home.mkdir()
    key, request = new_request()
    certificate = Authority.open(home, "stranger").issue(request, attempt_id, 1)
    write_files(folder / "tls", key, certificate)
    return str(folder / "tls")


@pytest.mark.slow
@pytest.mark.usefixtures("needs_mutual_tls")
def test_an_impersonator_is_refused(
    cli: Cli, cluster: str, calm_digest: str, attackers: Attackers, tmp_path: Path
) -> None:
    strangers = {whose: attackers.start("impersonate") for whose in ("nobody", "own authority", "another attempt")}
    coordinator = start_job(cli, "impersonated")
    (attempt,) = events(cli, "impersonated", "attempt")
    for whose, stranger in strangers.items():
        attempt_id = "impersonated.1.0" if whose == "another attempt" else attempt["attempt_id"]
        folder = ""
        if whose != "nobody":
            (tmp_path / whose.replace(" ", "-")).mkdir()
            folder = credentials(cli, cluster, tmp_path / whose.replace(" ", "-"), whose, attempt_id)
        say(stranger, f"{coordinator} {folder}")
    assert [line(stranger) for stranger in strangers.values()] == ["connecting"] * 3
    time.sleep(PATIENCE_S)
    assert_runs(cli, "impersonated")
    assert [line(stranger) for stranger in strangers.values()] == ["", "", ""], "JAX has ended them, not let them in"
    job = finish(cli, "impersonated")
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 1)
    assert job["result"]["result_digest"] == calm_digest
    assert not events(cli, "impersonated", "unguarded")


@pytest.mark.slow
def test_a_job_that_was_broken_into_names_a_rank_and_recovers(
    cli: Cli, cluster: str, calm_digest: str, attackers: Attackers, tmp_path: Path
) -> None:
    """Where JAX has no mutual TLS, any stranger can; where it has, only who holds a certificate of the very attempt."""
    stranger = attackers.start("impersonate")
    coordinator = start_job(cli, "broken-into")
    (attempt,) = events(cli, "broken-into", "attempt")
    folder = ""
    if has_mutual_tls():
        folder = credentials(cli, cluster, tmp_path, "this attempt", attempt["attempt_id"])
    say(stranger, f"{coordinator} {folder}")
    job = finish(cli, "broken-into")
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 2)
    assert job["result"]["result_digest"] == calm_digest
    (failed,) = events(cli, "broken-into", "attempt-failed")
    assert re.match(rf"(rank \d on host|ranks \d on) {cluster}-", failed["message"])
    unguarded = [event["channel"] for event in events(cli, "broken-into", "unguarded")]
    assert unguarded == ([] if has_mutual_tls() else ["coordination service"])


def test_no_key_is_in_an_argument_a_log_or_a_record(cli: Cli, cluster: str) -> None:
    start_job(cli, "secrets")
    hosts = [Path(host["folder"]) for host in cli.record(cluster)["hosts"]]
    keys = [path for host in hosts for path in host.glob("attempts/*/tls/key.pem")]
    assert len(keys) == 2
    secrets = ["".join(path.read_text().splitlines()[1:-1]) for path in keys]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in keys)
    cli("cancel", "secrets")
    records = [path for path in (cli.home / "jobs" / "secrets").rglob("*") if path.is_file()]
    records += list((cli.home / "clusters" / cluster).glob("*.log"))
    records += [path for host in hosts for path in host.glob("*.log")]
    texts = [path.read_text(errors="replace") for path in records]
    assert not [path for path, text in zip(records, texts, strict=True) if "PRIVATE KEY" in text]
    assert not [text for text in texts for secret in secrets if secret[:40] in text]
    cli.wait_for(lambda: not any(path.exists() for path in keys), 10.0)


def test_doctor_says_what_guards_the_channels(cli: Cli, cluster: str) -> None:
    out, _ = cli.start("doctor", cluster, "--json").communicate(timeout=120)  # whatever else it finds
    found = {check["what"]: check for check in json.loads(out)["machine"]}
    guarded = found["coordination service"]["found"] == "guarded by mutual TLS"
    assert guarded == has_mutual_tls()
    assert found["gloo"]["found"] == "listens on the host's address"


@pytest.mark.slow
def test_nothing_of_a_local_cluster_can_be_reached_from_other_machines(cli: Cli, cluster: str) -> None:
    start_job(cli, "exposed")
    (exposure,) = cli.json("doctor", cluster, "--security")
    finish(cli, "exposed")
    text = cli("doctor", cluster, "--security")
    processes = [row["process"] for row in exposure["sockets"] if row["protocol"] == "tcp"]
    expected = {"GCS": 1, "raylet": 2, "object manager": 2, "agent (Ray worker)": 2, "supervisor (Ray worker)": 1,
                "rank 0: coordinator": 1, "rank 0: gloo": 1, "rank 1: gloo": 1}  # fmt: skip
    assert {process: processes.count(process) for process in expected} == expected
    assert {row["reach"] for row in exposure["sockets"]} == {"this host", "this user"}
    assert {row["guard"] for row in exposure["sockets"] if row["protocol"] == "unix"} == {"permissions"}
    assert exposure["firewalls"] == [] and "No other machine can connect" in text
    assert max(len(line) for line in text.splitlines()) <= 80
