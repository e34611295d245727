"""What a job is: its states, its name, and its spec on disk."""

import dataclasses
import itertools
import json

import pytest

from launcher.job import NEXT_STATES, InputFile, JobOptions, JobSpec, JobState, check_transition, valid_name

SPEC = JobSpec(
    name="a",
    job_id="b7",
    workload="psum-check",
    settings={"steps": "10"},
    config={"steps": 10, "size": 512, "data": None},
    seed=2**63 - 1,
    num_hosts=2,
    checkpoint_every=0,
    check_every=5,
    code_digest="0" * 64,
    files={"data": InputFile(name="mnist.npz", sha256="1" * 64, num_bytes=7)},
    versions={"jax": "0.10.2"},
    submitted="2026-11-21T04:00:00.000+00:00",
)
ENDED = {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}


def test_every_state_but_the_ended_ones_can_be_left() -> None:
    assert {state for state in JobState if state.ended} == ENDED
    assert set(NEXT_STATES) == set(JobState)


def test_a_job_can_be_cancelled_or_fail_wherever_it_is() -> None:
    for state in set(JobState) - ENDED:
        assert {JobState.CANCELLED, JobState.FAILED} <= NEXT_STATES[state]


def test_success_is_reached_from_running_alone() -> None:
    assert [state for state in JobState if JobState.SUCCEEDED in NEXT_STATES[state]] == [JobState.RUNNING]


def test_a_recovery_starts_again() -> None:
    assert NEXT_STATES[JobState.RECOVERING] - {JobState.FAILED, JobState.CANCELLED} == {JobState.STARTING}


def test_every_other_step_is_refused() -> None:
    for old, new in itertools.product(JobState, JobState):
        if new in NEXT_STATES[old]:
            check_transition(old, new)
        else:
            with pytest.raises(ValueError, match=f"cannot go from {old} to {new}"):
                check_transition(old, new)


def test_a_spec_survives_json() -> None:
    assert JobSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC


def test_options_lie_flat_in_job_json_and_one_that_an_older_record_lacks_is_at_its_default() -> None:
    written = SPEC.to_json()
    assert written["seed"] == SPEC.seed and written["check_every"] == 5
    del written["watch_launches"]
    assert JobSpec.from_json(written) == SPEC
    assert {field.name for field in dataclasses.fields(JobOptions)} - set(written) == {"watch_launches"}


def test_a_spec_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPEC.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", ["a", "0", "a-b", "run-1-", "x" * 60])
def test_good_names(name: str) -> None:
    assert valid_name(name)


@pytest.mark.parametrize("name", ["", "-a", "A", "a_b", "a b", "a/b", "..", "a\n", "é", "x" * 61])
def test_bad_names(name: str) -> None:
    assert not valid_name(name)
