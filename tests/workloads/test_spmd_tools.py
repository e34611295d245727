"""Barriers, memory reports, pictures of arrays, on one process and on several."""

import re
import subprocess
import sys

from tests.ranks import ROOT, run_ranks

PROGRAMS = "tests.workloads.spmd_tools_programs"


def test_a_barrier_names_who_is_missing_and_lets_the_late_pass() -> None:
    first, second, late = run_ranks(f"{PROGRAMS}:barriers", num_hosts=3, devices_per_host=1, timeout_s=60)
    for number, rank in enumerate((first, second)):
        unknown, known = rank["messages"]
        waits = rf"barrier 'first': rank {number} on host-{number} waited (\d+\.\d) s for rank 2, which did not come"
        said = re.match(waits, unknown)
        assert said is not None and 1.4 < float(said[1]) < 15.0, unknown
        assert "barrier 'never'" in known and "for rank 2 (host-2), which did not come" in known
    assert late["messages"] == [] and late["waited_s"] < 1.0
    for rank in (first, second, late):
        assert len(rank["left"]) <= 6, "what earlier barriers posted is taken back"


def test_memory_is_told_by_device_and_by_the_line_that_made_it() -> None:
    (report,) = run_ranks(f"{PROGRAMS}:memory", num_hosts=1, devices_per_host=8)
    assert report["bytes"] == [2**18] * 8
    assert report["source"].startswith("spmd_tools_programs.py:") and report["source"].endswith(" _make_params")
    assert report["largest"].endswith(" memory")
    assert report["devices"][:7] == [2**18] * 7 and report["devices"][7] >= 2**23 + 2**18
    even, (warning,) = report["warnings"]
    assert even == []
    assert warning.startswith("cpu:0 holds 8.2 MiB, the others 256.0 KiB at the median; most of it is from ")
    assert report["program"] == [2**18, 1024 * 4 // 8]
    for words in ("memory of rank 0 on ", "cpu:7   1       256.0 KiB", "step ", "host memory: ", f"! {warning}"):
        assert words in report["text"]
    innermost = [line for line in report["graph"] if line.endswith(" _make_params")]
    assert innermost and report["host"]
    assert "a compiled program is needed" in report["refused"]


def test_a_process_reports_its_own_devices_alone() -> None:
    for rank in run_ranks(f"{PROGRAMS}:memory", num_hosts=2, devices_per_host=2):
        assert rank["bytes"] == [2**19] * 2 and len(rank["devices"]) == 2
        assert len(rank["warnings"][1]) == 1


def test_it_works_where_programs_and_launches_are_compared() -> None:
    ranks = run_ranks(f"{PROGRAMS}:under_agreement", num_hosts=4, devices_per_host=2, timeout_s=90)
    assert [rank["first"] for rank in ranks] == [3160.0, None, None, None]
    for rank in ranks:
        assert (rank["total"], rank["ranks"], rank["key"]) == (3160.0, [0, 1, 2, 3], [0, 1])
        assert rank["status"] == "ok" and rank["programs"] > 3
    assert len({rank["launches"] for rank in ranks}) == 1 and ranks[0]["launches"] > 2


def test_pictures_show_hosts_and_devices() -> None:
    first, second = run_ranks(f"{PROGRAMS}:pictures", num_hosts=2, devices_per_host=4)
    heading, names, *pieces = first["cut"].splitlines()
    assert heading == "float32[4, 8]: 8 pieces of 16 B on 8 devices of 2 hosts"
    assert names.split() == ["piece", "rank", "0", "(here)", "rank", "1"]
    assert pieces[0].split() == ["[0:1,", "0:4]", "cpu:0"] and len(pieces) == 8
    assert first["rows"].splitlines()[2].split() == ["[0:2,", "0:8]", "cpu:0,", "cpu:1,", "cpu:2,", "cpu:3"]
    assert first["copied"].splitlines()[0] == "key<fry>[]: 1 piece of 8 B on 8 devices of 2 hosts"
    assert "rank 1 (here)" in second["cut"]
    assert [line.split() for line in second["cut"].splitlines()[2:]] == [line.split() for line in pieces]
    assert second["alone"].splitlines()[0] == "float32[3]: 1 piece of 12 B on 1 device of 1 host"


def test_the_toolkit_needs_neither_ray_nor_the_launcher() -> None:
    code = (
        "import sys\nfrom workloads import spmd\n"
        "print({name.partition('.')[0] for name in sys.modules} & {'ray', 'launcher', 'cluster', 'flax', 'orbax'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")
