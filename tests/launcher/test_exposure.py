"""From sockets to who can reach them, what guards them, and rules that close them."""

import socket
import tempfile
from pathlib import Path

import pytest

from cluster.processes import ProcessId
from cluster.sockets import Listening, is_private, listening, machine_id, port_range
from launcher.cli.security import Exposure, rows_table, show
from launcher.exposure import firewalls, judge
from launcher.host_sockets import HostSockets, RankHere

RAYLET = ("/venv/ray/raylet/raylet", "--head")


def listens(
    address: str, port: int, pid: int, *command: str, protocol: str = "tcp", private: bool = False
) -> Listening:
    return Listening(protocol=protocol, address=address, port=port, pid=pid, command=command, private=private)


def host(name: str, address: str, *sockets: Listening, machine: str = "", ranks: dict[int, RankHere] | None = None):
    return HostSockets(
        host=name,
        address=address,
        machine=machine or name,
        port_range=(32768, 60999),
        sockets=sockets,
        ranks=ranks or {},
    )


HEAD = host(
    "one", "10.0.0.1",
    listens("::", 40000, 10, "/venv/ray/gcs/gcs_server", "--x"),
    listens("::", 40001, 11, *RAYLET),
    listens("::", 40002, 11, *RAYLET),
    listens("::", 40003, 12, "ray::Agent.events"),
    listens("10.0.0.1", 40004, 13, "python", "-m", "launcher.rank.template"),
    listens("10.0.0.1", 40005, 13, "python", "-m", "launcher.rank.template"),
    listens("/tmp/spl/raylet", 0, 11, *RAYLET, protocol="unix", private=True),
    listens("/tmp/open/plasma", 0, 11, *RAYLET, protocol="unix"),
    listens("127.0.0.1", 8000, 14, "python", "mine.py"),
    ranks={13: RankHere(words="rank 0", coordinator="10.0.0.1:40004", mutual_tls=True)},
)  # fmt: skip
OTHER = host("two", "10.0.0.2", listens("0.0.0.0", 41000, 10, *RAYLET), listens("10.0.0.2", 7777, 12, "sh", "x"))
PORTS = {"10.0.0.1:40001": "raylet", "10.0.0.1:40002": "object manager", "10.0.0.2:41000": "raylet"}


def test_each_socket_is_named_with_who_can_reach_it_and_what_guards_it() -> None:
    found = [(row.hosts[0], row.port, row.process, row.reach, row.guard) for row in judge([HEAD, OTHER], PORTS)]
    assert found == [
        ("one", 8000, "python", "this host", "nothing"),
        ("one", 40000, "GCS", "everybody", "Ray's token"),
        ("one", 40001, "raylet", "everybody", "Ray's token"),
        ("one", 40002, "object manager", "everybody", "Ray's token"),
        ("one", 40003, "agent (Ray worker)", "everybody", "Ray's token"),
        ("one", 40004, "rank 0: coordinator", "its network", "mutual TLS"),
        ("one", 40005, "rank 0: gloo", "its network", "nothing"),
        ("one", 0, "raylet", "this host", "nothing"),
        ("one", 0, "raylet", "this user", "permissions"),
        ("two", 7777, "sh", "its network", "nothing"),
        ("two", 41000, "raylet", "everybody", "Ray's token"),
    ]


def test_a_coordinator_without_certificates_has_no_guard() -> None:
    rank = RankHere(words="rank 0", coordinator="10.0.0.1:40004")
    (row,) = judge([host("one", "10.0.0.1", listens("10.0.0.1", 40004, 13, "python"), ranks={13: rank})], {})
    assert (row.process, row.guard) == ("rank 0: coordinator", "nothing")


def test_emulated_hosts_of_one_machine_are_told_once() -> None:
    """A worker's name for itself changes with what it does."""
    seen = [
        host("lab-0", "127.0.0.1", listens("127.0.0.1", 40003, 12, "ray::Agent.events"), machine="m"),
        host("lab-1", "127.0.0.1", listens("127.0.0.1", 40003, 12, "ray::Agent.sockets"), machine="m"),
    ]
    (row,) = judge(seen, {})
    assert row.hosts == ("lab-0", "lab-1") and row.process == "agent (Ray worker)"
    assert not firewalls(seen, [row])


def test_rules_close_what_is_open_and_let_the_hosts_and_sshd_in() -> None:
    seen = [HEAD, OTHER]
    first, second = firewalls(seen, judge(seen, PORTS), sshd_ports=[50022])
    assert (first.hosts, second.hosts) == (("one",), ("two",))
    lines = [line.strip() for line in second.rules.splitlines()]
    assert lines.index("ip saddr { 10.0.0.1, 10.0.0.2 } accept") < lines.index("tcp dport { 32768-60999, 7777 } drop")
    assert lines.index("tcp dport 50022 accept") < lines.index("tcp dport { 32768-60999, 7777 } drop")
    assert "tcp dport { 32768-60999 } drop" in first.rules


def test_an_address_of_ipv6_has_a_rule_of_its_own() -> None:
    seen = [host("one", "fd00::1", listens("fd00::1", 40000, 1, "x"))]
    assert "ip6 saddr { fd00::1 } accept" in firewalls(seen, judge(seen, {}))[0].rules


def test_the_table_fits_80_columns_and_marks_what_is_open_and_unguarded(capsys: pytest.CaptureFixture[str]) -> None:
    rows = judge([HEAD, OTHER], PORTS)
    marked = [line for line in rows_table(rows).splitlines() if line.startswith("!")]
    assert [line.split()[1] for line in marked] == ["10.0.0.1:40005", "10.0.0.2:7777"]
    show([Exposure("lab", rows, firewalls([HEAD, OTHER], rows))], as_json=False)
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


def test_what_agents_send_survives_json() -> None:
    assert HostSockets.from_json(HEAD.to_json()) == HEAD


def test_sockets_of_a_process_are_read_from_the_kernel(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as accepting,
        socket.socket(socket.AF_UNIX) as bound,
        socket.create_connection(tcp.getsockname()),
    ):
        address = tcp.getsockname()
        udp.bind(("::1", 0))
        accepting.bind(str(tmp_path / "accepting"))
        accepting.listen()
        bound.bind(str(tmp_path / "bound"))  # and takes no connections
        found = {(one.protocol, one.address, one.port) for one in listening([ProcessId.current()])}
    assert ("unix", str(tmp_path / "accepting"), 0) in found and ("unix", str(tmp_path / "bound"), 0) not in found
    assert [address for protocol, address, _ in found if protocol == "udp"] == ["::1"]
    assert [place for place in found if place[0] == "tcp"] == [("tcp", *address)], "a connection waits for nobody"


def test_a_socket_is_private_if_its_mode_or_a_folder_above_says_so() -> None:
    with tempfile.TemporaryDirectory(prefix="slt-") as name, socket.socket(socket.AF_UNIX) as bound:
        folder, path = Path(name), Path(name) / "socket"
        bound.bind(str(path))
        for folder_mode, mode, expected in ((0o755, 0o777, False), (0o755, 0o700, True), (0o700, 0o777, True)):
            folder.chmod(folder_mode)
            path.chmod(mode)
            assert is_private(str(path)) == expected
        folder.chmod(0o755)
        assert not is_private("@abstract") and not is_private(str(folder / "gone"))


def test_this_machine_has_an_identity_and_a_range_of_ports() -> None:
    low, high = port_range()
    assert 1024 <= low < high < 2**16
    assert machine_id() == machine_id() != ""
