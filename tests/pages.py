"""Pages of docs/ as programs: blocks are found, written as the files that they name, and run.

A block of ```` ```python ```` is a part of the page's program; ```` ```python fit.py ```` (or yaml) is a file;
```` ```console ```` has commands after `$`, and what they print, with `...` for what is left out;
in the README, whose blocks are indented, they are what begins with `$`.
"""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.ranks import ROOT, reserved_port

# Gloo's threads print to the same standard output, parts of lines between parts of lines: Python has one of its own.
OWN_STDOUT = 'import os, sys\nsys.stdout = os.fdopen(os.dup(1), "w")\nos.dup2(2, 1)\n'
INITIALIZE = "import jax, sys\njax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))\n"


class Page:
    """A page of docs/, or the README, by its name."""

    def __init__(self, name: str):
        self.text = (ROOT / ("" if name == "README.md" else "docs") / name).read_text()

    def blocks(self, info: str) -> list[str]:
        """What stands between fences that say exactly `info`."""
        return re.findall(rf"^```{re.escape(info)}\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE)

    def write_files(self, folder: Path) -> list[Path]:
        """Writes the files that the page shows."""
        found = re.findall(r"^```\w+ (\w+\.\w+)\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE)
        for name, text in found:
            (folder / name).write_text(text)
        return [folder / name for name, _ in found]

    def commands(self) -> list[tuple[str, str]]:
        """Each command of the consoles, with what it prints."""
        indented = [
            textwrap.dedent(block) for block in re.findall(r"^ {4}\$ .*\n(?: {4}.*\n)*", self.text, re.MULTILINE)
        ]
        consoles = self.blocks("console") + indented
        parts = [part for block in consoles for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
        return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]

    def run(self, num_hosts: int, devices: int) -> list[str]:
        """Runs the page's program on every process; returns what each has printed.

        Raises:
            AssertionError: with the standard error of a process that failed.
        """
        program = OWN_STDOUT + (INITIALIZE if num_hosts > 1 else "") + "\n".join(self.blocks("python"))
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "PYTHONPATH": str(ROOT),
        }
        with reserved_port() as port:
            processes = [
                subprocess.Popen(
                    [sys.executable, "-c", program, f"127.0.0.1:{port}", str(num_hosts), str(rank)],
                    env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
                for rank in range(num_hosts)
            ]  # fmt: skip
            try:
                outputs = [process.communicate(timeout=150) for process in processes]
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
        for process, (_, errors) in zip(processes, outputs, strict=True):
            assert process.returncode == 0, errors
        return [output for output, _ in outputs]


def assert_said(expected: str, actual: str) -> None:
    """A command prints what a page says, in that order; seconds, digests and which checkpoint it was may differ."""
    rest = _comparable(actual)
    for part in filter(None, map(_comparable, re.split(r"^\.\.\.$", expected, flags=re.MULTILINE))):
        assert part in rest, f"{part!r} is not in\n{actual}"
        rest = rest.partition(part)[2]


def _comparable(text: str) -> str:
    text = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", re.sub(r"\d+(\.\d+ s|:\d\d min)\b", "SECONDS", text))
    return " ".join(re.sub(r"from step \d+", "from step N", text).split())
