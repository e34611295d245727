"""Types of accelerators: their numbers are those of Ray's and JAX's own tables."""

import math

import pytest
from jax._src.pallas.mosaic import tpu_info
from ray._private.accelerators import NvidiaGPUAcceleratorManager as Nvidia
from ray._private.accelerators import tpu
from ray.util.accelerators import accelerators as ray_names

from cluster.accelerator_table import GPU_MODELS, REFUSED, TPU_GENERATIONS, why_refused
from cluster.accelerators import Accelerator, tpu_names
from cluster.errors import ClusterConfigError
from cluster.spec import MAX_HOSTS

RAY_NAMES = {value for name, value in vars(ray_names).items() if name.isupper()}
# Ray places by topology and has none for the single hosts of these; Google sells them.
NOT_IN_RAY = {"v2": {"2x2"}, "v3": {"2x2"}}
# Ray has a topology that no type of Google's has: there is no v2-64.
NOT_SOLD = {"v2": {"4x8"}}


def _chips(topology: str) -> int:
    return math.prod(int(side) for side in topology.split("x"))


@pytest.mark.parametrize("name", tpu_names())
def test_a_slice_is_as_ray_counts_it(name: str) -> None:
    slice_ = Accelerator.parse(name)
    generation = slice_.tpu_type.partition("-")[0]
    assert tpu.TPUAcceleratorManager.is_valid_tpu_accelerator_type(slice_.tpu_type)
    assert tpu.infer_tpu_pod_type_from_topology(slice_.topology, slice_.ray_type) == slice_.tpu_type
    assert slice_.chips_per_host == tpu.get_num_tpu_visible_chips_per_host(slice_.tpu_type)
    assert slice_.chips_per_host == tpu.get_chips_per_host(slice_.topology, generation)
    chips = tpu.get_total_chips_from_accelerator_type(slice_.tpu_type)
    assert slice_.chips_per_host * slice_.hosts_per_slice == chips == tpu.get_num_chips_from_topology(slice_.topology)
    assert slice_.devices_per_host == slice_.chips_per_host * slice_.devices_per_chip
    assert slice_.ray_type in RAY_NAMES


def test_the_table_has_every_tpu_that_ray_has_and_no_other() -> None:
    assert set(TPU_GENERATIONS) == set(tpu.VALID_TPU_TYPES) == set(tpu.VALID_TPU_TOPOLOGY)
    assert {f"TPU-{name.upper()}" for name in TPU_GENERATIONS} == {name for name in RAY_NAMES if name[:4] == "TPU-"}


@pytest.mark.parametrize("generation", TPU_GENERATIONS)
def test_topologies_are_rays_in_both_directions(generation: str) -> None:
    ours, rays = set(TPU_GENERATIONS[generation].topologies), tpu.VALID_TPU_TOPOLOGY[generation]
    assert ours - rays == NOT_IN_RAY.get(generation, set())
    sizes = {_chips(topology) for topology in ours}
    assert len(sizes) == len(ours), "one topology a size"
    limit = MAX_HOSTS * tpu.DEFAULT_TPU_NUM_CHIPS_PER_HOST
    left_out = {topology for topology in rays if _chips(topology) <= limit and _chips(topology) not in sizes}
    assert left_out == NOT_SOLD.get(generation, set())


