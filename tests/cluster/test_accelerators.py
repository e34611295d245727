"""Types of accelerators: their numbers are those of Ray's and JAX's own tables."""

import pytest
from jax._src.pallas.mosaic import tpu_info
from ray._private.accelerators import NvidiaGPUAcceleratorManager as Nvidia
from ray._private.accelerators import tpu
from ray.util.accelerators import accelerators as ray_names

from cluster.accelerators import GPU_MODELS, TPU_GENERATIONS, Accelerator, tpu_names
from cluster.errors import ClusterConfigError


@pytest.mark.parametrize("name", tpu_names())
def test_a_slice_is_as_ray_counts_it(name: str) -> None:
    slice_ = Accelerator.parse(name)
    generation = slice_.tpu_type.partition("-")[0]
    assert tpu.TPUAcceleratorManager.is_valid_tpu_accelerator_type(slice_.tpu_type)
    assert slice_.topology in tpu.VALID_TPU_TOPOLOGY[generation]
    assert tpu.infer_tpu_pod_type_from_topology(slice_.topology, slice_.ray_type) == slice_.tpu_type
    assert slice_.chips_per_host == tpu.get_num_tpu_visible_chips_per_host(slice_.tpu_type)
    assert slice_.chips_per_host == tpu.get_chips_per_host(slice_.topology, generation)
    chips = tpu.get_total_chips_from_accelerator_type(slice_.tpu_type)
    assert slice_.chips_per_host * slice_.hosts_per_slice == chips == tpu.get_num_chips_from_topology(slice_.topology)
    assert slice_.ray_type in vars(ray_names).values()


@pytest.mark.parametrize("generation", TPU_GENERATIONS)
def test_devices_of_a_chip_are_as_jax_counts_them(generation: str) -> None:
    for kind in TPU_GENERATIONS[generation].device_kinds:
        chip = tpu_info.chip_version_from_device_kind(kind)
        assert chip is not None and str(chip) == {"v5litepod": "v5e"}.get(generation, generation)
        assert chip.num_physical_tensor_cores_per_chip == TPU_GENERATIONS[generation].cores_per_chip
        assert chip.supports_megacore == (TPU_GENERATIONS[generation].cores_per_chip == 2), "one device a chip"


@pytest.mark.parametrize(
    ("name", "hosts", "devices", "topology"),
    [
        ("tpu-v4-8", 1, 4, "2x2x1"),
        ("tpu-v4-16", 2, 4, "2x2x2"),
        ("tpu-v5p-128", 16, 4, "4x4x4"),
        ("tpu-v5litepod-8", 1, 8, "2x4"),
        ("tpu-v5e-16", 4, 4, "4x4"),
        ("tpu-v6e-1", 1, 1, "1x1"),
    ],
)
def test_slices(name: str, hosts: int, devices: int, topology: str) -> None:
    slice_ = Accelerator.parse(name)
    assert (slice_.hosts_per_slice, slice_.devices_per_host, slice_.topology) == (hosts, devices, topology)


def test_gpu_models_are_names_of_ray() -> None:
    known = {value for name, value in vars(ray_names).items() if name.startswith("NVIDIA_")}
    assert set(GPU_MODELS) <= known
    h100 = Accelerator.parse("H100:8")
    assert (h100.ray_resource, h100.ray_type, h100.devices_per_host, h100.hosts_per_slice) == ("GPU", "H100", 8, 1)


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
        ("tpu-v3-8", "must be cpu, a GPU"),
        ("", "not ''"),
        (None, "not None"),
    ],
)
def test_what_is_not_known_is_refused(text: str, said: str) -> None:
    with pytest.raises(ClusterConfigError) as refused:
        Accelerator.parse(text)
    assert refused.value.key == "accelerator" and said in refused.value.problem
