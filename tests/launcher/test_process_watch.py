"""What ends when a raylet dies: our actor, its ranks, and of its siblings only those of a Ray that is ours."""

import subprocess
import sys
import textwrap

import psutil
import pytest

RAYLET = textwrap.dedent("""
    import subprocess, sys
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    sibling = subprocess.Popen(child)
    actor = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
    print(sibling.pid, actor.pid, actor.stdout.readline().strip(), flush=True)
    sys.stdin.readline()
""")
ACTOR = textwrap.dedent("""
    import subprocess, sys, threading, time
    from launcher import process_watch
    looked, children_of = threading.Event(), process_watch._children
    def look(parent):
        found = children_of(parent)
        looked.set()
        return found
    process_watch._children = look
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process_watch.end_with_raylet({owns_ray}, rank.kill)
    looked.wait(60.0 if {owns_ray} else 1.0)  # at its siblings, or it never will
    print(rank.pid, flush=True)
    time.sleep(600)
""")


@pytest.mark.parametrize("owns_ray", [True, False])
def test_other_peoples_actors_are_left_alone(owns_ray: bool) -> None:
    arguments = [sys.executable, "-c", RAYLET, ACTOR.format(owns_ray=owns_ray)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as raylet:
        assert raylet.stdout is not None
        sibling, actor, rank = (psutil.Process(int(pid)) for pid in raylet.stdout.readline().split())
        raylet.kill()
        psutil.wait_procs([actor, rank], timeout=60.0)
    try:
        assert not actor.is_running() and not rank.is_running()
        _, alive = psutil.wait_procs([sibling], timeout=60.0 if owns_ray else 3.0)
        assert bool(alive) is not owns_ray
    finally:
        for process in (sibling, actor, rank):
            if process.is_running():
                process.kill()
