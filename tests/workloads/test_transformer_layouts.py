"""The transformer on meshes of several devices and processes: gradients, loss curves and bits."""

import itertools
import re

import numpy as np
import pytest

from tests.ranks import run_ranks

PROGRAMS = "tests.workloads.transformer_programs"
STEPS = 40


@pytest.fixture(scope="module")
def one_process() -> dict:
    meshes = ["1x1", "4x1", "2x2", "1x4"]
    (found,) = run_ranks(f"{PROGRAMS}:curves", num_hosts=1, devices_per_host=4, meshes=meshes, steps=STEPS, seed=3)
    return found


@pytest.fixture(scope="module")
def two_processes() -> list[dict]:
    meshes = ["4x1", "2x2"]
    return run_ranks(f"{PROGRAMS}:curves", num_hosts=2, devices_per_host=2, meshes=meshes, steps=STEPS, seed=3)


@pytest.mark.slow
def test_gradients_equal_a_plain_reference_on_every_mesh() -> None:
    meshes = ["4x1", "1x4", "2x2"]
    (errors,) = run_ranks(f"{PROGRAMS}:gradient_errors", num_hosts=1, devices_per_host=4, x64=True, meshes=meshes)
    assert list(errors) == ["4x1 float64", "1x4 float64", "2x2 float64", "2x2 float32"]
    for case, by_parameter in errors.items():
        assert len(by_parameter) == 9
        worst = max(by_parameter, key=by_parameter.__getitem__)
        assert by_parameter[worst] < (1e-13 if "64" in case else 1e-5), (case, worst, by_parameter[worst])


@pytest.mark.slow
def test_losses_agree_within_1e_6_over_40_steps(one_process: dict) -> None:
    curves = {mesh: np.array(found["loss"]) for mesh, found in one_process.items()}
    assert all(len(curve) == STEPS for curve in curves.values())
    for (mesh, curve), (other, other_curve) in itertools.combinations(curves.items(), 2):
        worst = float(np.abs(curve / other_curve - 1).max())
        assert worst < 1e-6, (mesh, other, worst)


@pytest.mark.slow
def test_it_learns(one_process: dict) -> None:
    losses = one_process["2x2"]["loss"]
    assert abs(losses[0] - np.log(100)) < 0.2  # about a hundred characters, all as likely
    assert losses[-1] < losses[0] - 1


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["4x1", "2x2"])
def test_one_process_and_two_give_the_same_bits(mesh: str, one_process: dict, two_processes: list[dict]) -> None:
    assert two_processes[0] == two_processes[1]
    assert two_processes[0][mesh] == one_process[mesh]


def test_a_flip_in_the_curves_of_one_host_is_told_with_host_step_and_bit() -> None:
    settings = {"steps": "4", "steps_per_dispatch": "2", "batch_size": "15"}
    told = run_ranks(f"{PROGRAMS}:train_with_a_flip_in_the_curves", num_hosts=3, devices_per_host=1, settings=settings)
    for found in told:
        assert found["suspects"] == ["host-2"]
        assert "replicas differ at step 4, in 1 of " in found["said"]
        assert "curves/train/loss: 2 x (host-0/memory, host-1/memory) against 1 x (host-2/memory)" in found["said"]
        assert "first at [1]: " in found["said"] and "bit 20; 1 of 4 elements differ" in found["said"]


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        (2, r"rank 0 \(host-0\): \w{64}; rank 1 \(host-1\): \w{64}\."),
        (3, r"rank 0 \(host-0\): got \w{64}, expected \w{64} as on ranks 1, 2 \(host-1, host-2\)\."),
    ],
)
def test_another_text_on_one_host_is_refused_naming_it_by_majority(hosts: int, words: str) -> None:
    program = f"{PROGRAMS}:train_with_other_text_on_one_rank"
    for message in run_ranks(program, num_hosts=hosts, devices_per_host=1, odd=0):
        assert re.search(f"different data; nothing has run: sha256 of the text: {words}", message), message
