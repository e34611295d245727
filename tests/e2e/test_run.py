"""Commands and scripts that know nothing of us, on every host: `run` and `exec`."""

import json
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, Cli
from tests.pages import Page
from tests.ranks import reserved_port

pytestmark = pytest.mark.cluster

SUM = """
    import os, sys
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.distributed.initialize()
    FACTOR = 3.0 if "differ" in sys.argv and jax.process_index() == 1 else 2.0
    mesh = Mesh(np.array(jax.devices()), "d")
    x = jax.make_array_from_callback(
        (4,), NamedSharding(mesh, PartitionSpec("d")), lambda index: np.arange(4, dtype=np.float32)[index]
    )
    total = jax.jit(lambda x: (FACTOR * x).sum())(x)
    print(f"total {float(total)} over {jax.process_count()} processes and {jax.device_count()} devices", flush=True)
"""


@pytest.fixture
def user(cli: Cli, cluster: str, tmp_path: Path) -> Cli:
    """The command line in a folder of the user's, which is empty."""
    folder = tmp_path / "project"
    folder.mkdir()
    return Cli(cli.home, folder)


def write(user: Cli, name: str, text: str) -> None:
    assert user.cwd is not None
    file = user.cwd / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))


def log(user: Cli, job: str, rank: int) -> str:
    return (user.home / "jobs" / job / "logs" / f"attempt-1.rank-{rank}.log").read_text()


@pytest.mark.parametrize("arguments", ["", "num_processes=2"])
def test_a_script_that_names_no_coordinator_finds_the_others(user: Cli, arguments: str) -> None:
    write(user, "train.py", SUM.replace("initialize()", f"initialize({arguments})"))
    name = f"bare-{len(arguments)}"
    out = user("run", "--name", name, "--", "python", "train.py")
    assert out.count("total 12.0 over 2 processes and 4 devices") == 2
    assert "exit codes     0 of rank 0, 0 of rank 1" in out
    (address,) = [event["address"] for event in user.events(name, "coordinator")]
    assert address.startswith("127.0.0.1:")


def test_the_example_runs_as_it_is(user: Cli) -> None:
    # Fifty steps that nobody waits for: they once used up all threads of XLA's on a machine of two cores.
    out = Cli(user.home, ROOT / "examples")("run", "--", "python", "plain_script.py")
    assert "2 processes, 4 devices: weights" in out


def test_a_script_can_import_the_toolkit_if_it_is_asked_for(user: Cli) -> None:
    page = Page("toolkit.md")
    assert user.cwd is not None
    (script,) = page.write_files(user.cwd)
    ((command, printed),) = page.commands()
    with script.open("a") as opened:
        opened.write("print('found at', spmd.__file__)\n")
    program, *words = command.split()
    out = user(*words[:1], "--name", "toolkit", *words[1:])
    lines = out.splitlines()
    assert program == "spmd-launch"
    for rank, _, said in (line.partition(" ") for line in printed.splitlines()):
        # A part of a line of gloo's may stand between.
        assert any(line.startswith(f"{rank} ") and line.endswith(said) for line in lines), out
    # The hosts' Python has an editable install of ours here, as those that `up` makes have not.
    found = [Path(line.partition("found at ")[2]) for line in lines if "found at" in line]
    assert len(found) == 2 and all(str(path).endswith("/toolkit/workloads/spmd/__init__.py") for path in found)


def test_ranks_that_build_different_programs_are_refused_with_the_line(user: Cli) -> None:
    write(user, "train.py", SUM)
    out = user("run", "--name", "differ", "--max-failures", "3", "--", "python", "train.py", "differ", code=1)
    assert "ProgramMismatchError" in out and "dense<2.000000e+00>" in out and "dense<3.000000e+00>" in out
    assert "over 2 processes" not in out and user.job("differ")["attempt"] == 1
    unchecked = user("run", "--no-program-barrier", "--", "python", "train.py", "differ")
    assert "over 2 processes" in unchecked  # what plain JAX would have done: exit code 0, and a number


COMPILER = """
    import os, sys
    name, value = sys.argv[1:]
    if os.environ["SPMD_LAUNCH_RANK"] == "1":
        os.environ[name] = f"{os.environ.get(name, '')} {value}".strip()
    import jax

    jax.distributed.initialize()
    print(f"rank {jax.process_index()} went on", flush=True)
    jax.distributed.shutdown()
"""


