"""Ranks that agree go on; ranks that do not are named, on real processes with real collectives."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import run_ranks
from workloads.agreement.environment import compare
from workloads.agreement.launch_order import first_difference, last_entries
from workloads.agreement.launches import LaunchLog
from workloads.agreement.majority import vote
from workloads.errors import EnvironmentMismatchError, LaunchOrderError, ProgramMismatchError
from workloads.exchange import Exchange
from workloads.processor import processor_name

PROGRAMS = "tests.workloads.agreement_programs"


@pytest.fixture(scope="module", params=[(2, 2), (3, 1)], ids=["2x2", "3x1"])
def mismatches(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    hosts, devices = request.param
    return run_ranks(f"{PROGRAMS}:mismatches", num_hosts=hosts, devices_per_host=devices)


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        ("constant", "dense<2.000000e+00>", "dense<3.000000e+00>"),
        ("large constant", "C347004DC347", "C347004DC347004DC347"),
        ("op", "stablehlo.cosine", "stablehlo.sine"),
        ("shape", "tensor<24xf32>", "tensor<48xf32>"),
        ("dtype", "tensor<24xf32>", "tensor<24xf16>"),
        ("order", "dense<1.000000e+00>", "dense<2.000000e+00>"),
        ("rank", "dense<0.000000e+00>", "000000e+00>"),
        ("name", "program jit_first", "program jit_second"),
        ("injected", "dense<5.000000e+00>", "dense<1.000000e+00>"),
    ],
)
def test_a_different_program_is_refused_on_every_rank(
    mismatches: list[dict[str, Any]], kind: str, first: str, last: str
) -> None:
    odd = len(mismatches) - 1
    messages = {rank[kind] for rank in mismatches}
    (message,) = messages
    lines = message.splitlines()
    if kind == "rank" and odd == 2:
        assert "rank 0 and rank 1 and rank 2 differ" in lines[0]
    else:
        assert ("rank 0 and rank 1 differ" if odd == 1 else "rank 2 differs from ranks 0, 1") in lines[0]
        assert lines[2].startswith(f"  rank {odd} on host-{odd}: ")
    assert lines[1].startswith("  rank 0 on host-0: ") and first in lines[1]
    assert last in lines[2]
    assert max(map(len, lines)) < 400


def test_what_agrees_passes_before_and_after(mismatches: list[dict[str, Any]]) -> None:
    for rank in mismatches:
        assert (rank["before"], rank["after"], rank["count"]) == ("", "", 2)


@pytest.mark.parametrize("hosts", [2, 3])
def test_programs_of_one_rank_or_of_some_keep_nobody_waiting(hosts: int) -> None:
    ranks = run_ranks(f"{PROGRAMS}:local_and_threads", num_hosts=hosts, devices_per_host=1)
    assert [rank["total"] for rank in ranks] == [276.0] * hosts
    if hosts == 3:
        assert [rank["part"] for rank in ranks] == [1.0, None, 1.0]
    for rank in ranks:
        assert rank["ms"] < 50.0  # 1.4 ms were measured


def test_a_rank_that_compiles_what_only_others_run_waits_for_nobody() -> None:
    ranks = run_ranks(f"{PROGRAMS}:bystander", num_hosts=3, devices_per_host=1)
    assert [(rank["total"], rank["count"]) for rank in ranks] == [(276.0, 3), (276.0, 3), (276.0, 1)]


def test_a_rank_that_never_compiles_the_program_is_named() -> None:
    waited, _ = run_ranks(f"{PROGRAMS}:absent", num_hosts=2, devices_per_host=1)
    assert "'digest' from rank(s) 1: " in waited


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (
            "skip",
            "launch 7: rank 0 launched 'train' where rank 1 launched 'validate'; launches at the report of step 5",
        ),
        ("swap", "launch 6: rank 0 launched 'train' where rank 1 launched 'validate'"),
        ("other", "rank 0 and rank 1 differ; nothing has run."),
    ],
)
def test_launches_that_differ_are_found_before_a_result(fault: str, expected: str) -> None:
    # Few steps: of many collectives in flight that do not belong together, gloo now and then lets all wait for ever.
    ranks = run_ranks(f"{PROGRAMS}:launches", num_hosts=2, devices_per_host=2, fault=fault, steps=6)
    for rank in ranks:
        assert rank["value"] is None
        assert expected in rank["error"]


def test_launches_that_agree_pass() -> None:
    first, second = run_ranks(f"{PROGRAMS}:launches", num_hosts=2, devices_per_host=2, fault="none")
    assert first == second and first["error"] == ""
    assert first["count"] == 12 + 4 + 1
    assert [times for _, times in first["runs"]] == [3, 1] * 4 + [1]


def test_a_different_environment_is_refused_on_every_rank() -> None:
    ranks = run_ranks(f"{PROGRAMS}:environments", num_hosts=3, devices_per_host=1, key="option jax_enable_x64")
    sentence = (
        "option jax_enable_x64: rank 2 (host-2): got something else, expected false as on ranks 0, 1 (host-0, host-1)"
    )
    assert all(sentence in message for message in ranks)
    assert run_ranks(f"{PROGRAMS}:environments", num_hosts=2, devices_per_host=1, key="") == ["", ""]


def test_different_processors_are_told_with_their_hosts() -> None:
    sentence = (
        "hosts have different processors: A on host-0, host-2; B on host-1; results may differ in their last bits"
    )
    told = run_ranks(f"{PROGRAMS}:processors", num_hosts=3, devices_per_host=1, names=["A", "B", "A"])
    assert all(text.startswith(sentence) for text in told)
    told = run_ranks(f"{PROGRAMS}:processors", num_hosts=3, devices_per_host=1, names=["A", "", "A"])
    assert told == [""] * 3, "not known of one"


def test_the_processor_has_the_name_that_linux_gives_it(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU: 2 GHz\nmodel name\t: another\n")
    assert processor_name(tmp_path / "cpuinfo") == "Some CPU: 2 GHz"
    (tmp_path / "arm").write_text("processor\t: 0\nCPU part\t: 0xd0c\n")
    assert processor_name(tmp_path / "arm") == processor_name(tmp_path / "nowhere") == ""


def test_a_launch_of_user_code_is_seen_every_time() -> None:
    for rank in run_ranks(f"{PROGRAMS}:user_launches", num_hosts=2, devices_per_host=2):
        assert (rank["on"], rank["seen"], rank["local"]) == (True, 402, 0)


@pytest.mark.parametrize(
    ("kind", "barrier"),
    [("lambda", True), ("lambda", False), ("static", True), ("shape", True), ("context", True), ("context", False)],
)
def test_programs_of_one_name_are_told_apart(kind: str, barrier: bool) -> None:
    ranks = run_ranks(f"{PROGRAMS}:same_name", num_hosts=2, devices_per_host=1, kind=kind, barrier=barrier, swap=True)
    name = re.escape("jit(<lambda>)" if kind == "lambda" else "jit(step)")
    at = 5 if (kind, barrier) == ("context", True) else 3  # the ranks have met twice before, to compile
    words = rf"launch {at}: rank 0 launched '{name} #(\w{{12}})' where rank 1 launched '{name} #(\w{{12}})' \(other "
    for rank in ranks:
        found = re.search(words, rank["error"])
        assert found and found[1] != found[2], rank["error"]


def test_programs_of_one_name_in_one_order_agree() -> None:
    first, second = run_ranks(
        f"{PROGRAMS}:same_name", num_hosts=2, devices_per_host=2, kind="shape", barrier=True, swap=False
    )
    assert first == second and first["error"] == ""
    short, long, *again, result = first["runs"]
    assert again == [short, long] and short != long and result == ["result", 1]


def test_where_all_ranks_meet_to_compile_counts_among_the_launches() -> None:
    ranks = run_ranks(f"{PROGRAMS}:compilations", num_hosts=3, devices_per_host=1)
    assert ranks == [[["compile total", 1], ["result", 1]]] * 3


def test_launches_of_programs_of_some_ranks_are_no_difference() -> None:
    first, second, third = run_ranks(f"{PROGRAMS}:launches_of_some", num_hosts=3, devices_per_host=1)
    assert [rank["totals"] for rank in (first, second, third)] == [[276.0, 276.0]] * 3
    assert (first["halves"], second["halves"], third["halves"]) == ([1.0], [], [1.5])
    assert first["runs"] == second["runs"] == third["runs"]


def test_without_a_majority_nobody_is_blamed() -> None:
    assert str(vote({0: "a", 1: "b"})) == "rank 0 and rank 1 differ"
    assert str(vote({0: "a", 1: "b", 2: "b"})) == "rank 0 differs from ranks 1, 2"
    assert str(vote({0: "a", 1: "b", 2: "b", 3: "a"})) == "ranks 0, 3 and ranks 1, 2 differ"
    assert vote({0: "a", 1: "a"}).agreed


def test_environments_differ_by_key() -> None:
    found = compare({0: {"version jax": "1", "seed": "0"}, 1: {"version jax": "2", "seed": "0", "more": "x"}})
    assert [(difference.key, difference.values) for difference in found] == [
        ("more", {0: "-", 1: "x"}),
        ("version jax", {0: "1", 1: "2"}),
    ]
    assert found[1].sentence({0: "a", 1: "b"}) == "version jax: rank 0 (a): 1; rank 1 (b): 2"


def test_the_first_difference_of_runs() -> None:
    assert first_difference({0: (0, [("a", 5)]), 1: (0, [("a", 3)])}) is None
    assert first_difference({0: (0, [("a", 5)]), 1: (0, [("a", 3), ("b", 1)])}) == (3, {0: "a", 1: "b"})
    assert first_difference({0: (2, [("a", 3)]), 1: (0, [("b", 2), ("a", 2), ("c", 1)])}) == (4, {0: "a", 1: "c"})
    assert first_difference({0: (9, [("a", 1)]), 1: (0, [("b", 2)])}) is None
    assert last_entries([("a", 5), ("b", 2)], 3) == [("a", 1), ("b", 2)]
    assert last_entries([("a", 5)], 0) == [] and last_entries([("a", 5)], 9) == [("a", 5)]


def test_a_log_stays_small() -> None:
    log = LaunchLog(Exchange(0, 1))
    for index in range(10_000):
        log.record(str(index % 3))
    snapshot = log.snapshot()
    assert (snapshot.count, len(snapshot.runs)) == (10_000, 64)
    assert len(log.report(1)["tail"]) == 1024
    assert log.report(2)["tail"] == []


@pytest.mark.parametrize("kind", [ProgramMismatchError, LaunchOrderError, EnvironmentMismatchError])
def test_errors_survive_pickling(kind: type[Exception]) -> None:
    error = pickle.loads(pickle.dumps(kind("what differs")))
    assert type(error) is kind and str(error) == "what differs" and isinstance(error, RuntimeError)
