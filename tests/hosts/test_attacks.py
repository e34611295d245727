"""A machine on the hosts' network that is no member and has no credentials, against a job that runs.

What docs/security.md says about strangers is shown here, row by row.
"""

import inspect
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.exposure import NOTHING, TLS, TOKEN
from tests.conftest import ROOT, Cli
from tests.hosts.conftest import Lab
from tests.hosts.machines import claimed, missing

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]

MEMBERS = ("h1", "h2", "h3")
SSHD = 22
STEPS = ("--set", "steps=60", "--set", "size=32", "--set", "report_every=1")
# The job is there for as long as the attacks take; each pause is too short to be taken for a hang.
PAUSES = [word for step in range(5, 35) for word in ("--inject", f"sleep rank=1 step={step} seconds=3")]
LATE = 20  # a job at this step may end before an attack does
UNAUTHENTICATED = "16"
WRONG_TOKEN = "a" * 64
STRANGER = (ROOT / "tests" / "hosts" / "stranger.py").read_text()
ATTACKERS = (ROOT / "tests" / "e2e" / "attackers.py").read_text()

# Calls that would do harm, with an empty message, and one that only asks.
CALLS = {
    "GCS": (
        "ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
        "ray.rpc.NodeInfoGcsService/DrainNode",
        "ray.rpc.InternalKVGcsService/InternalKVKeys",
        "ray.rpc.ActorInfoGcsService/RegisterActor",
    ),
    "raylet": (
        "ray.rpc.NodeManagerService/GetNodeStats",
        "ray.rpc.NodeManagerService/ShutdownRaylet",
        "ray.rpc.NodeManagerService/RequestWorkerLease",
    ),
    "object manager": ("ray.rpc.ObjectManagerService/Pull", "ray.rpc.ObjectManagerService/Push"),
    "worker": (
        "ray.rpc.CoreWorkerService/GetCoreWorkerStats",
        "ray.rpc.CoreWorkerService/KillActor",
        "ray.rpc.CoreWorkerService/PushTask",
        "ray.rpc.CoreWorkerService/Exit",
    ),
}
# Joins by Ray's own code, as a driver would, and what it says when it is in.
DRIVER = """
import sys
from ray._raylet import GcsClient
print("IN", len(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10)))
"""


@pytest.fixture(scope="module")
def exposed() -> Iterator[Lab]:
    """A cluster of three hosts that is up, and a fourth machine beside them, `stranger`."""
    if why := missing():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="slt-") as folder, ExitStack() as stack:
        hosts = stack.enter_context(claimed((*MEMBERS, "stranger"), from_machine=True))
        file = Path(folder) / "lab.yaml"
        hosts.write_lab(file, names=MEMBERS)
        lab = Lab(Cli(Path(folder)), hosts, file)
        stack.callback(lab.cli, "down", lab.name, "--force")
        lab.cli("up", str(file))
        yield lab


@pytest.fixture(scope="module")
def calm_digest(exposed: Lab) -> str:
    digest: str = exposed.cli.json("submit", "psum-check", *STEPS, "--name", "calm")["result_digest"]
    return digest


class Jobs:
    """Jobs that run while strangers come, one after the other; each must give the undisturbed result.

    Attributes:
        name: of the one that runs.
    """

    def __init__(self, lab: Lab, calm_digest: str):
        self.lab, self.calm_digest = lab, calm_digest
        self.number = 0
        self.name = ""

    def have_one_running(self) -> None:
        """For as long as any attack takes on a quiet machine."""
        if self.name and self.assert_untouched()["ranks"][1]["step"] < LATE:
            return
        self.finish()
        self.number += 1
        self.name = f"attacked-{self.number}"
        self.lab.cli("submit", "psum-check", *STEPS, *PAUSES, "--name", self.name, "--detach")
        self.lab.cli.wait_for(lambda: self.assert_untouched()["ranks"][1:] and self._step() > 0, 120.0)

    def _step(self) -> int:
        step: int = self.lab.cli.json("status", self.name)["ranks"][1]["step"]
        return step

    def assert_untouched(self) -> dict[str, Any]:
        """It is in its first attempt still, or has ended in it as it should."""
        status: dict[str, Any] = self.lab.cli.json("status", self.name)
        assert status["attempt"] <= 1 and status["state"] != "FAILED", status["message"]
        if status["state"] == "SUCCEEDED":
            assert self.lab.cli.json("results", self.name)["result_digest"] == self.calm_digest
            status["ranks"] = [{"step": LATE}] * len(MEMBERS)
        return status

    def finish(self) -> None:
        if self.name:
            self.lab.cli.wait_for(lambda: self.assert_untouched()["state"] == "SUCCEEDED", 300.0)