@pytest.mark.parametrize(
    ("name", "value", "differs"),
    [
        ("XLA_FLAGS", "--xla_cpu_enable_fast_math=true", "variable XLA_FLAGS: rank 0 "),
        ("JAX_DEFAULT_MATMUL_PRECISION", "highest", "option jax_default_matmul_precision: rank 0 "),
        ("XLA_FLAGS", "--xla_dump_to=/tmp/of-rank-1", ""),
        ("JAX_DEBUG_NANS", "1", ""),
        ("WANDB_NAME", "rank-1", ""),
    ],
)
def test_ranks_whose_programs_would_be_compiled_otherwise_are_refused_and_no_others(
    user: Cli, name: str, value: str, differs: str
) -> None:
    write(user, "train.py", COMPILER)
    job = f"compiler-{name.lower().replace('_', '-')}-{len(value)}"
    words = ("run", "--name", job, "--max-failures", "3", "--", "python", "train.py", name, value)
    out = user(*words, code=1 if differs else 0)
    assert out.count("went on") == (0 if differs else 2)
    assert user.job(job)["attempt"] == 1
    if differs:
        assert "EnvironmentMismatchError" in out and differs in out and value in out


SWAPPED = """
    import jax, jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    jax.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("d",))
    x = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, PartitionSpec("d")))
    out = NamedSharding(mesh, PartitionSpec())

    def total(x):
        return x.sum()

    def product(x):
        return x.prod()

    programs = [jax.jit(f, out_shardings=out).lower(x).compile() for f in (total, product)]
    order = programs if jax.process_index() == 0 else programs[::-1]
    for program in order:
        print("got", float(program(x)), flush=True)
"""


def test_launches_in_another_order_are_refused_where_they_are_watched(user: Cli) -> None:
    write(user, "swap.py", SWAPPED)
    out = user("run", "--name", "swap", "--watch-launches", "--max-failures", "2", "--", "python", "swap.py", code=1)
    assert "got 6.0" not in out  # what the sum is; each rank has printed another number, and ended well
    assert "rank 0 launched 'jit(total)' where rank 1 launched 'jit(product)'" in out
    assert user.job("swap")["attempt"] == 1
    write(user, "train.py", SUM)
    assert "total 12.0" in user("run", "--watch-launches", "--", "python", "train.py")


def test_a_script_that_passes_its_own_arguments_has_its_way(user: Cli) -> None:
    write(user, "own.py", """
        import os, socket
        import jax
        rank, ranks = int(os.environ["SPMD_LAUNCH_RANK"]), int(os.environ["SPMD_LAUNCH_NUM_RANKS"])
        jax.distributed.initialize("127.0.0.1:" + os.environ["PORT"], num_processes=ranks, process_id=ranks - 1 - rank)
        print(f"rank {rank} is process {jax.process_index()} of {jax.process_count()}")
    """)  # fmt: skip
    with reserved_port() as port:
        out = user("run", "--name", "own-port", "--env", f"PORT={port}", "--", "python", "own.py")
    assert "rank 0 is process 1 of 2" in out and "rank 1 is process 0 of 2" in out
    assert not user.events("own-port", "coordinator")


def test_nothing_of_ours_is_in_the_scripts_way(user: Cli) -> None:
    """Its own packages of our names, its sitecustomize, its arguments, its `__main__`, its children."""
    for package in ("cluster", "launcher", "workloads"):
        write(user, f"{package}/__init__.py", f"WHOSE = 'the user {package}'")
    write(user, "own_path/sitecustomize.py", "import builtins; builtins.SITE = 'the user site'")
    write(user, "tool.py", """
        import json, multiprocessing, os, sys
        import cluster, launcher, workloads

        def square(x):
            return x * x

        class Thing:
            pass

        if __name__ == "__main__":
            import pickle
            pickle.loads(pickle.dumps(Thing()))
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                squares = pool.map(square, [2, 3])
            print(json.dumps({
                "whose": [cluster.WHOSE, launcher.WHOSE, workloads.WHOSE], "site": SITE, "argv": sys.argv,
                "squares": squares, "main": sys.modules["__main__"].__file__, "path": sys.path[0] == os.getcwd(),
                "ours": sorted(k for k in os.environ if k.startswith("SPMD_LAUNCH_")),
            }))
    """)  # fmt: skip
    folder = str(user.cwd / "own_path") if user.cwd else ""
    user(
        "run", "--name", "way", "--env", f"PYTHONPATH={folder}", "--", "python", "-W", "ignore", "tool.py", "--a", "-b"
    )
    said = json.loads(log(user, "way", 0).splitlines()[-1])
    assert said["whose"] == ["the user cluster", "the user launcher", "the user workloads"]
    assert said["site"] == "the user site" and said["squares"] == [4, 9] and said["path"]
    assert said["argv"] == ["tool.py", "--a", "-b"] and said["main"] == "tool.py"
    known = ["ATTEMPT", "CLUSTER_ID", "JOB", "JOB_DIR", "LEASE_S", "NUM_RANKS", "RANK", "STORAGE_PATH"]
    assert said["ours"] == [f"SPMD_LAUNCH_{name}" for name in known]


