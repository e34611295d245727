"""The follower's side of `launcher.mend_beside`: when it is begun, what it has said, and when it ends."""

import collections
import os
import subprocess
import sys
import threading
import time

from cluster.provider import Say
from cluster.record import Cluster
from launcher.code_copy import source_root
from launcher.mend_beside import GIVEN

FIRST_PAUSE_S = 60.0  # between two tries; longer each time that the cloud gives nothing
LAST_PAUSE_S = 600.0
LOOK_PAUSE_S = 5.0  # after no host was lost any more
PATIENCE_S = 2.0  # until it is said that something is waited for
END_TIMEOUT_S = 900.0  # for what was asked for to be given back: 600 s for the cloud, and what ssh may need
READ_S = 2.0  # for the last lines of what has ended
POLL_S = 0.1


class HostWatch:
    """Has lost hosts of clouds brought back while a job is followed.

    Args:
        max_times: how often machines are asked for at most, as the job says how many losses it goes on after; what the
            cloud refuses is not counted.
    """

    def __init__(self, max_times: int):
        self._max = self._left = max_times
        self._process: subprocess.Popen[str] | None = None
        self._lines: collections.deque[str] = collections.deque()
        self._name = ""  # of the cluster
        self._has_begun = False  # else it has only looked
        self._has_given_up = False
        self._pause_s, self._not_before = FIRST_PAUSE_S, time.monotonic()

    def hear(self, cluster: Cluster, lost: list[str]) -> None:
        """Takes which hosts of the cluster are lost now, as its supervisor tells."""
        if not lost or not cluster.spec.provider.is_paid or self._runs():
            return
        self._count()
        if self._left <= 0:
            self._give_up(lost)
        elif time.monotonic() >= self._not_before:
            self._begin(cluster.name)

    def news(self) -> list[str]:
        """What it has said since it was last asked."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def end(self, say: Say) -> None:
        """Ends it, if it runs, which may take minutes: what it has asked for is given back.

        Args:
            say: receives what it says meanwhile, and what a person should know.
        """
        was_running = self._runs()
        process, self._process = self._process, None
        if process is not None and was_running:
            assert process.stdin is not None
            process.stdin.close()
            try:
                self._wait(process, say)
            except KeyboardInterrupt:
                say(f"! process {process.pid} goes on giving back what was asked for; {self._look()}")
                raise
        for line in self.news():
            say(line)
        if was_running and self._has_begun:
            say("hosts that were lost are not brought back any more by this command: `spmd-launch up FILE` does it")

    def _wait(self, process: "subprocess.Popen[str]", say: Say) -> None:
        start, has_said = time.monotonic(), False
        while process.poll() is None:
            waited_s = time.monotonic() - start
            if waited_s > END_TIMEOUT_S:
                process.kill()
                process.wait()
                say(f"! what was asked for is not given back after {END_TIMEOUT_S:g} s; {self._look()}")
            elif waited_s > PATIENCE_S and self._has_begun and not has_said:
                has_said = True
                say("giving back what was asked for in place of lost hosts; Ctrl-C leaves that to a process of its own")
            for line in self.news():
                say(line)
            time.sleep(POLL_S)
        self._reader.join(READ_S)

    def _look(self) -> str:
        return f"as long as it is there it costs: `spmd-launch status {self._name}`, `spmd-launch down {self._name}`"

    def _begin(self, name: str) -> None:
        self._name, self._has_begun = name, False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launcher.mend_beside", name],
            env=os.environ | {"PYTHONPATH": str(source_root())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # an interrupt is for us, who end it
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _count(self) -> None:
        """What the last try has come to."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        pause_s = self._pause_s if process.returncode else LOOK_PAUSE_S
        self._not_before = time.monotonic() + pause_s
        if process.returncode in (0, GIVEN):
            self._pause_s = FIRST_PAUSE_S
        else:
            self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        self._left -= process.returncode == GIVEN

    def _give_up(self, lost: list[str]) -> None:
        if not self._has_given_up:
            self._has_given_up = True
            self._lines.append(
                f"! {', '.join(lost)}: no more machines are asked for by this command, which may do so {self._max} "
                "time(s) (--max-preemptions): `spmd-launch up FILE` does it"
            )

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._has_begun = True
                self._lines.append(line.rstrip("\n"))
