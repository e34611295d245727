"""The bootstrap of a user's script: the standard library alone until the script imports JAX, and no trace of us."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.certificates import Authority, new_request, write_files
from launcher.command import PHASE
from launcher.command_process import BOOTSTRAP
from tests.conftest import ROOT
from tests.ranks import reserved_port

ASSIGNMENT = {
    "type": "assign", "rank": 0, "num_ranks": 1, "attempt": 1, "host": "h0", "address": "127.0.0.1",
    "program_barrier": True, "watch_launches": False,
}  # fmt: skip


def run(
    folder: Path, *words: str, interpreter: tuple[str, ...] = ("-S",), **assigned: Any
) -> tuple[int, str, list[dict[str, Any]]]:
    """Runs Python with the bootstrap, being its agent; `-S` leaves out all installed packages.

    Returns:
        Exit code, output, and what the agent was told.
    """
    ours, theirs = socket.socketpair()
    environment = {
        "PATH": os.environ["PATH"], "SPMD_LAUNCH_CONTROL_FD": str(theirs.fileno()), "SPMD_LAUNCH_CODE": str(ROOT),
        "SPMD_LAUNCH_LEASE_S": "30",
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, *interpreter, str(ROOT / BOOTSTRAP), *words], env=environment, cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(theirs.fileno(),), start_new_session=True,
    )  # fmt: skip
    theirs.close()
    ours.sendall(json.dumps({**ASSIGNMENT, "tls": certified(folder), **assigned}).encode() + b"\n")
    with ours, ours.makefile("rb") as lines:
        told = [json.loads(line) for line in lines]
    output, _ = process.communicate(timeout=30)
    return process.returncode, output, told


def certified(folder: Path) -> dict[str, str]:
    """What the rank shows its peers, in files in the folder."""
    key, request = new_request()
    certificate = Authority.open(folder, "lab").issue(request, "attempt", 0)
    return dataclasses.asdict(write_files(folder / "tls", key, certificate))


def test_a_script_without_jax_needs_nothing_that_is_installed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import sys\nprint(sys.argv, sorted(m for m in sys.modules if 'launcher' in m))\n")
    code, output, told = run(tmp_path, "a.py", "x")
    assert code == 0, output
    assert output.startswith("['a.py', 'x'] ['_spmd_launch.launcher', '_spmd_launch.launcher.command'")
    assert {"type": "phase", "phase": "script"} in told


def test_an_error_is_told_at_once_and_printed_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f():\n    raise KeyError('who')\n\nf()\n")
    plain = subprocess.run([sys.executable, "bad.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    code, output, told = run(tmp_path, "bad.py")
    assert code == plain.returncode == 1
    assert output.splitlines()[-1] == plain.stderr.splitlines()[-1] == "KeyError: 'who'"
    assert "bootstrap" not in output and "runpy" not in output
    (error,) = [message["error"] for message in told if message["type"] == "error"]
    assert error["type"] == "KeyError" and error["message"] == "'who'" and "in f\n" in error["traceback"]


def test_an_error_is_told_where_the_script_has_an_excepthook_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import sys\n"
        "sys.excepthook = lambda kind, error, trace: print('shown by its own:', repr(error), trace is not None)\n"
        "raise KeyError('who')\n"
    )
    code, output, told = run(tmp_path, "own.py")
    assert (code, output) == (1, "shown by its own: KeyError('who') True\n")
    (error,) = [message["error"] for message in told if message["type"] == "error"]
    assert error["type"] == "KeyError" and error["traceback"].startswith("Traceback") and "own.py" in error["traceback"]
    assert "bootstrap" not in error["traceback"] and "runpy" not in error["traceback"]


@pytest.mark.parametrize("own", [5, 75])
def test_exit_codes_are_the_scripts(tmp_path: Path, own: int) -> None:
    code, output, told = run(tmp_path, "-c", f"import sys; sys.exit({own})")
    assert (code, output) == (own, "") and {message["type"] for message in told} <= {"phase", "progress"}


def test_after_jax_is_imported_initialize_is_ours_and_where_jax_runs_is_told(tmp_path: Path) -> None:
    code, output, _ = run(
        tmp_path,
        "-c",
        "import jax; from jax._src import clusters\n"
        "env = next(e for e in clusters.ClusterEnv._cluster_types if e.is_env_present())\n"
        "print(env.name, env.get_process_count(), env.get_process_id())\n"
        "print(jax._src.distributed.State.initialize.__module__)",
        interpreter=(),
    )
    assert code == 0 and output.split() == ["spmd-launch", "1", "0", "_spmd_launch.launcher.rank.script"], output


@pytest.mark.parametrize("given", ["process_id=1", "num_processes=2", "num_processes=2, process_id=1"])
def test_a_place_that_is_not_this_ranks_is_refused_where_no_coordinator_is_given(tmp_path: Path, given: str) -> None:
    code, output, told = run(tmp_path, "-c", f"import jax; jax.distributed.initialize({given})", interpreter=())
    assert code == 1 and "expected process_id=0 and num_processes=1" in output, output
    (error,) = [message["error"] for message in told if message["type"] == "error"]
    assert error["type"] == "ValueError" and "no coordinator_address" in error["message"]


INITIALIZE = "import jax; jax.distributed.initialize(); print('initialized', flush=True); jax.distributed.shutdown()"
# The kernel's choice is given, and is another's by the time that it is used; all else is the real thing.
TOO_LATE = """
import socket, sys, types
from _spmd_launch.launcher.rank import coordinator_port