@pytest.mark.parametrize(
    "words", [["python", "-m", "pkg.mod", "x"], ["python", "-c", "import sys; print(sys.argv)", "x"]]
)
def test_modules_and_code_run_too(user: Cli, words: list[str]) -> None:
    write(user, "pkg/mod.py", "import sys; print(sys.argv)")
    out = user("run", "--", *words)
    assert out.count("'x']") == 2


def test_an_exception_is_the_message_without_our_frames(user: Cli) -> None:
    write(user, "bad.py", """
        import os
        def load():
            raise ValueError("the data is wrong")
        if os.environ["SPMD_LAUNCH_RANK"] == "1":
            load()
        import time
        time.sleep(60)
    """)  # fmt: skip
    out = user("run", "--name", "bad", "--", "python", "bad.py", code=1)
    job = user.job("bad")
    assert job["message"].startswith("rank 1 on host shared-1 raised ValueError: the data is wrong")
    assert "_spmd_launch_bootstrap" not in out and "runpy" not in out
    assert "exit codes     stopped of rank 0, 1 of rank 1" in out and job["seconds"] < 30


def test_exit_codes_of_every_rank_are_told(user: Cli) -> None:
    code = "import os, sys; sys.exit(7 * int(os.environ['SPMD_LAUNCH_RANK']))"
    out = user("run", "--name", "seven", "--", "python", "-c", code, code=1)
    assert "rank 1 on host shared-1 ended with exit code 7" in out
    assert user.json("results", "seven")["exit_codes"]["1"] == "7"


def test_what_rank_0_writes_into_its_folder_comes_back_of_a_script_that_fails_too(user: Cli) -> None:
    write(user, "notes.txt", "as it was")
    write(user, "same.txt", "as it was")
    write(user, "writes.py", """
        import os, pathlib, sys, time
        rank = os.environ["SPMD_LAUNCH_RANK"]
        pathlib.Path("out").mkdir()
        pathlib.Path("out/model.txt").write_text(rank)
        pathlib.Path("notes.txt").write_text("changed")
        pathlib.Path(os.environ["SPMD_LAUNCH_JOB_DIR"], "left.txt").write_text(rank)
        if rank == "1":
            time.sleep(60)  # else its end could stop rank 0 before that has written
        sys.exit("no more data")
    """)  # fmt: skip
    out = user("run", "--name", "writes", "--", "python", "writes.py", code=1)
    assert "its last words: 'no more data'" in out and "out/model.txt (1 B)" in out
    results = user.home / "jobs" / "writes" / "results"
    found = {path.relative_to(results).as_posix(): path.read_text() for path in results.rglob("*") if path.is_file()}
    assert found == {"left.txt": "0", "notes.txt": "changed", "out/model.txt": "0"}


def test_files_that_cannot_be_read_repeat_no_script_and_stay_where_they_are(user: Cli) -> None:
    write(user, "leaves.py", """
        import os, pathlib
        results = pathlib.Path(os.environ["SPMD_LAUNCH_JOB_DIR"])
        os.mkfifo(results / "a-pipe")
        (results / "b-memory").symlink_to("/proc/self/mem")  # whose first byte nobody can read
        (results / "c-good.txt").write_text("good")
        pathlib.Path("d-good.txt").write_text("good")
    """)  # fmt: skip
    out = user("run", "--name", "leaves", "--max-failures", "2", "--", "python", "leaves.py")
    job = user.job("leaves")
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 1)
    results = user.home / "jobs" / "leaves" / "results"
    assert sorted(path.name for path in results.iterdir()) == ["c-good.txt", "d-good.txt"]
    why = "results/a-pipe (a named pipe), results/b-memory (Input/output error)"
    (note,) = job["notes"]
    assert note.startswith(f"rank 0 on host shared-0: could not be fetched: {why}; what is there stays on the host")
    (event,) = user.events("leaves", "files-left")
    assert note.endswith(f", in {event['folder']}") and event["num_files"] == 2
    kept = sorted(path.name for path in Path(event["folder"], "results").iterdir())
    shutil.rmtree(event["folder"])  # other tests read all files of this cluster
    assert kept == ["a-pipe", "b-memory"]
    assert "could not be fetched: results/a-pipe" in " ".join(out.split())