@pytest.fixture(scope="module")
def jobs(exposed: Lab, calm_digest: str) -> Jobs:
    return Jobs(exposed, calm_digest)


@pytest.fixture
def attacked(exposed: Lab, jobs: Jobs) -> Iterator[Lab]:
    """A job runs when the attack begins, and is not touched by it."""
    jobs.have_one_running()
    yield exposed
    jobs.assert_untouched()


def sockets(lab: Lab) -> list[dict[str, Any]]:
    (exposure,) = lab.cli.json("doctor", lab.name, "--security")
    rows: list[dict[str, Any]] = exposure["sockets"]
    return rows


def open_places(lab: Lab) -> dict[tuple[str, int], dict[str, Any]]:
    """What other machines can connect to, by address and port; hosts are called by their addresses here."""
    rows = [row for row in sockets(lab) if row["reach"] in ("its network", "everybody")]
    assert all(row["protocol"] == "tcp" for row in rows), "no datagrams, no sockets without a place in the file system"
    return {(row["hosts"][0], row["port"]): row for row in rows}


@contextmanager
def stranger(lab: Lab, kind: str, argument: Any) -> Iterator[Any]:
    """What `stranger.py` finds; its connections stay open until the end of the block."""
    argv = lab.hosts["stranger"].enter([sys.executable, "-c", STRANGER, kind, json.dumps(argument)])
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.communicate(timeout=30)


def test_the_list_of_doctor_is_whole(attacked: Lab) -> None:
    """Nothing answers a stranger but what is on the list, and the sshd: no dashboard, no Jobs API, no Ray client."""
    addresses = [attacked.hosts[name].address for name in MEMBERS[:2]]  # the head, and one like all others
    before = {place for place in open_places(attacked) if place[0] in addresses}
    with stranger(attacked, "scan", addresses) as found:
        answering = {(host, port) for host, ports in found.items() for port in ports if port != SSHD}
    after = set(open_places(attacked))
    assert answering <= before | after, "workers of Ray's may come and go meanwhile"
    assert before & after <= answering
    assert {port for _, port in answering}.isdisjoint({8265, 10001, 6379, 52365})


def call(lab: Lab, address: str, port: int, method: str, token: str | None) -> str:
    """The status with which gRPC answers a call from the stranger."""
    script = (
        'printf "\\0\\0\\0\\0\\0" | curl --silent --http2-prior-knowledge --max-time 20 --output /dev/null '
        '--dump-header - --header "content-type: application/grpc" --header "te: trailers" '
        '${2:+--header "authorization: Bearer $2"} --data-binary @- "$1"'
    )
    url = f"http://{address}:{port}/{method}"
    done = lab.hosts["stranger"].run(["sh", "-c", script, "call", url, token or ""])
    status = [line.split(":")[1].strip() for line in done.stdout.splitlines() if line.startswith("grpc-status:")]
    return status[0] if status else f"no status: {done.stdout!r}"


def test_rays_ports_refuse_every_call_without_the_token(attacked: Lab) -> None:
    token = (attacked.hosts["h1"].path(f"{attacked_folder(attacked)}/token")).read_text()
    guarded = {place: row["process"] for place, row in open_places(attacked).items() if row["guard"] == TOKEN}
    kinds = {place: "worker" if "worker" in process else process for place, process in guarded.items()}
    assert set(kinds.values()) == set(CALLS), "all of Ray's services are attacked"
    for (address, port), kind in kinds.items():
        for method in CALLS[kind]:
            for wrong in (None, WRONG_TOKEN):
                status = call(attacked, address, port, method, wrong)
                assert status == UNAUTHENTICATED, f"{kind} {address}:{port} {method}: {status}"
    for kind, place in {kind: place for place, kind in kinds.items()}.items():  # or nothing is shown by a refusal
        assert call(attacked, *place, CALLS[kind][0], token) == "0"


def attacked_folder(lab: Lab) -> str:
    return f"/root/.spmd-launch/hosts/{lab.hosts['h1'].address}/clusters/{lab.name}"


