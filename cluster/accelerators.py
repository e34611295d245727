"""What `accelerator` in a cluster file may be, and what follows from it: devices, slices, Ray's names. Pure.

Nothing is guessed: a type is here if its numbers have a source, which stands beside them.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from cluster.errors import ClusterConfigError, nearest

MAX_GPUS_PER_HOST = 16

# What Ray calls the models that it knows (ray/util/accelerators/accelerators.py, NVIDIA_*). JAX's device_kind has the
# same word in it, because both take the name from the driver: "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB".
# K80 is not here: JAX's CUDA builds do not run on it.
GPU_MODELS = (
    "V100", "P100", "T4", "P4", "A10G", "L4", "L40S", "A100", "H100", "H200", "H20", "B200", "B300", "GB200", "GB300",
    "RTX-PRO-6000",
)  # fmt: skip

_CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
_TILES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}


@dataclasses.dataclass(frozen=True)
class _Tpu:
    """A TPU generation.

    Attributes:
        cores_per_chip: the number in a type's name counts cores. Of Ray (SINGLE_CORE_TPU_TYPES).
        max_chips_of_one_host: of a slice that is one host. Of Ray (TPU_8_CHIPS_PER_HOST_TYPES).
        topologies: `{chips: shape}` of one slice. Of cloud.google.com/tpu/docs/v4, v5p, v5e and v6e, where a number of
            chips has several shapes the one that its name stands for; all are in Ray's VALID_TPU_TOPOLOGY.
        device_kinds: as JAX names them. Of jax/_src/pallas/mosaic/tpu_info.py (chip_version_from_device_kind).

    JAX counts one device a chip on all of these: v4 and v5p join two cores to one device (supports_megacore, there),
    the others have one core. It is not so on v2, v3 and v7x, which are not here.
    """

    cores_per_chip: int
    max_chips_of_one_host: int
    topologies: Mapping[int, str]
    device_kinds: tuple[str, ...]


TPU_GENERATIONS = {
    "v4": _Tpu(2, 4, _CUBES, ("TPU v4",)),
    "v5p": _Tpu(2, 4, _CUBES, ("TPU v5p", "TPU v5")),
    "v5litepod": _Tpu(1, 8, _TILES, ("TPU v5 lite", "TPU v5e")),
    "v6e": _Tpu(1, 8, _TILES, ("TPU v6 lite", "TPU v6e")),
}
_TPU_ALIASES = {"v5e": "v5litepod"}
_CHIPS_PER_HOST = 4  # of a slice of several hosts; Ray: DEFAULT_TPU_NUM_CHIPS_PER_HOST


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accelerator:
    """What the devices of a host are.

    Attributes:
        name: as in a cluster file.
        kind: `cpu`, `gpu` or `tpu`.
        device_kinds: what JAX may call the devices; of a GPU a word of its name.
        devices_per_host: as JAX counts them; None: the cluster file says (emulated devices).
        ray_resource: what Ray counts of a host, `GPU` or `TPU`; '' for `cpu`.
        ray_type: Ray's name of the model; '' for `cpu`.
        hosts_per_slice: hosts that only work all together; 1 where each is for itself.
        tpu_type: of a slice, as Google names it, such as `v4-16`; '' for others.
        topology: of a slice, such as `2x2x2`; '' for others.
    """

    name: str
    kind: str
    device_kinds: tuple[str, ...]
    devices_per_host: int | None
    ray_resource: str = ""
    ray_type: str = ""
    hosts_per_slice: int = 1
    tpu_type: str = ""
    topology: str = ""

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
        return (self.devices_per_host or 0) if self.ray_resource else 0


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
        ray_resource="GPU",
        ray_type=model,
    )


def _tpu(text: str) -> Accelerator | None:
    match = re.fullmatch(r"tpu-(v[0-9][a-z]*)-([1-9][0-9]*)", text)
    generation = _TPU_ALIASES.get(match[1], match[1]) if match else ""
    tpu = TPU_GENERATIONS.get(generation)
    if match is None or tpu is None:
        return None
    chips, rest = divmod(int(match[2]), tpu.cores_per_chip)
    if rest or chips not in tpu.topologies:
        return None
    chips_per_host = chips if chips <= tpu.max_chips_of_one_host else _CHIPS_PER_HOST
    return Accelerator(
        name=text,
        kind="tpu",
        device_kinds=tpu.device_kinds,
        devices_per_host=chips_per_host,
        ray_resource="TPU",
        ray_type=f"TPU-{generation.upper()}",
        hosts_per_slice=chips // chips_per_host,
        tpu_type=f"{generation}-{match[2]}",
        topology=tpu.topologies[chips],
    )


def tpu_names() -> list[str]:
    """Every type of slice that a cluster file may name."""
    return [f"tpu-{name}-{chips * tpu.cores_per_chip}" for name, tpu in TPU_GENERATIONS.items()
            for chips in tpu.topologies]  # fmt: skip


def _refusal(text: object) -> str:
    allowed = "must be cpu, a GPU and how many a host has (H100:8), or a type of TPU slice (tpu-v4-16)"
    asked = str(text)
    model, colon, _ = asked.partition(":")
    word = asked.lower().removeprefix("tpu-").partition("-")[0]
    generation = _TPU_ALIASES.get(word, word)
    if colon or model in GPU_MODELS:
        hint = "" if model in GPU_MODELS else nearest(model, GPU_MODELS)
        known = f" (known: 1 to {MAX_GPUS_PER_HOST} of {', '.join(GPU_MODELS)})"
    elif generation in TPU_GENERATIONS:
        names = [name for name in tpu_names() if name.startswith(f"tpu-{generation}-")]
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