def test_a_crash_in_c_leaves_its_stack(user: Cli) -> None:
    code = "import ctypes, os, time; os.environ['SPMD_LAUNCH_RANK'] == '0' or ctypes.string_at(0); time.sleep(30)"
    out = user("run", "--name", "crash", "--", "python", "-c", code, code=1)
    assert "signal 11 (SIGSEGV)" in out and "its log has the Python stack" in out
    assert "exit codes     stopped of rank 0, signal 11 of rank 1" in out
    assert "Fatal Python error: Segmentation fault" in log(user, "crash", 1)


ABORTS = """
    import os, sys
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.distributed.initialize()
    sharding = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
    x = jax.make_array_from_callback((4,), sharding, lambda index: np.arange(4, dtype=np.float32)[index])
    total = jax.jit(lambda x: x.sum())
    for step in range(100_000):
        if step == 20 and jax.process_index() == int(sys.argv[1]):
            os.abort()  # as a failed CHECK of XLA's, or malloc's
        float(total(x))
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_aborts_is_named_and_not_the_one_that_loses_it(user: Cli, rank: int) -> None:
    """The other one raises gloo's error, and where process 0 is gone JAX aborts it too."""
    write(user, "aborts.py", ABORTS)
    out = user("run", "--name", f"aborts-{rank}", "--max-failures", "0", "--", "python", "aborts.py", str(rank), code=1)
    said = f"rank {rank} on host shared-{rank} was killed by signal 6 (SIGABRT)"
    assert user.job(f"aborts-{rank}")["message"].startswith(said), out


def test_a_script_goes_on_from_what_it_has_saved(user: Cli) -> None:
    write(user, "saves.py", """
        import os, pathlib, signal, time
        rank = os.environ["SPMD_LAUNCH_RANK"]
        saved = pathlib.Path(os.environ["SPMD_LAUNCH_STORAGE_PATH"]) / f"{rank}.txt"
        step = int(saved.read_text()) if saved.exists() else 0
        print(f"attempt {os.environ['SPMD_LAUNCH_ATTEMPT']} starts from {step}", flush=True)
        saved.parent.mkdir(parents=True, exist_ok=True)
        saved.write_text("20")
        if step == 0 and rank == "1":
            other = saved.with_name("0.txt")
            while not (other.exists() and other.read_text()):  # else rank 0 could be stopped before it has saved
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        pathlib.Path(os.environ["SPMD_LAUNCH_JOB_DIR"], "summary.json").write_text(f"{step}")
    """)  # fmt: skip
    out = user("run", "--name", "saves", "--max-failures", "1", "--", "python", "saves.py")
    assert "rank 1 on host shared-1 was killed by signal 9 (SIGKILL)" in out and "attempt 2 starts from 20" in out
    assert (user.home / "jobs" / "saves" / "results" / "summary.json").read_text() == "20"  # the script's, not ours


def test_any_command_runs_and_sees_the_files_that_git_does_not_ignore(user: Cli) -> None:
    write(user, ".gitignore", "big/\n*.bin\n")
    write(user, "big/data.txt", "stays here")
    write(user, "model.bin", "too")
    write(user, "src/a.txt", "travels")
    write(user, "job.sh", "find . -type f | sort; cat src/a.txt; echo; which python; exit 0\n")
    out = user("run", "--", "bash", "job.sh")
    assert "[1] ./src/a.txt" in out and "[0] ./.gitignore" in out and "data.txt" not in out and "model.bin" not in out
    assert f"[0] {sys.executable}" in out


def test_a_secret_is_given_to_the_ranks_and_put_on_no_record(user: Cli) -> None:
    secret = "s3cr3t-" + os.urandom(8).hex()
    user.environment["API_KEY"] = secret
    code = "import hashlib, os; print(hashlib.sha256(os.environ['API_KEY'].encode()).hexdigest()[:12])"
    out = user("run", "--name", "secret", "--env", "API_KEY", "--", "python", "-c", code)
    import hashlib

    assert out.count(hashlib.sha256(secret.encode()).hexdigest()[:12]) == 2
    paths = [Path(folder, name) for folder, _, names in os.walk(user.home) for name in names]
    assert not [path for path in paths if path.is_file() and secret.encode() in bytes_of(path)]