def join(lab: Lab, environment: dict[str, str], argv: Sequence[str]) -> subprocess.Popen[str]:
    entered = lab.hosts["stranger"].enter([sys.executable, *argv], {**environment, "RAY_USAGE_STATS_ENABLED": "0"})
    return subprocess.Popen(entered, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_nobody_joins_ray_without_the_token(attacked: Lab) -> None:
    gcs = attacked.cli.record(attacked.name)["gcs_address"]
    driver = ["-c", DRIVER, gcs]
    node = ["-m", "ray.scripts.scripts", "start", f"--address={gcs}", "--num-cpus=1",
            f"--node-ip-address={attacked.hosts['stranger'].address}", "--object-store-memory=80000000"]  # fmt: skip
    keys = [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": WRONG_TOKEN}]
    attempts = [join(attacked, key, argv) for key in keys for argv in (driver, node)]
    try:
        for attempt in attempts:
            output, _ = attempt.communicate(timeout=180)
            assert attempt.returncode != 0 and "IN" not in output.split(), output
            assert "InvalidAuthToken" in output or "authentication" in output.lower(), output
    finally:
        for attempt in attempts:
            attempt.kill()
            attempt.communicate()
    assert not attacked.hosts["stranger"].processes()
    token = (attacked.hosts["h1"].path(f"{attacked_folder(attacked)}/token")).read_text()
    member = join(attacked, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}, driver)
    assert member.communicate(timeout=120)[0].split()[-2:] == ["IN", "3"]


@pytest.mark.long
def test_noise_on_every_port_gets_nothing_of_ours(attacked: Lab) -> None:
    places = open_places(attacked)
    processes = {row["process"] for row in places.values()}
    assert {"rank 0: coordinator", *(f"rank {k}: gloo" for k in range(3))} < processes
    with stranger(attacked, "noise", list(places)) as answers:
        heard = [answer for _, _, _, answer in answers]
    assert len(heard) > len(places)
    assert not [text for text in heard if "hosts" in text or "jobs" in text or "200 OK" in text]


def test_the_coordinator_takes_no_rank_without_a_certificate(attacked: Lab) -> None:
    import jax

    coordinator = next(row for row in sockets(attacked) if row["process"] == "rank 0: coordinator")
    if "mtls_cert_file" not in inspect.signature(jax.distributed.initialize).parameters:
        assert coordinator["guard"] == NOTHING
        pytest.skip("this JAX has no mutual TLS; what happens without is in tests/e2e/test_security.py")
    assert coordinator["guard"] == TLS
    argv = attacked.hosts["stranger"].enter([sys.executable, "-c", ATTACKERS, "impersonate"])
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output, errors = process.communicate(f"{coordinator['address']}:{coordinator['port']}\n", timeout=60)
    assert output.split() == ["ready", "connecting"] and process.returncode, errors


@pytest.mark.parametrize("name", MEMBERS)
def test_another_user_of_a_host_gets_neither_keys_nor_sockets(attacked: Lab, name: str) -> None:
    host = attacked.hosts[name]
    address = host.address
    home = f"/root/.spmd-launch/hosts/{address}"
    cluster = host.path(f"{home}/clusters/{attacked.name}")
    secrets = [*cluster.glob("token"), *cluster.glob("hosts/*/attempts/*/tls/key.pem"), *cluster.glob("*.key")]
    assert len(secrets) >= 2
    inside = [str(Path("/") / secret.relative_to(host.path("/"))) for secret in secrets]
    paths = [row["address"] for row in sockets(attacked) if row["protocol"] == "unix" and row["hosts"] == [address]]
    assert len(paths) >= 2
    code = (
        "import os, socket, sys\n"
        "connect = lambda path: socket.socket(socket.AF_UNIX).connect(path)\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "for path in sys.argv[1:]:\n"
        "    for act in (connect if '/spl-' in path else open, os.unlink):\n"
        "        try: act(path); print('got', path)\n"
        "        except PermissionError: print('refused')\n"
    )
    done = host.run([sys.executable, "-c", code, *inside, *paths])
    assert done.stdout.split() == ["refused"] * 2 * len([*inside, *paths]), done.stdout


def test_the_jobs_give_the_undisturbed_result(jobs: Jobs) -> None:
    assert jobs.number
    jobs.finish()


def test_the_rules_of_doctor_close_what_is_open_and_let_the_hosts_in(exposed: Lab, calm_digest: str) -> None:
    (exposure,) = exposed.cli.json("doctor", exposed.name, "--security")
    (firewall,) = exposure["firewalls"]
    assert firewall["hosts"] == [exposed.hosts[name].address for name in MEMBERS]
    places = list(open_places(exposed))
    with stranger(exposed, "knock", places) as open_before:
        assert len(open_before) == len(places)
    for name in MEMBERS * 2:  # loaded again, they replace themselves
        exposed.hosts[name].run(["sh", "-c", 'printf %s "$1" | nft -f -', "load", firewall["rules"]])
    ways_in = [[exposed.hosts[name].address, SSHD] for name in MEMBERS]
    with stranger(exposed, "knock", places + ways_in) as open_after:
        assert open_after == ways_in
    record = exposed.cli.json("submit", "psum-check", *STEPS, "--name", "behind-the-wall")
    assert (record["state"], record["result_digest"]) == ("SUCCEEDED", calm_digest)
