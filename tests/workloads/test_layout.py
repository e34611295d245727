"""Mesh shapes: how they are written, which fit, and what is said of those that do not."""

import itertools
import math

import pytest

from workloads.errors import ConfigError
from workloads.layout import Layout, fit_mesh, parse_mesh

AXES = ("data", "model")


def test_a_layout_counts_its_devices() -> None:
    layout = Layout(num_hosts=2, devices_per_host=4)
    assert layout.num_devices == 8
    assert str(layout) == "2 x 4 = 8 devices"


@pytest.mark.parametrize(
    ("text", "data", "model"),
    [
        ("data:2,model:2", 2, 2),
        ("model:2,data:4", 4, 2),
        ("model:4", 1, 4),
        (" data:2 , model:2 ", 2, 2),
        ("data: 2", 2, 1),
        ("2x2", 2, 2),
        ("4", 4, 1),
        ("-1x2", -1, 2),
        ("data:-1", -1, 1),
        ("1x1", 1, 1),
    ],
)
def test_meshes_that_parse(text: str, data: int, model: int) -> None:
    assert parse_mesh(text, AXES) == {"data": data, "model": model}
    assert list(parse_mesh(text, AXES)) == list(AXES), "the order is the workload's"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dta:2", "no axis 'dta'; did you mean 'data'? (axes: data, model)"),
        ("pipeline:2", "no axis 'pipeline' (axes: data, model)"),
        ("", "no axis '' (axes: data, model)"),
        ("data:2,", "no axis '' (axes: data, model)"),
        ("data", "'data' is not axis:size, as in data:2"),
        ("data:", "'data:' is not axis:size, as in data:2"),
        ("data:two", "'data:two' is not axis:size, as in data:2"),
        ("data:2.0", "'data:2.0' is not axis:size, as in data:2"),
        ("data:" + "9" * 5000, "is not axis:size, as in data:2"),
        ("data:2,data:4", "axis 'data' is given twice"),
        ("2x2x2", "has 3 axes, there are 2: data, model"),
        ("0x2", "sizes are at least 1; one axis may be -1 (the devices that are left)"),
        ("data:-2", "sizes are at least 1; one axis may be -1 (the devices that are left)"),
        ("-1x-1", "sizes are at least 1; one axis may be -1 (the devices that are left)"),
        ("2x", "no axis '2x' (axes: data, model)"),
    ],
)
def test_meshes_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_mesh(text, AXES)
    assert str(refused.value).startswith(f"mesh={text!r}: ")
    assert message in str(refused.value)


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 4])
@pytest.mark.parametrize("devices_per_host", [1, 2, 4])
@pytest.mark.parametrize(
    ("data", "model"), [pair for pair in itertools.product([-1, 1, 2, 3, 4, 8], [-1, 1, 2, 3]) if pair != (-1, -1)]
)
def test_a_mesh_fits_exactly_or_is_refused_with_shapes_that_do(
    num_hosts: int, devices_per_host: int, data: int, model: int
) -> None:
    layout = Layout(num_hosts=num_hosts, devices_per_host=devices_per_host)
    fixed = math.prod(size for size in (data, model) if size != -1)
    fits = layout.num_devices % fixed == 0 if -1 in (data, model) else fixed == layout.num_devices
    if fits:
        filled = fit_mesh({"data": data, "model": model}, layout)
        assert math.prod(filled.values()) == layout.num_devices
        assert all(size in (filled[axis], -1) for axis, size in {"data": data, "model": model}.items())
        return
    with pytest.raises(ConfigError) as refused:
        fit_mesh({"data": data, "model": model}, layout)
    offered = str(refused.value).partition("; ")[2].removesuffix(" would fit").split(" or ")
    assert offered
    for text in offered:
        assert math.prod(fit_mesh(parse_mesh(text, AXES), layout).values()) == layout.num_devices


def test_the_refusal_counts_what_is_needed() -> None:
    layout = Layout(num_hosts=2, devices_per_host=2)
    with pytest.raises(ConfigError) as refused:
        fit_mesh({"data": 3, "model": 2}, layout)
    assert str(refused.value) == (
        "mesh=data:3,model:2: needs 6 devices, the job has 2 x 2 = 4 devices; "
        "data:4,model:1 or data:2,model:2 or data:1,model:4 would fit"
    )
    with pytest.raises(ConfigError, match="mesh=data:-1,model:3: needs a multiple of 3 devices"):
        fit_mesh({"data": -1, "model": 3}, layout)
    with pytest.raises(ConfigError, match=r"needs 3 devices, .* 4 devices; data:4 would fit$"):
        fit_mesh({"data": 3}, layout)
