"""The blocks of docs/toolkit.md run as they stand, on one process and on two, and print what the page says."""

import os
import re
import socket
import subprocess
import sys

import pytest

from tests.ranks import ROOT

PAGE = ROOT / "docs" / "toolkit.md"
INITIALIZE = "import jax, sys\njax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))\n"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize(("num_hosts", "devices"), [(1, 8), (2, 4)])
def test_the_page_runs_and_prints_what_it_says(num_hosts: int, devices: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = (INITIALIZE if num_hosts > 1 else "") + "\n".join(_blocks("python"))
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(ROOT),
    }
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
    said = "".join(_blocks("text")).replace("of 1 host", "of 1 host" if num_hosts == 1 else f"of {num_hosts} hosts")
    printed = [re.sub(r"^\[Gloo\].*\n", "", output, flags=re.MULTILINE) for output, _ in outputs]
    assert printed[0].startswith(f"{said}memory of rank 0 on ")
    for rank, text in enumerate(printed[1:], start=1):
        assert text.startswith(f"memory of rank {rank} on ")