def bytes_of(path: Path) -> bytes:
    """What is in a file; nothing if it has gone since it was listed, as agents remove what an attempt leaves."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", "1X=2", "--", "true"], "must be KEY=VALUE"),
        (["--env", "SPMD_LAUNCH_RANK=2", "--", "true"], "not the user's to set"),
        (["--env", "NOT_SET_ANYWHERE", "--", "true"], "it is not set here"),
        (["--num-hosts", "9", "--", "true"], "has 2 host(s)"),
        ([], "Missing argument"),
        (["--", "python", "-u", "absent.py", "--x", "1"], "there is no absent.py in"),
        (["--", "./absent.sh"], "there is no ./absent.sh in"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(user: Cli, arguments: list[str], words: str) -> None:
    before = len(list((user.home / "jobs").iterdir()))
    assert words in user("run", *arguments, code=2)
    assert len(list((user.home / "jobs").iterdir())) == before


def test_a_program_that_is_not_there_is_named(user: Cli) -> None:
    out = user("run", "--name", "absent", "--", "no-such-program", code=1)
    assert "its last words: 'no-such-program: No such file or directory'" in out
    assert user.job("absent")["attempt"] == 1  # no host was lost
    hosts = [Path(host["folder"]) for host in user.record("shared")["hosts"]]
    assert not [path for host in hosts for path in host.glob("attempts/*/tls/*.pem")]  # of an attempt that never ran


def test_a_run_can_be_resumed_from_another_folder(user: Cli) -> None:
    write(user, "once.py", "import os; print('attempt', os.environ['SPMD_LAUNCH_ATTEMPT'])")
    user("run", "--name", "run-twice", "--", "python", "once.py")
    out = Cli(user.home)("submit", "--resume", "run-twice")
    assert "attempt 2" in out


def test_exec_runs_on_the_hosts_beside_a_job(user: Cli) -> None:
    user("run", "--name", "sleeper", "--detach", "--", "sleep", "60")
    try:
        out = user("exec", "--", "bash", "-c", "echo yes; echo no >&2")
        assert out.count("yes") == 2 and "[1] no" in out
        assert user("exec", "--rank", "1", "--", "python", "-c", "import jax; print(jax.device_count())") == "[1] 2\n"
        assert "the first 2.0 MB of its output are cut" in user("exec", "--", "bash", "-c", "yes | head -c 3000000")
        failed = user("exec", "--rank", "0", "--", "bash", "-c", "exit 3", code=1)
        assert "shared-0: exit code 3" in failed
        assert "ended after 1 s" in user("exec", "--timeout", "1", "--", "sleep", "30", code=1)
        assert "No such file" in user("exec", "--", "no-such-program", code=1)
        assert "from 0 to 1" in user("exec", "--rank", "2", "--", "true", code=2)
    finally:
        user("cancel", "sleeper")


def test_a_record_under_its_id_goes_on_with_its_files_where_the_cluster_has_not_got_them(
    user: Cli, cluster: str
) -> None:
    """As of a job that ran on another cluster, whose record was copied here while another job had its name."""
    write(user, "hello.py", "print('hello')")
    user("run", "--name", "moved", "--", "python", "hello.py")
    jobs, spec = user.home / "jobs", user.job("moved")["spec"]
    (jobs / "moved").rename(jobs / f"moved.{spec['job_id']}")
    for file in spec["files"].values():
        (user.home / "clusters" / cluster / "blobs" / file["sha256"]).unlink()
    assert "[0] hello" in user("submit", "--resume", f"moved.{spec['job_id']}")
    assert user.job("moved")["attempt"] == 2


def test_exec_is_as_its_help_says_no_rank_of_a_job(user: Cli) -> None:
    """Without a job's variables, the user's folder and input; what it leaves in the background it waits for."""
    told = " ".join(user("exec", "--help").split())
    assert "It is no rank of a job" in told and "without SPMD_LAUNCH_RANK" in told and "no input" in told
    (user.cwd or Path()).joinpath("here.txt").touch()
    seen = user("exec", "--rank", "0", "--", "bash", "-c", "env; pwd; ls; cat")
    job = ("JOB", "JOB_DIR", "ATTEMPT", "STORAGE_PATH", "RANK", "NUM_RANKS")
    assert not [name for name in job if f"SPMD_LAUNCH_{name}=" in seen]
    assert "JAX_PLATFORMS=cpu" in seen and "here.txt" not in seen and f"{user.home}/clusters/shared/hosts/" in seen
    left = user("exec", "--rank", "0", "--timeout", "2", "--", "bash", "-c", "sleep 300 & echo left $!", code=1)
    (pid,) = re.findall(r"left (\d+)", left)
    user.wait_for(lambda: not psutil.pid_exists(int(pid)), 10.0)