class Reservation(socket.socket):
    def bind(self, address):
        if address[1]:
            super().bind(address)

    def getsockname(self):
        return (sys.argv[1], int(sys.argv[2]))

coordinator_port.socket = types.SimpleNamespace(**{**vars(socket), "socket": Reservation})
"""


def run_too_late(folder: Path, address: str, port: int) -> tuple[int, str, list[dict[str, Any]]]:
    """As `run`, without what any script tells. JAX crashes now and then where its service cannot listen."""
    for trial in range(20):
        place = folder / str(trial)
        place.mkdir()
        (place / "late.py").write_text(TOO_LATE + INITIALIZE)
        code, output, told = run(place, "late.py", address, str(port), interpreter=(), address=address)
        if code != -signal.SIGSEGV:
            break
    return code, output, [message for message in told if message["type"] not in ("phase", "progress", "unguarded")]


def test_a_port_that_another_process_has_taken_is_told_in_words_not_by_an_exit_code(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, output, (told,) = run_too_late(tmp_path, "127.0.0.1", port)
    assert code == 1 and "initialized" not in output, output
    assert told["type"] == "port-lost"
    assert told["why"].startswith(f"the coordination service could not listen on 127.0.0.1:{port}: ")


def test_a_service_that_cannot_listen_where_nobody_does_has_lost_no_port(tmp_path: Path) -> None:
    code, output, (told,) = run_too_late(tmp_path, "192.0.2.1", 4711)  # an address for documentation, of no host
    assert code == 1, output
    assert told["type"] == "error" and told["error"]["type"] == "JaxRuntimeError"


AGAIN = INITIALIZE + "; jax.distributed.initialize({}); print('again', jax.process_count(), flush=True)"


def test_a_second_rendezvous_of_a_job_is_refused_in_words(tmp_path: Path) -> None:
    code, output, told = run(tmp_path, "-c", AGAIN.format(""), interpreter=())
    assert code == 1 and "initialized" in output and "again 1" not in output, output
    (error,) = [message["error"] for message in told if message["type"] == "error"]
    assert error["type"] == "RuntimeError"
    words = "was called again, after a shutdown or a failure, by rank 0 on host h0: an attempt of a job has one"
    assert words in error["message"]
    assert len([message for message in told if message["type"] == "coordinator"]) == 1


def test_a_script_may_meet_again_at_a_coordinator_of_its_own(tmp_path: Path) -> None:
    with reserved_port() as port:
        own = AGAIN.format(f"'127.0.0.1:{port}', 1, 0")
        code, output, _ = run(tmp_path, "-c", f"{own}; jax.distributed.shutdown()", interpreter=())
    assert code == 0 and "again 1" in output, output


def test_who_initializes_twice_is_told_so_by_jax(tmp_path: Path) -> None:
    twice = "import jax; jax.distributed.initialize(); jax.distributed.initialize()"
    code, output, told = run(tmp_path, "-c", twice, interpreter=())
    assert code == 1, output
    (error,) = [message["error"] for message in told if message["type"] == "error"]
    assert error["message"] == "distributed.initialize should only be called once."


def test_a_script_that_goes_on_after_a_failed_initialize_is_no_longer_said_to_meet(tmp_path: Path) -> None:
    twice = (
        "import jax; jax.distributed.initialize()\n"
        "try: jax.distributed.initialize()\n"
        "except RuntimeError: print('goes on', flush=True)\n"
        "jax.distributed.shutdown()"
    )
    code, output, told = run(tmp_path, "-c", twice, interpreter=())
    assert code == 0 and "goes on" in output, output
    phases = [message["phase"] for message in told if message["type"] == "phase"]
    assert phases.count("rendezvous") == 2 and phases[-1] == PHASE


def test_what_compiles_is_compared_before_there_are_devices_so_that_a_script_can_still_set_them(tmp_path: Path) -> None:
    code, output, _ = run(
        tmp_path,
        "-c",
        "import jax; jax.distributed.initialize(); jax.config.update('jax_num_cpu_devices', 3)\n"
        "print(jax.local_device_count(), 'devices', flush=True); jax.distributed.shutdown()",
        interpreter=(),
    )
    assert code == 0 and "3 devices" in output, output
