"""The Python session on the shared cluster: jobs as objects, and gangs that keep their arrays on the devices."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

import launcher
from launcher.errors import FailureError, UserError
from launcher.session.clusters import ClusterSession
from tests.conftest import ROOT, Cli

pytestmark = pytest.mark.cluster
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook


class State(flax.struct.PyTreeNode):
    weights: jax.Array
    step: int = flax.struct.field(pytree_node=False)


@pytest.fixture
def session(cli: Cli, cluster: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterSession]:
    monkeypatch.setenv("SPMD_LAUNCH_HOME", str(cli.home))
    with launcher.connect(cluster) as connected:
        yield connected


def sharding() -> Any:
    return jax.NamedSharding(jax.make_mesh((jax.device_count(),), ("d",)), jax.P("d"))


def make_data(size: int) -> jax.Array:
    return jax.jit(lambda: jnp.arange(size, dtype=jnp.float32), out_shardings=sharding())()


@jax.jit
def scaled_sum(x: jax.Array, factor: float) -> jax.Array:
    return (factor * x).sum()


def make_tree() -> dict[str, Any]:
    return {
        "state": State(weights=make_data(8), step=3),
        "bf16": jax.device_put(jnp.full((4, 2), -0.0, jnp.bfloat16), sharding()),
        "key": jax.random.key(7),
        "local": jnp.arange(3),
        "text": "plain",
        "host": np.arange(3),
    }


def next_state(state: State) -> tuple[State, int]:
    return jax.tree.map(lambda leaf: leaf + 1, state), len(jax.tree.leaves(state))


def fail_on(*ranks: int) -> int:
    if jax.process_index() in ranks:
        raise ValueError("no luck")
    return 1


def sleep_for_long(folder: Path) -> None:
    (folder / str(jax.process_index())).touch()
    time.sleep(60)


def press_control_c_in_the_call(folder: Path) -> None:
    """Has this process get a Ctrl-C while it waits for a call in which each of the two ranks makes a file there."""
    folder.mkdir()

    def press() -> None:
        deadline = time.monotonic() + 60.0
        while len(list(folder.iterdir())) < 2:
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)
        time.sleep(0.5)  # until whoever has sent the call waits for its answer, too
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def test_a_gang_keeps_arrays_on_the_devices(session: ClusterSession, cli: Cli, capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "of_the_folder.py").write_text("import jax\ndef rank():\n    return jax.process_index()\n")
    with session.gang(folder=tmp_path, name="keeps") as gang:
        assert gang.hosts == [f"{session.name}-0", f"{session.name}-1"]
        x = gang.run(make_data, 1000)
        assert (x.shape, x.dtype, x.is_global) == ((1000,), "float32", True)
        assert "NamedSharding" in x.sharding and len(x) == 1000
        assert float(gang.run(scaled_sum, x, 0.1)) == float(np.float32(49950.0))
        assert np.array_equal(np.asarray(x), np.arange(1000))

        tree = gang.run(make_tree)
        assert (tree["text"], tree["host"].tolist(), tree["state"].step) == ("plain", [0, 1, 2], 3)
        assert type(tree["state"]) is State
        bf16 = tree["bf16"].fetch()
        assert bf16.dtype == "bfloat16" and bool(np.signbit(bf16.astype(np.float32)).all())
        assert tree["key"].fetch().tolist() == [0, 7]
        assert tree["local"].fetch().tolist() == [0, 1, 2]
        state, num_leaves = gang.run(next_state, tree["state"])
        assert num_leaves == 1 and state.step == 3 and np.array_equal(state.weights, np.arange(8) + 1)

        live = gang.run(lambda: len(jax.live_arrays()))
        del tree, state
        assert gang.run(lambda: len(jax.live_arrays())) <= live - 5

        def by_name() -> Any:
            import of_the_folder

            print("here I am")
            return of_the_folder.rank()

        with pytest.raises(launcher.GangError, match=r"value: rank 0 0, rank 1 1\ngang.run_each gives each rank's"):
            gang.run(by_name)
        assert gang.run_each(by_name) == [0, 1]
        assert capsys.readouterr().out.count("[rank 1] here I am\n") == 2

        own = gang.run(lambda: jnp.full((2,), jax.process_index()))
        with pytest.raises(launcher.GangError, match="different values on different ranks"):
            own.fetch()
        parts = gang.run_each(lambda array: array, own)
        assert [part.fetch().tolist() for part in parts] == [[0, 0], [1, 1]]

        status = cli.json("status", "keeps")
        assert (status["state"], [rank["phase"] for rank in status["ranks"]]) == ("RUNNING", ["idle", "idle"])
    assert cli.job("keeps")["state"] == "SUCCEEDED"
    calls = cli.events("keeps", "call")
    assert calls[0]["name"] == "make_data" and {call["outcome"] for call in calls} == {"returned"}
    with pytest.raises(launcher.GangEndedError, match="It was closed"):
        gang.run(len, [])


def test_exceptions_are_folded_and_leave_the_gang_usable(
    session: ClusterSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session.gang(folder=None) as gang:
        x = gang.run(make_data, 8)
        with pytest.raises(launcher.GangError) as all_ranks:
            gang.run(fail_on, 0, 1)
        text = str(all_ranks.value)
        assert "fail_on: all ranks raised; the gang can be used" in text
        assert text.count("Traceback") == 1 and "ranks 0-1:\n" in text and 'raise ValueError("no luck")' in text
        assert "launcher/rank" not in text
        with pytest.raises(launcher.GangError) as one_rank:
            gang.run(fail_on, 1)
        assert "fail_on: rank 1 raised, while rank 0 returned" in str(one_rank.value)
        assert list(one_rank.value.by_rank) == [1]
        with pytest.raises(launcher.GangError, match="cannot travel to the client"):
            gang.run(lambda: jax.make_mesh((4,), ("d",)))
        (tmp_path / "only_here.py").write_text("def function():\n    pass\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        import only_here  # type: ignore[import-not-found]

        with pytest.raises(launcher.GangError, match="No module named 'only_here'\nWhat belongs to a module travels"):
            gang.run(only_here.function)
        with pytest.raises(UserError, match="argument of fail_on cannot travel"):
            gang.run(fail_on, threading.Lock())
        own = gang.run(lambda: jnp.full((2,), jax.process_index()))
        first, nothing = gang.run_each(lambda array: array if jax.process_index() == 0 else None, own)
        assert first.fetch().tolist() == [0, 0] and nothing is None
        with pytest.raises(launcher.GangError, match="rank 1 raised, while rank 0 returned") as lacking:
            gang.run(lambda array: None, first)
        assert "LookupError: an argument is the handle of an array that this rank has not" in str(lacking.value)
        whole, _ = gang.run_each(lambda array: array if jax.process_index() == 0 else None, x)
        with pytest.raises(launcher.GangError, match="rank 1 did not return this array, which lies on several hosts"):
            whole.fetch()
        press_control_c_in_the_call(tmp_path / "asleep")
        with pytest.raises(KeyboardInterrupt, match="the gang can be used"):
            gang.run(sleep_for_long, tmp_path / "asleep")
        assert float(gang.run(scaled_sum, x, 1.0)) == 28.0

        def leave_early(array: jax.Array, *ranks: int) -> None:
            fail_on(*ranks)
            scaled_sum(array, 2.0)  # nobody waits for it: rank 0 comes back

        gang.run(leave_early, x)
        with pytest.raises(launcher.GangEndedError, match="launched different numbers of programs that span hosts"):
            gang.run(leave_early, x, 1)


def test_a_dead_gang_says_so_and_can_be_made_again(session: ClusterSession, cli: Cli, tmp_path: Path) -> None:
    with session.gang(folder=None, name="dies") as gang:
        x = gang.run(make_data, 8)
        os.kill(gang.run_each(os.getpid)[1], signal.SIGKILL)
        cli.wait_for(lambda: not gang.alive, 20.0)
        with pytest.raises(launcher.GangEndedError, match=r"dies has ended.*rank 1 on host \S+ was killed by signal 9"):
            gang.run(scaled_sum, x, 1.0)
        assert cli.job("dies")["state"] == "FAILED" and cli.job("dies")["attempt"] == 1
        gang.restart()
        with pytest.raises(UserError, match="made by a gang that has ended"):
            gang.run(scaled_sum, x, 1.0)
        assert float(gang.run(scaled_sum, gang.run(make_data, 8), 1.0)) == 28.0

        def hold_on() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            (tmp_path / "asleep" / str(jax.process_index())).touch()
            time.sleep(60)

        press_control_c_in_the_call(tmp_path / "asleep")
        with pytest.raises(launcher.GangEndedError, match="did not come back from an interrupt within 5 s") as ended:
            gang.run(hold_on)
        assert "hold_on\n" in str(ended.value)


@pytest.mark.slow
def test_ranks_that_would_wait_for_ever_are_ended(session: ClusterSession) -> None:
    with session.gang(folder=None) as gang:
        x = gang.run(make_data, 8)

        def half(array: jax.Array) -> float:
            fail_on(1)
            return float(scaled_sum(array, 3.0))

        def busy_half() -> int:
            fail_on(1)
            time.sleep(13)  # it does not wait for others
            return 1

        with pytest.raises(launcher.GangError, match="rank 1 raised, while rank 0 returned"):
            gang.run(busy_half)
        gang.run(scaled_sum, x, 3.0)
        with pytest.raises(launcher.GangEndedError, match=r"no luck; rank 0 would wait for it for ever: .*\.half "):
            gang.run(half, x)


CLIENT = """
    import sys, launcher
    with launcher.connect(sys.argv[1]) as cluster, cluster.gang(folder=None, name=sys.argv[2]) as gang:
        gang.run(len, [])
        print("ready", flush=True)
        import time
        gang.run(time.sleep, 600)
