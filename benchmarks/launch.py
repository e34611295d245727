"""Seconds from the shell prompt to the first cross-host psum, ours beside its peers: `python benchmarks/launch.py`.

Interleaved, so that a machine that grows busy hurts all alike: each round measures every contender once, one after
another, and the medians of one run are compared. For one number of hosts, JaxTrainer's Ray cluster and ours stay up
from the first round to the last; both are idle while another contender is measured, and what that costs is measured
first and printed. Each process is ended by its pid, whatever happens.

- bare: processes started by hand, `jax.distributed.initialize` with a port agreed beforehand
- JaxTrainer: on its running cluster, in an environment of its own (`ray[train]` brings pyarrow, whose threads slow
  our ranks); the driver's start and imports count from the prompt, not from the call
- ours, cold: `spmd-launch submit` on a running cluster after the code was changed: the new code is shipped, what the
  hosts have imported ahead does not fit it, and every rank starts from nothing
- ours, warm: the same with `status` WARM

The prompt is the moment before the (first) process is made; the call is that of `jax.distributed.initialize`, of
`fit`, or of our submission, when imports are done. The end is rank 0's clock after its psum, on this same machine.
"""

import argparse
import functools
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bare_processes
import jax_trainer
import ssh_up
from jax_trainer import RayCluster
from ours import Installation, OurCluster
from report import Samples, Target, add, median, table
from trainer_environment import make_environment

IDLE_S = 5.0
DEVICES_PER_HOST = 2
BARE, TRAINER, COLD, WARM = "bare processes", "JaxTrainer", "ours, cold", "ours, warm"


class Run:
    """What is asked for, and everything that was measured.

    Attributes:
        samples: `{measurement: {contender: values in the order of rounds}}`.
        targets: the issue's, with the figures of this run.
    """

    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options = options
        self.folder = folder
        self.installation = Installation(folder)
        self.samples: dict[str, Samples] = {}
        self.targets: list[Target] = []
        self.settings: dict[str, Any] = {
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "rounds": options.rounds,
            "devices_per_host": DEVICES_PER_HOST,
            "JaxTrainer": jax_trainer.settings(2, DEVICES_PER_HOST, "FOLDER"),
        }

    @functools.cached_property
    def trainer_python(self) -> str:
        """JaxTrainer's interpreter; made when it is first asked for."""
        own = self.options.trainer_python  # a path: not resolved, as a link is what makes an environment
        return str(Path(own).absolute()) if own else make_environment(self.folder / "trainer")

    def rounds(self) -> range:
        return range(1, self.options.rounds + 1)

    def print(self, title: str, samples: Samples, unit: str, *targets: Target) -> None:
        self.samples[title] = samples
        self.targets += targets
        print(table(title, samples, unit), *(f"  {target}" for target in targets), "", sep="\n", flush=True)


def measure_help(run: Run) -> None:
    """`spmd-launch --help`, from the prompt to its end."""
    samples: Samples = {}
    for _ in run.rounds():
        add(samples, "spmd-launch --help", run.installation.command("--help")[0])
    run.print("help", samples, "s", Target("--help", median(samples, "spmd-launch --help"), 0.3, " s"))


def measure_up(run: Run) -> None:
    """`up` from its prompt to its end, beside Ray's own test cluster from its prompt to its last node."""
    for num_hosts, bound in ((2, 7.0), (8, 15.0)) if run.options.full else ((2, 7.0),):
        samples: Samples = {}
        for _ in run.rounds():
            with RayCluster(num_hosts, DEVICES_PER_HOST, run.folder, run.trainer_python) as theirs:
                add(samples, "Ray's test cluster", theirs.seconds["prompt"])
            with OurCluster(run.installation, num_hosts, DEVICES_PER_HOST) as ours:
                add(samples, "spmd-launch up", ours.up_s)
        figure = median(samples, "spmd-launch up")
        targets = [Target(f"up, {num_hosts} hosts", figure, bound, " s")]
        if num_hosts == 2:
            targets.append(Target("up, 2 hosts (stretch)", figure, 5.0, " s"))
        run.print(f"up, {num_hosts} hosts", samples, "s", *targets)


def measure_ssh(run: Run) -> None:
    """`up` over ssh, beside `ray start` on one host after another, where there can be test hosts."""
    run.settings["ray start"] = ssh_up.RAY_START
    for num_hosts, bound in ((3, 15.0), (8, 30.0)) if run.options.full else ((3, 15.0),):
        samples: Samples = {}
        try:
            with ssh_up.hosts_of(num_hosts) as hosts:
                for _ in run.rounds():
                    add(samples, "ray start, one by one", ssh_up.ray_start_s(hosts))
                    add(samples, "spmd-launch up", ssh_up.ours_up_s(hosts, run.installation))
        except ssh_up.NoTestHosts as reason:
            print(f"up over ssh: not measured: {reason}\n", flush=True)
            return
        figure = median(samples, "spmd-launch up")
        run.print(
            f"up over ssh, {num_hosts} hosts", samples, "s", Target(f"up over ssh, {num_hosts}", figure, bound, " s")
        )


def measure_launch(run: Run) -> None:
    """To the first psum, for each number of hosts."""
    for num_hosts in run.options.hosts:
        with (
            OurCluster(run.installation, num_hosts, DEVICES_PER_HOST) as ours,
            RayCluster(num_hosts, DEVICES_PER_HOST, run.folder, run.trainer_python) as theirs,
        ):
            _measure_launch(run, num_hosts, ours, theirs)


