"""`memory_report`: who holds how much memory, made where; of devices, of compiled programs, of the host."""

import collections
import dataclasses
import os
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import jaxlib
import psutil

from workloads.spmd.memory_profile import Allocation, Frame, live_allocations
from workloads.spmd.processes import host_name
from workloads.spmd.text import size, table

# A device is told when it holds so much more than the others do at the median; less is a matter of course, as keys and
# numbers are made on the first device.
UNEVEN_RATIO = 2.0
UNEVEN_BYTES = 2**20
MOST_SOURCES_SHOWN = 12
MOST_CALLS_SHOWN = 60

_NO_USERS_CODE = (
    *(f"{Path(str(module.__file__)).parent}{os.sep}" for module in (jax, jaxlib)),
    f"{Path(__file__).parent}{os.sep}",
    "<frozen",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramMemory:
    """What a compiled program needs, in bytes on each device, as the compiler says.

    Attributes:
        arguments, outputs, temporaries, code: as they are called.
        reused: outputs that take the place of donated arguments; counted in both.
    """

    arguments: int
    outputs: int
    temporaries: int
    reused: int
    code: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """Memory of this process, when it was asked for; `print` it, or look at the parts.

    Attributes:
        host, rank: who reports.
        devices: `{device: bytes of live arrays}`, of all devices of this process.
        limits: `{device: (bytes in use, bytes there are)}`, where the device tells.
        allocations: everything that is held, with the lines that made it.
        programs: those asked about.
        process_bytes: resident memory of this process, arrays on CPU devices included.
        available_bytes, total_bytes: of the host.
    """

    host: str
    rank: int
    devices: dict[str, int]
    limits: dict[str, tuple[int, int]]
    allocations: tuple[Allocation, ...]
    programs: dict[str, ProgramMemory]
    process_bytes: int
    available_bytes: int
    total_bytes: int

    @property
    def by_source(self) -> dict[str, dict[str, int]]:
        """`{line: {device: bytes of arrays}}`: the innermost line that is neither JAX's nor ours; largest first."""
        found: dict[str, dict[str, int]] = collections.defaultdict(lambda: collections.defaultdict(int))
        for allocation in self.allocations:
            if allocation.kind == "buffer":
                frame = next(users_frames(allocation), None)
                found[str(frame) if frame else "(unknown)"][allocation.device] += allocation.num_bytes
        return dict(sorted(found.items(), key=lambda item: -sum(item[1].values())))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Devices that hold far more than the others, in words."""
        warnings = []
        for device, held in self.devices.items():
            others = [num_bytes for other, num_bytes in self.devices.items() if other != device]
            if not others:
                continue
            usual = statistics.median(others)
            if held > UNEVEN_RATIO * usual and held - usual >= UNEVEN_BYTES:
                most = max(self.by_source.items(), key=lambda item: item[1].get(device, 0))[0]
                warnings.append(
                    f"{device} holds {size(held)}, the others {size(usual)} at the median; most of it is from {most}. "
                    "What is made outside of jit lies on the first device: `spmd.shard` spreads it"
                )
        return tuple(warnings)

    def call_graph(self) -> str:
        """Bytes of arrays by call, the outermost first: who called whom to make them."""
        totals: dict[tuple[Frame, ...], int] = collections.defaultdict(int)
        for allocation in self.allocations:
            calls = tuple(users_frames(allocation))[::-1]
            for depth in range(len(calls)):
                totals[calls[: depth + 1]] += allocation.num_bytes
        lines: list[str] = []

        def descend(path: tuple[Frame, ...]) -> None:
            below = [call for call in totals if len(call) == len(path) + 1 and call[: len(path)] == path]
            for call in sorted(below, key=lambda call: -totals[call]):
                if totals[call] and len(lines) < MOST_CALLS_SHOWN:
                    lines.append(f"{size(totals[call]):>10}  {'  ' * len(path)}{call[-1]}")
                    descend(call)

        descend(())
        return "\n".join(lines)

    def __str__(self) -> str:
        parts = [f"memory of rank {self.rank} on {self.host}", self._devices_table(), self._sources_table()]
        if self.programs:
            rows = [[name, *map(size, dataclasses.astuple(program))] for name, program in self.programs.items()]
            fields = [field.name for field in dataclasses.fields(ProgramMemory)]
            parts.append(table(["program, on each device", *fields], rows))
        parts.append(
            f"host memory: {size(self.process_bytes)} in this process, {size(self.available_bytes)} available of "
            f"{size(self.total_bytes)}"
        )
        return "\n\n".join([*parts, *(f"! {warning}" for warning in self.warnings)])

    def _devices_table(self) -> str:
        counts = collections.Counter[str]()
        for allocation in self.allocations:
            if allocation.kind == "buffer":
                counts[allocation.device] += allocation.count
        rows = []
        for device, held in self.devices.items():
            in_use, limit = (size(number) for number in self.limits[device]) if device in self.limits else ("-", "-")
            rows.append([device, str(counts[device]), size(held), in_use, limit])
        return table(["device", "arrays", "bytes", "in use", "limit"], rows)

    def _sources_table(self) -> str:
        sources = list(self.by_source.items())
        rows = [
            [source, size(sum(held.values())), f"{size(max(held.values()))} on {max(held, key=held.__getitem__)}"]
            for source, held in sources[:MOST_SOURCES_SHOWN]
        ]
        if len(sources) > MOST_SOURCES_SHOWN:
            rest = sum(sum(held.values()) for _, held in sources[MOST_SOURCES_SHOWN:])
            rows.append([f"and {len(sources) - MOST_SOURCES_SHOWN} more", size(rest), ""])
        return table(["arrays made at", "bytes", "most on one device"], rows)


def memory_report(**programs: jax.stages.Compiled) -> MemoryReport:
    """What this process holds on its devices and needs of its host; waits for no other process.

        step = jax.jit(train_step).lower(params, batch).compile()
        report = spmd.memory_report(train_step=step)
        print(report)                 # tables: by device, by the line that made it, of the program, of the host
        print(report.call_graph())    # who called whom to make it
        assert not report.warnings    # no device holds far more than the others

    Args:
        programs: compiled programs to tell about, by name.

    Raises:
        TypeError: something that is not compiled.
    """
    for name, program in programs.items():
        if not hasattr(program, "memory_analysis"):
            raise TypeError(f"{name}={program!r}: a compiled program is needed: jax.jit(f).lower(*args).compile()")
    allocations = tuple(live_allocations())
    devices = {str(device): 0 for device in jax.local_devices()}
    for allocation in allocations:
        if allocation.kind == "buffer":
            devices[allocation.device] = devices.get(allocation.device, 0) + allocation.num_bytes
    host = psutil.virtual_memory()
    return MemoryReport(
        host=host_name(),
        rank=jax.process_index(),
        devices=devices,
        limits=dict(_limits()),
        allocations=allocations,
        programs=_analyses(programs),
        process_bytes=psutil.Process().memory_info().rss,
        available_bytes=host.available,
        total_bytes=host.total,
    )


def users_frames(allocation: Allocation) -> Iterator[Frame]:
    """Lines that are neither JAX's nor this package's, the innermost first."""
    return (frame for frame in allocation.stack if not frame.file.startswith(_NO_USERS_CODE))


def _limits() -> Iterator[tuple[str, tuple[int, int]]]:
    for device in jax.local_devices():
        stats = device.memory_stats()  # None on CPU devices
        if stats and "bytes_limit" in stats:
            yield str(device), (stats["bytes_in_use"], stats["bytes_limit"])


def _analyses(programs: Mapping[str, jax.stages.Compiled]) -> dict[str, ProgramMemory]:
    analyses = {name: program.memory_analysis() for name, program in programs.items()}
    return {
        name: ProgramMemory(
            arguments=found.argument_size_in_bytes,
            outputs=found.output_size_in_bytes,
            temporaries=found.temp_size_in_bytes,
            reused=found.alias_size_in_bytes,
            code=found.generated_code_size_in_bytes,
        )
        for name, found in analyses.items()
        if found is not None  # a backend that does not tell
    }
