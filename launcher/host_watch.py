"""The follower's side of `launcher.mend_beside`: when it is begun, what it has said, and when it ends."""

import os
import subprocess
import sys
import threading

from cluster.record import Cluster
from launcher.code_copy import source_root

END_TIMEOUT_S = 120.0  # for what was asked for to be given back


class HostWatch:
    """Has lost hosts of clouds brought back while a job is followed.

    Args:
        max_times: how often at most, as the job says how many losses it goes on after.
    """

    def __init__(self, max_times: int):
        self._left = max_times
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._has_begun = False  # else it has only looked

    def hear(self, cluster: Cluster, lost: list[str]) -> None:
        """Takes which hosts of the cluster are lost now, as its supervisor tells."""
        if not lost or not cluster.spec.provider.is_paid or self._left == 0 or self._runs():
            return
        self._has_begun = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launcher.mend_beside", cluster.name],
            env=os.environ | {"PYTHONPATH": str(source_root())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # an interrupt is for us, who end it
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def news(self) -> list[str]:
        """What it has said since it was last asked."""
        said, self._lines = self._lines, []
        return said

    def end(self) -> str:
        """Ends it, if it runs; returns what a person should know."""
        process = self._process
        if process is None or not self._runs():
            return ""
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join(END_TIMEOUT_S)
        if not self._has_begun:
            return ""
        return "hosts that were lost are not brought back any more by this command: `spmd-launch up FILE` does it"

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._left -= not self._has_begun
                self._has_begun = True
                self._lines.append(line.rstrip("\n"))
