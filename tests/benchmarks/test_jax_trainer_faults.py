"""The table of faults at JaxTrainer and at ours."""

from jax_trainer_faults import table
from jax_trainer_run import Outcome


def test_runs_of_one_fault_are_one_row_with_medians_and_minima() -> None:
    runs = [
        Outcome(contender=who, fault="kill", end="right", seen=seen, report_s=report_s, new_s=new_s)
        for who, seen, report_s, new_s in [
            ("JaxTrainer", "a | b", 0.2, None),
            ("ours", "rank 1", 0.1, 9.0),
            ("JaxTrainer", "c", 0.4, 30.0),
            ("ours", "rank 1", 0.3, 3.0),
        ]
    ]
    other = Outcome(contender="JaxTrainer", fault="sleep", end="no end within 120 s of the fault")
    assert table([*runs, other]).splitlines()[2:] == [
        "| kill | JaxTrainer | 2 | 0.3, 0.2 | 30.0, 30.0 (1 without) | right | a / b |",
        "| kill | ours | 2 | 0.2, 0.1 | 6.0, 3.0 | right | rank 1 |",
        "| sleep | JaxTrainer | 1 | none | none | no end within 120 s of the fault | nothing |",
    ]