@pytest.mark.parametrize("generation", TPU_GENERATIONS)
def test_devices_of_a_chip_and_their_memory_are_as_jax_has_them(generation: str) -> None:
    ours = TPU_GENERATIONS[generation]
    for kind in ours.device_kinds:
        chip = tpu_info.chip_version_from_device_kind(kind)
        assert chip is not None and str(chip) == {"v5litepod": "v5e", "v7x": "7x"}.get(generation, generation)
        cores = chip.num_physical_tensor_cores_per_chip
        assert ours.cores_per_chip == cores
        assert ours.devices_per_chip == (1 if chip.supports_megacore else cores)
        of_a_core = tpu_info.get_tpu_info_for_chip(chip, cores // ours.devices_per_chip).hbm_capacity_bytes
        # JAX rounds: 16e9 bytes for 16 GiB on v2, 103e9 for 95 GiB on v5p.
        assert of_a_core * cores == pytest.approx(ours.hbm_gib_per_chip * 2**30, rel=0.08)


def test_every_device_kind_of_a_tpu_that_jax_knows_is_ours_or_of_a_chip_that_ray_does_not_know() -> None:
    kinds = {kind for row in TPU_GENERATIONS.values() for kind in row.device_kinds}
    ours = {str(tpu_info.chip_version_from_device_kind(kind)) for kind in kinds}
    unknown_to_ray = {"v4i", "7", "8i", "8t"}
    assert {str(version) for version in tpu_info.ChipVersion} - ours <= unknown_to_ray


def test_every_row_names_its_sources() -> None:
    for name, row in TPU_GENERATIONS.items():
        text = " ".join(row.sources)
        assert all(word in text for word in ("JAX ", "Ray ", "https://")), name
    for name, model in GPU_MODELS.items():
        assert model.source.startswith(("https://", "Ray ")), name
        assert model.memory_gb or model.source.endswith("the name alone"), name


def test_every_accelerator_that_ray_names_is_ours_or_refused_with_a_reason() -> None:
    gpus = set(GPU_MODELS)
    tpus = {f"TPU-{name.upper()}" for name in TPU_GENERATIONS}
    assert gpus | tpus <= RAY_NAMES
    refused = RAY_NAMES - gpus - tpus
    assert [name for name in refused if why_refused(name) is None] == []
    assert [name for name in gpus | tpus if why_refused(name) is not None] == []
    assert [begin for begin in REFUSED if not any(name.startswith(begin) for name in refused)] == [], "of no use"


@pytest.mark.parametrize(
    ("name", "hosts", "devices", "topology"),
    [
        ("tpu-v4-8", 1, 4, "2x2x1"),
        ("tpu-v4-16", 2, 4, "2x2x2"),
        ("tpu-v5p-128", 16, 4, "4x4x4"),
        ("tpu-v5litepod-8", 1, 8, "2x4"),
        ("tpu-v5e-16", 4, 4, "4x4"),
        ("tpu-v6e-1", 1, 1, "1x1"),
        ("tpu-v2-8", 1, 8, "2x2"),
        ("tpu-v3-32", 4, 8, "4x4"),
        ("tpu-v4-384", 48, 4, "4x4x12"),
        ("tpu-v7x-16", 2, 8, "2x2x2"),
        ("tpu7x-16", 2, 8, "2x2x2"),
    ],
)
def test_slices(name: str, hosts: int, devices: int, topology: str) -> None:
    slice_ = Accelerator.parse(name)
    assert (slice_.hosts_per_slice, slice_.devices_per_host, slice_.topology) == (hosts, devices, topology)


def test_a_host_of_gpus() -> None:
    h100 = Accelerator.parse("H100:8")
    assert (h100.ray_resource, h100.ray_type, h100.devices_per_host, h100.hosts_per_slice) == ("GPU", "H100", 8, 1)


@pytest.mark.parametrize(
    ("name", "chips", "memory", "runtime"),
    [
        ("tpu-v2-8", 4, 8, "tpu-ubuntu2204-base"),
        ("tpu-v4-8", 4, 32, "tpu-ubuntu2204-base"),
        ("tpu-v5p-8", 4, 95, "v2-alpha-tpuv5"),
        ("tpu-v5e-8", 8, 16, "v2-alpha-tpuv5-lite"),
        ("tpu-v6e-8", 8, 32, "v2-alpha-tpuv6e"),
        ("tpu-v7x-8", 4, 96, None),
    ],
)
def test_a_host_of_tpus(name: str, chips: int, memory: float, runtime: str | None) -> None:
    host = Accelerator.parse(name)
    assert (host.chips_per_host, host.memory_gb_per_device, host.runtime_version) == (chips, (memory,), runtime)


@pytest.mark.parametrize(
    ("device_kind", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
    ],
)
def test_a_gpu_is_known_by_its_name_and_by_no_other(device_kind: str, model: str) -> None:
    """The driver's name of a GPU, which Ray makes the label of, and JAX the device_kind."""
    assert Nvidia._gpu_name_to_accelerator_type(device_kind) == model
    assert [name for name in GPU_MODELS if Accelerator.parse(f"{name}:1").is_device(device_kind)] == [model]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("H100", "not 'H100' (known: 1 to 16 of V100,"),
        ("H100:0", "not 'H100:0' (known: 1 to 16"),
        ("H100:17", "not 'H100:17' (known: 1 to 16"),
        ("h100:8", "did you mean 'H100'?"),
        ("v4-16", "did you mean 'tpu-v4-16'?"),
        ("tpu-v4-17", "did you mean 'tpu-v4-16'?"),
        ("tpu-v5e-2", "(known: tpu-v5litepod-1,"),
        ("tpu-v5-lite-16", "did you mean 'tpu-v5litepod-16'?"),
        ("tpu-v2-64", "did you mean 'tpu-v2-"),
        ("tpu7x-24", "(known: tpu-v7x-8,"),
        ("tpu-v9-8", "must be cpu, a GPU"),
        ("K80:8", "not 'K80:8': JAX's CUDA builds do not run on it"),
        ("A100-80G:8", "write A100"),
        ("AMD-Instinct-MI300X-OAM:8", "another plugin"),
        ("", "not ''"),
        (None, "not None"),
    ],
)
def test_what_is_not_known_is_refused(text: str, said: str) -> None:
    with pytest.raises(ClusterConfigError) as refused:
        Accelerator.parse(text)
    assert refused.value.key == "accelerator" and said in refused.value.problem