def _measure_launch(run: Run, num_hosts: int, ours: OurCluster, theirs: RayCluster) -> None:
    prompt: Samples = {}
    call: Samples = {}

    def add_times(name: str, times: dict[str, Any]) -> None:
        add(prompt, name, times["first_psum"] - times["prompt"])
        add(call, name, times["first_psum"] - times["call"])

    ours.wait_until_warm()
    _measure_idle(run, num_hosts, ours, theirs)
    for _ in run.rounds():
        add_times(BARE, bare_processes.run(num_hosts, DEVICES_PER_HOST, run.folder))
        add_times(TRAINER, theirs.fit())
        run.installation.renew_code()
        add_times(COLD, ours.submit())
        ours.wait_until_warm()
        add_times(WARM, ours.submit())
        ours.wait_until_warm()
    warm, cold, bare = (median(prompt, name) for name in (WARM, COLD, BARE))
    run.print(
        f"prompt to first psum, {num_hosts} hosts", prompt, "s",
        Target(f"warm, {num_hosts} hosts", warm, 1.5, " s"),
        Target(f"warm, {num_hosts} hosts (stretch)", warm, 1.0, " s"),
        Target(f"cold against bare processes, {num_hosts} hosts", cold / bare, 1.5, " x"),
    )  # fmt: skip
    run.print(f"call to first psum, {num_hosts} hosts", call, "s")


def _measure_idle(run: Run, num_hosts: int, ours: OurCluster, theirs: RayCluster) -> None:
    meters: dict[str, Callable[[], float]] = {"ours, WARM": ours.cpu_s, "JaxTrainer's": theirs.child.cpu_s}
    before = {name: meter() for name, meter in meters.items()}
    time.sleep(IDLE_S)
    used = {name: [100 * (meter() - before[name]) / IDLE_S] for name, meter in meters.items()}
    run.print(f"CPU of idle clusters, {num_hosts} hosts", used, "% of one core")


def measure_steps(run: Run) -> None:
    """Steps per second of a data-parallel step on 2 hosts: the same function in both.

    Twice: over all steps, while our hosts may still prepare for the next job, and over the second half of the steps.
    """
    whole: Samples = {}
    steady: Samples = {}
    steps, size = run.options.steps, run.options.step_size
    with OurCluster(run.installation, 2, DEVICES_PER_HOST) as ours:
        for _ in run.rounds():
            ours.wait_until_warm()
            bare = bare_processes.run(2, DEVICES_PER_HOST, run.folder, steps=steps, size=size)
            job = ours.submit(steps=steps, size=size, report_every=bare_processes.REPORT_EVERY)
            for name, times in ((BARE, bare), ("ours", job)):
                add(whole, name, times["steps_per_s"])
                add(steady, name, _second_half(times["reports"]))
    step_ms = 1000 / median(steady, BARE)
    for title, samples in (("second half", steady), ("all steps", whole)):
        ratio = median(samples, "ours") / median(samples, BARE)
        target = Target(f"steps per second against bare processes, {title}", ratio, 0.98, " x", at_least=True)
        run.print(f"steps per second, 2 hosts, a step of {step_ms:.1f} ms, {title}", samples, "1/s", target)


def _second_half(reports: list[tuple[int, float]]) -> float:
    """Steps per second from the middle report to the last."""
    (first, start), (last, end) = reports[len(reports) // 2], reports[-1]
    return (last - first) / (end - start)


MEASUREMENTS: dict[str, Callable[[Run], None]] = {
    "help": measure_help,
    "launch": measure_launch,
    "ssh": measure_ssh,
    "steps": measure_steps,
    "up": measure_up,
}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="samples of each figure")
    parser.add_argument("--hosts", type=_numbers, default=[2, 4], metavar="2,4", help="numbers of hosts for `launch`")
    parser.add_argument("--only", choices=MEASUREMENTS, help="one measurement")
    parser.add_argument("--full", action="store_true", help="`up` with 8 hosts too, here and over ssh")
    parser.add_argument("--steps", type=int, default=1000, help="steps to time")
    parser.add_argument("--step-size", type=int, default=512, help="rows and columns of a device's matrix in a step")
    parser.add_argument("--trainer-python", metavar="PYTHON", help="with ray[train]; else one is made for the run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `with`: nothing is left running
    # Short, because Ray's sockets lie below it and a Unix socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="spl-bench-", ignore_cleanup_errors=True) as folder:
        run = Run(options, Path(folder))
        print(json.dumps(run.settings, indent=1), "", sep="\n", flush=True)
        for name in [options.only] if options.only else MEASUREMENTS:
            MEASUREMENTS[name](run)
    load = os.getloadavg()[0]
    is_busy = load > 2 * (os.cpu_count() or 1)
    busy = f" (for a quiet machine; this one is busy, with a load average of {load:.1f})" if is_busy else ""
    print(f"targets{busy}", *(f"  {target}" for target in run.targets), sep="\n")
    if options.json:
        targets = [{"what": t.what, "value": t.value, "bound": t.bound, "met": t.met} for t in run.targets]
        record = {"settings": run.settings, "samples": run.samples, "targets": targets}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
