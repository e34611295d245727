"""What `accelerator` in a cluster file may be, and what follows from it: devices, slices, Ray's names. Pure."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from cluster.accelerator_table import GPU_MODELS, TPU_GENERATIONS, why_refused
from cluster.errors import ClusterConfigError, nearest

MAX_GPUS_PER_HOST = 16

_TPU_ALIASES = {"v5e": "v5litepod", "7x": "v7x"}  # `tpu7x-16` is how Google writes it
_CHIPS_PER_HOST = 4  # of a slice of several hosts; Ray: DEFAULT_TPU_NUM_CHIPS_PER_HOST


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accelerator:
    """What the devices of a host are.

    Attributes:
        name: as in a cluster file.
        kind: `cpu`, `gpu` or `tpu`.
        device_kinds: what JAX may call the devices; of a GPU a word of its name.
        devices_per_host: as JAX counts them; None: the cluster file says (emulated devices).
        devices_per_chip: likewise; 2 where JAX makes a device of each core of a TPU chip.
        memory_gb_per_device: of a GPU, or of a TPU device in GiB; several where the model is sold with several, none
            where it is not known.
        ray_resource: what Ray counts of a host, `GPU` or `TPU`, a chip each; '' for `cpu`.
        ray_type: Ray's name of the model; '' for `cpu`.
        hosts_per_slice: hosts that only work all together; 1 where each is for itself.
        tpu_type: of a slice, as Google names it, such as `v4-16`; '' for others.
        topology: of a slice, such as `2x2x2`; '' for others.
        runtime_version: of a TPU VM that the Cloud TPU API makes; None: it makes none.
        sources: what says so.
    """

    name: str
    kind: str
    device_kinds: tuple[str, ...]
    devices_per_host: int | None
    devices_per_chip: int = 1
    memory_gb_per_device: tuple[float, ...] = ()
    ray_resource: str = ""
    ray_type: str = ""
    hosts_per_slice: int = 1
    tpu_type: str = ""
    topology: str = ""
    runtime_version: str | None = None
    sources: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Accelerator":
        """`cpu`, `H100:8` (a model and how many a host has) or `tpu-v4-16` (a type of slice).

        Raises:
            ClusterConfigError: it is none that we know, with the nearest one.
        """
        if text == "cpu":
            return CPU
        known = _gpu(text) or _tpu(text) if isinstance(text, str) else None
        if known is None:
            raise ClusterConfigError("accelerator", _refusal(text))
        return known

    def is_device(self, device_kind: str) -> bool:
        """Whether JAX's name of a device is one of this accelerator's."""
        if self.kind == "gpu":
            word = self.device_kinds[0]
            return re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", device_kind) is not None
        return device_kind in self.device_kinds

    @property
    def chips_per_host(self) -> int:
        """How many of `ray_resource` a host has; 0 for `cpu`."""
        return (self.devices_per_host or 0) // self.devices_per_chip if self.ray_resource else 0


CPU = Accelerator(name="cpu", kind="cpu", device_kinds=("cpu",), devices_per_host=None)


def _gpu(text: str) -> Accelerator | None:
    model, _, count = text.partition(":")
    if model not in GPU_MODELS or not re.fullmatch("[1-9][0-9]?", count) or int(count) > MAX_GPUS_PER_HOST:
        return None
    return Accelerator(
        name=text,
        kind="gpu",
        device_kinds=(model.replace("-", " "),),
        devices_per_host=int(count),
        memory_gb_per_device=GPU_MODELS[model].memory_gb,
        ray_resource="GPU",
        ray_type=model,
        sources=(GPU_MODELS[model].source,),
    )


def _tpu(text: str) -> Accelerator | None:
    match = re.fullmatch(r"tpu-?(v[0-9][a-z]*|7x)-([1-9][0-9]*)", text)
    generation = _TPU_ALIASES.get(match[1], match[1]) if match else ""
    tpu = TPU_GENERATIONS.get(generation)
    if match is None or tpu is None:
        return None
    chips, rest = divmod(int(match[2]), tpu.cores_per_chip)
    if rest or chips not in tpu.by_chips:
        return None
    chips_per_host = chips if chips <= tpu.max_chips_of_one_host else _CHIPS_PER_HOST
    return Accelerator(
        name=text,
        kind="tpu",
        device_kinds=tpu.device_kinds,
        devices_per_host=chips_per_host * tpu.devices_per_chip,
        devices_per_chip=tpu.devices_per_chip,
        memory_gb_per_device=(tpu.hbm_gib_per_chip / tpu.devices_per_chip,),
        ray_resource="TPU",
        ray_type=f"TPU-{generation.upper()}",
        hosts_per_slice=chips // chips_per_host,
        tpu_type=f"{generation}-{match[2]}",
        topology=tpu.by_chips[chips],
        runtime_version=tpu.runtime_version,
        sources=tpu.sources,
    )


def tpu_names(generation: str | None = None) -> list[str]:
    """Every type of slice that a cluster file may name, or those of one generation."""
    return [f"tpu-{name}-{chips * tpu.cores_per_chip}" for name, tpu in TPU_GENERATIONS.items()
            if generation in (None, name) for chips in tpu.by_chips]  # fmt: skip


def _refusal(text: object) -> str:
    allowed = "must be cpu, a GPU and how many a host has (H100:8), or a type of TPU slice (tpu-v4-16)"
    asked = str(text)
    model, colon, _ = asked.partition(":")
    word = asked.lower().removeprefix("tpu").removeprefix("-").partition("-")[0]
    generation = _TPU_ALIASES.get(word, word)
    if reason := why_refused(model):
        return f"{allowed}, not {text!r}: {reason}"
    if colon or model in GPU_MODELS:
        hint = "" if model in GPU_MODELS else nearest(model, GPU_MODELS)
        known = f" (known: 1 to {MAX_GPUS_PER_HOST} of {', '.join(GPU_MODELS)})"
    elif generation in TPU_GENERATIONS:
        names = tpu_names(generation)
        size = asked.rpartition("-")[2]
        hint, known = nearest(f"tpu-{generation}-{size}", names), f" (known: {', '.join(names)})"
    else:
        hint, known = nearest(asked, [*GPU_MODELS, *tpu_names()]) if "-" in asked else "", ""
    return f"{allowed}, not {text!r}{hint}{known}"


def check_emulation(accelerator: Accelerator, emulate: object, provider: str, kinds: Sequence[str]) -> None:
    """Refuses what a provider does not have, and an emulation of nothing.

    Args:
        accelerator: that is asked for.
        emulate: as in the cluster file.
        provider: its type.
        kinds: of accelerators that it has.

    Raises:
        ClusterConfigError: with what would do.
    """
    if not isinstance(emulate, bool):
        raise ClusterConfigError("emulate", f"must be true or false, not {emulate!r}")
    if emulate and accelerator.kind == "cpu":
        raise ClusterConfigError("emulate", "is for accelerators that are not there; cpu is")
    if not emulate and accelerator.kind not in kinds:
        raise ClusterConfigError(
            "accelerator",
            f"provider {provider} has {', '.join(kinds)}, not {accelerator.name!r}; with `emulate: true` Ray is told "
            f"that its hosts have it, and JAX gets CPU devices in its place",
        )


def check_counts(accelerator: Accelerator, devices_per_host: int, hosts: Mapping[str, int]) -> None:
    """Refuses another number of devices than a host has, and parts of slices.

    Args:
        accelerator: that is asked for.
        devices_per_host: as in the cluster file.
        hosts: `{setting: number of hosts}`.

    Raises:
        ClusterConfigError: with the setting and what would do.
    """
    told = accelerator.devices_per_host
    if told not in (None, devices_per_host):
        raise ClusterConfigError(
            "devices_per_host", f"must be {told}, as a host of {accelerator.name} has, not {devices_per_host}"
        )
    whole = accelerator.hosts_per_slice
    for key, count in hosts.items():
        if count % whole:
            raise ClusterConfigError(
                key, f"must be whole slices: one of {accelerator.name} is {whole} hosts, and {count} is no multiple"
            )