"""


def test_a_gang_ends_with_its_client(cli: Cli, cluster: str, children: list[subprocess.Popen[Any]]) -> None:
    def start(name: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-P", "-c", textwrap.dedent(CLIENT), cluster, name]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        child = subprocess.Popen(program, env=cli.environment, **streams)
        children.append(child)
        return child

    client = start("orphan")
    assert client.stdout is not None and client.stdout.readline() == "ready\n"
    queued = start("never-born")
    assert queued.stdout is not None and f"waits for hosts ({cluster}-0 by orphan" in queued.stdout.readline()
    queued.kill()
    cli.wait_for(lambda: cli.job("never-born")["state"] == "CANCELLED", 20.0)
    ranks = [rank["pid"] for rank in cli.json("status", "orphan")["ranks"]]
    assert "launcher/rank/session.py" in cli("stacks", "orphan")
    client.kill()
    cli.wait_for(lambda: cli.job("orphan")["state"] == "CANCELLED", 20.0)
    assert "its client has gone" in cli.job("orphan")["message"]
    cli.wait_for(lambda: not any(psutil.pid_exists(pid) for pid in ranks), 10.0)
    assert "its arrays are gone" in cli("submit", "--resume", "orphan", code=2)


def test_the_page_and_the_example_run_as_they_stand(cli: Cli, cluster: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "session.md").read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)).replace('"laptop"', repr(cluster))
    (tmp_path / "page.py").write_text(program)
    printed = run_script(cli, tmp_path, tmp_path / "page.py")
    assert printed == "".join(re.findall(r"```text\n(.*?)```", page, re.DOTALL))
    out = run_script(cli, tmp_path, ROOT / "examples" / "notebook_session.py")
    assert "on shared-0, shared-1 with cpu\n" in out
    assert "[rank 1] process 1 of 2, 4 devices in all\n" in out and "w = [ 1.  -2.   0.5]\n" in out
    assert "ValueError: a mistake that only one host makes" in out and "SUCCEEDED, psum 6" in out


def run_script(cli: Cli, folder: Path, script: Path) -> str:
    """What it prints, in a folder of the user's."""
    done = subprocess.run(
        [sys.executable, "-P", str(script)], cwd=folder, env=cli.environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_jobs_as_objects(session: ClusterSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    job = session.submit("psum-check", steps=100, size=16, name="as-object")
    mine = session.submit("./examples/my_workload.py:run", num_steps=4, name="by-file")
    result = job.result()
    assert job.state == "SUCCEEDED" and len(result.digest) == 64 and result.metrics["psum"] == 6
    assert "[0] " in job.logs() and "[0] " not in job.logs(rank=1)
    assert mine.wait(timeout_s=120) == "SUCCEEDED"
    assert {row["rank"] for row in mine.metrics()} == {0, 1}
    with pytest.raises(UserError, match="has left no draws"):
        mine.inference_data()

    (tmp_path / "a_module.py").write_text(
        "import dataclasses\n\n@dataclasses.dataclass(frozen=True)\n"
        "class Config:\n    size: int = 3\n    fail: bool = False\n\n"
        "def run(config: Config, context, resume=False):\n"
        "    from workloads.result import Result\n"
        "    if config.fail:\n        raise ValueError('as told')\n"
        "    return Result(metrics={'size': config.size}, diagnostics={}, result_digest='')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import a_module  # type: ignore[import-not-found]

    assert session.submit(a_module.run, a_module.Config(size=5)).result(timeout_s=120).metrics == {"size": 5}
    failed = session.submit(a_module.run, fail=True, max_failures=0)
    with pytest.raises(FailureError, match=r"FAILED: .*raised ValueError: as told"):
        failed.result(timeout_s=120)
    with pytest.raises(UserError, match="no parameter 'sizes'"):
        session.submit(a_module.run, sizes=5)
    long = session.submit("psum-check", steps=10**6, size=16)
    with pytest.raises(UserError, match="no free hosts for job"):
        session.gang(folder=None, wait=False)
    with pytest.raises(TimeoutError, match="it goes on"):
        long.wait(timeout_s=0.1)
    assert long.cancel() == "CANCELLED"
    assert [known.name for known in session.jobs()][-1] == long.name
    assert session.status()["name"] == session.name
