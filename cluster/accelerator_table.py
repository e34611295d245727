"""The table of accelerators, accelerators.toml, as values. Pure."""

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuGeneration:
    """A generation of TPUs; the table says what each number is, and has its sources.

    Attributes:
        cores_per_chip: the number in a type's name is chips times this.
        devices_per_chip: as JAX counts them.
        max_chips_of_one_host: of a slice that is one host.
        hbm_gib_per_chip: of a chip, not of a device.
        device_kinds: as JAX names them.
        topologies: of one slice, from small to large, one for each size.
        sources: what says so.
        runtime_version: of a TPU VM that the Cloud TPU API makes; None: it makes none.
    """

    cores_per_chip: int
    devices_per_chip: int
    max_chips_of_one_host: int
    hbm_gib_per_chip: int
    device_kinds: tuple[str, ...]
    topologies: tuple[str, ...]
    sources: tuple[str, ...]
    runtime_version: str | None = None

    @property
    def by_chips(self) -> Mapping[int, str]:
        """`{chips of a slice: its topology}`."""
        return {math.prod(int(side) for side in shape.split("x")): shape for shape in self.topologies}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuModel:
    """A model of GPUs.

    Attributes:
        memory_gb: of one; several where it is sold with several, none where it is not known.
        source: what says so.
    """

    memory_gb: tuple[int, ...]
    source: str


_TABLE = tomllib.loads(Path(__file__).with_name("accelerators.toml").read_text(encoding="utf-8"))


def _frozen(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


TPU_GENERATIONS = {name: TpuGeneration(**_frozen(row)) for name, row in _TABLE["tpu"].items()}
GPU_MODELS = {name: GpuModel(**_frozen(row)) for name, row in _TABLE["gpu"].items()}
REFUSED: Mapping[str, str] = _TABLE["refused"]


def why_refused(name: str) -> str | None:
    """Why an accelerator that Ray knows is none of ours; None where we have no word of it."""
    return next((reason for begin, reason in REFUSED.items() if name.startswith(begin)), None)
