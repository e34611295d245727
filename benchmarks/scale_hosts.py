"""Emulated hosts for real, up to 16 of them, with ranks that import no JAX: CPU seconds of each part, per host.

Real: holder, Ray nodes, `up`, agents with their templates, supervisor, `submit`, the record. Not real: what a rank
does (`scale_rank`), and the counting of devices, which would import JAX. Both are put into a copy of the code.
"""

import json
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from children import ROOT
from ours import Installation, OurCluster

JOB_S = 45
WINDOW_S = 15.0
START_TIMEOUT_S = 120.0
PARTS = {  # by what the command line has
    "supervisor": "ray::Supervisor",
    "agents": "ray::Agent",
    "templates and ranks": "launcher.rank.template",
    "raylets": "raylet/raylet",
    "GCS": "gcs_server",
    "holder": "cluster.holder",
}
PROBE = 'print(\'{"num_devices": 1, "device_kind": "cpu"}\')\n'
NO_IMPORTS = '\n\ndef preimports() -> str:\n    return "json"\n'


def without_jax(installation: Installation) -> None:
    """Changes the copy of the code: ranks that do nothing, a device that is not looked for, templates without JAX."""
    code = installation.code / "launcher"
    (code / "rank" / "main.py").write_text((ROOT / "benchmarks" / "scale_rank.py").read_text())
    (code / "rank" / "probe.py").write_text(PROBE)
    with (code / "environment.py").open("a") as environment:
        environment.write(NO_IMPORTS)


def cpu_by_part(holder: int) -> dict[str, float]:
    """CPU seconds so far of the holder and all below it, those that have ended too, by part."""
    found = dict.fromkeys([*PARTS, "other"], 0.0)
    root = psutil.Process(holder)
    for process in [root, *root.children(recursive=True)]:
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        part = next((name for name, mark in PARTS.items() if mark in command), "other")
        found[part] += times.user + times.system + times.children_user + times.children_system
    return found


def client_cpu_s() -> float:
    """CPU seconds of the commands that have ended, and of what they had started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(num_hosts: int, folder: Path) -> dict[str, float]:
    """One cluster from nothing to nothing, and one job on it.

    Returns:
        `up wall s`; `up CPU s`, of `up` and all that it started; then of a second of the job, by part, CPU seconds.
    """
    installation = Installation(folder)
    without_jax(installation)
    before = client_cpu_s()
    with OurCluster(installation, num_hosts, 1) as cluster:
        holder = json.loads((installation.home / "clusters" / cluster.name / "cluster.json").read_text())["holder"]
        client, spent = client_cpu_s() - before, cpu_by_part(holder["pid"])
        rates = _rates(installation, cluster, holder["pid"])
    return {"up wall s": cluster.up_s, "up CPU s": client + sum(spent.values()), **rates}


def _rates(installation: Installation, cluster: OurCluster, holder: int) -> dict[str, float]:
    arguments = ("psum-check", "--cluster", cluster.name, "--name", "idle", f"--set=steps={JOB_S}", "--detach")
    installation.command("submit", *arguments)
    metrics = installation.home / "jobs" / "idle" / "metrics.jsonl"
    deadline = time.monotonic() + START_TIMEOUT_S
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 2 * cluster.num_hosts:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the ranks on {cluster.num_hosts} hosts did not report within {START_TIMEOUT_S:g} s")
        time.sleep(0.2)
    before, start, lines = cpu_by_part(holder), time.monotonic(), len(metrics.read_text().splitlines())
    time.sleep(WINDOW_S)
    after, seconds = cpu_by_part(holder), time.monotonic() - start
    reports = len(metrics.read_text().splitlines()) - lines
    return {part: (after[part] - before[part]) / seconds for part in before} | {"reports a s": reports / seconds}


def table(results: Mapping[int, Mapping[str, float]]) -> str:
    """One row a number of hosts; what is spent is in milliseconds of CPU a second and host."""
    parts = [*PARTS, "other"]
    lines = ["| hosts | up, s | up, CPU s a host | reports a s | " + " | ".join(f"{part}, ms" for part in parts) + " |"]
    lines.append("|" + "---|" * (4 + len(parts)))
    for hosts, found in results.items():
        cells = [f"{1000 * found[part] / hosts:.1f}" for part in parts]
        up = f"{found['up wall s']:.1f} | {found['up CPU s'] / hosts:.1f} | {found['reports a s']:.1f}"
        lines.append(f"| {hosts} | {up} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(sizes: list[int]) -> None:
    results = {}
    for num_hosts in sizes:
        with tempfile.TemporaryDirectory(prefix="slt-") as folder:
            results[num_hosts] = measure(num_hosts, Path(folder))
        print(table(results), flush=True)
