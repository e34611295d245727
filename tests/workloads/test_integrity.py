"""Replica integrity: what the vote says, and the whole check on one host and on two."""

import dataclasses
import json
import pickle
from typing import Any

import pytest

from tests.ranks import run_ranks
from workloads.errors import ReplicaDivergenceError, ValueMismatchError
from workloads.exchange import Exchange
from workloads.integrity import Verdict, check_replicas
from workloads.integrity.verdict import Block, compare_structures, judge, vote


def _block(*digests: str) -> Block:
    return Block(leaf="w", index="", num_bytes=8, digests={f"h{n}/cpu:0": digest for n, digest in enumerate(digests)})


@pytest.mark.parametrize(
    ("digests", "groups", "culprits"),
    [
        ("ab", [1, 1], ()),
        ("aab", [2, 1], ("h2/cpu:0",)),
        ("baa", [2, 1], ("h0/cpu:0",)),
        ("abc", [1, 1, 1], ()),
        ("aabb", [2, 2], ()),
        ("aabc", [2, 1, 1], ()),  # half is no majority
        ("aaabc", [3, 1, 1], ("h3/cpu:0", "h4/cpu:0")),
    ],
)
def test_vote(digests: str, groups: list[int], culprits: tuple[str, ...]) -> None:
    divergence = vote(_block(*digests))
    assert divergence is not None
    assert [len(group) for group in divergence.groups] == groups
    assert divergence.culprits == culprits
    assert ("culprit unknown" in str(divergence)) == (not culprits)


@pytest.mark.parametrize(
    ("hosts", "culprits"),
    [
        (("aaaa", "aaab"), ("h1/cpu:3",)),
        (("aaab",), ("h0/cpu:3",)),
        (("ab", "a"), ("h0/cpu:1",)),
        (("aaaa", "abbb"), ("h1/cpu:1", "h1/cpu:2", "h1/cpu:3")),
        (("aa", "aa", "bb"), ("h2/cpu:0", "h2/cpu:1")),
        (("aa", "b"), ()),  # one process may have fed something wrong to both of its devices
        (("b", "aaa"), ()),
        (("aaaa", "b", "b"), ()),
        (("aaaab", "b"), ()),
    ],
)
def test_a_majority_lies_on_more_than_half_of_the_hosts(hosts: tuple[str, ...], culprits: tuple[str, ...]) -> None:
    digests = {f"h{host}/cpu:{n}": digest for host, held in enumerate(hosts) for n, digest in enumerate(held)}
    divergence = vote(dataclasses.replace(_block(), digests=digests))
    assert divergence is not None
    assert (divergence.culprits, divergence.how) == (culprits, "majority" if culprits else "unknown")
    unknown = f"culprit unknown: more than half agree, but on 1 of {len(hosts)} hosts, and copies of one host can share"
    assert (unknown in str(divergence)) == (not culprits)


def test_values_that_are_no_copies_outvote_nobody() -> None:
    verdict = judge([_block(*"aab")], step=0, num_leaves=1, seconds=0.0)
    with pytest.raises(ValueMismatchError) as caught:
        verdict.raise_if_unlike("arguments", "Give all the same")
    assert str(caught.value).splitlines() == [
        "arguments differ, in 1 of 1 leaves:",
        "  w: 2 x (h0/cpu:0, h1/cpu:0) against 1 x (h2/cpu:0)",
        "Give all the same",
    ]
    judge([_block("a", "a")], step=0, num_leaves=1, seconds=0.0).raise_if_unlike("arguments", "")


@pytest.mark.parametrize(
    ("digests", "verified", "culprits", "how"),
    [
        ("ab", "b", ("h0/cpu:0",), "unchanged since step 4"),
        ("ab", "c", (), "unknown"),
        ("aabb", "b", ("h0/cpu:0", "h1/cpu:0"), "unchanged since step 4"),
        ("aab", "b", ("h2/cpu:0",), "majority"),  # most have moved on together: the third is stale
    ],
)
def test_the_past_votes_where_there_is_no_majority(
    digests: str, verified: str, culprits: tuple[str, ...], how: str
) -> None:
    divergence = vote(dataclasses.replace(_block(*digests), verified=(verified, 4)))
    assert divergence is not None
    assert (divergence.culprits, divergence.how) == (culprits, how)
    assert set(divergence.groups[0]).isdisjoint(culprits)


def test_each_group_is_told_with_its_fingerprint() -> None:
    divergence = vote(_block(*"baa"))
    assert divergence is not None
    assert dict(zip(divergence.digests, divergence.groups, strict=True)) == {
        "a": ("h1/cpu:0", "h2/cpu:0"),
        "b": ("h0/cpu:0",),
    }


def test_vote_of_equals_is_none() -> None:
    assert vote(_block("a", "a", "a")) is None
    assert vote(_block("a")) is None


def test_ten_thousand_clean_blocks_raise_no_alarm() -> None:
    blocks = [_block(f"{n:016x}", f"{n:016x}") for n in range(10_000)]
    verdict = judge(blocks, step=1, num_leaves=10_000, seconds=0.0)
    assert (verdict.status, verdict.bytes_checked, verdict.bytes_single_copy) == ("ok", 80_000, 0)


def test_long_lists_of_holders_are_shortened() -> None:
    text = str(vote(_block(*"a" * 500, "b")))
    assert "500 x (h0/cpu:0" in text and "and 494 more" in text and "culprit: h500/cpu:0" in text
    assert len(text) < 300


def test_structures_are_compared_in_words() -> None:
    first, *others = compare_structures({"A": {"w": "f32[3]", "v": "i32[]"}, "B": {"w": "f32[4]", "v": "i32[]"}})
    assert not others
    assert str(first) == "w: f32[3] on A, but f32[4] on B"


def test_a_leaf_that_is_no_array_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="params/f: object is neither an array nor a number"):
        check_replicas({"params": {"f": object()}}, exchange=Exchange(0, 1), host="A", step=0)


@pytest.fixture(scope="module")
def one_host() -> dict[str, Any]:
    (verdicts,) = run_ranks("tests.workloads.integrity_programs:one_host", num_hosts=1, devices_per_host=4)
    return verdicts


@pytest.fixture(scope="module")
def two_hosts() -> list[dict[str, Any]]:
    return run_ranks("tests.workloads.integrity_programs:two_hosts", num_hosts=2, devices_per_host=2)


def test_clean_copies_of_every_dtype_are_ok(one_host: dict[str, Any]) -> None:
    clean = one_host["clean"]
    bytes_in_all = 6 * (4 + 2 + 2 + 1 + 1 + 4 + 2 + 1 + 8 + 1) + 4 + 16  # each byte once, though four copies were read
    assert (clean["status"], clean["num_leaves"], clean["step"]) == ("ok", 12, 40)
    assert (clean["bytes_checked"], clean["bytes_single_copy"]) == (bytes_in_all, 0)
    assert clean["divergences"] == [] and clean["message"] == ""
    assert (one_host["clean key"]["status"], one_host["clean key"]["bytes_checked"]) == ("ok", 8)


@pytest.mark.parametrize(
    ("scenario", "where", "groups", "culprits"),
    [
        ("one of four", "p/w", [[0, 1, 3], [2]], [2]),
        ("two of four", "w", [[0, 3], [1, 2]], []),
        ("all differ", "w", [[0], [1], [2], [3]], []),
        ("scalar", "s", [[0, 1, 2], [3]], [3]),
        ("key", "k", [[0, 2, 3], [1]], [1]),
        ("partly replicated", "w[2:4, 0:3]", [[2], [3]], []),
    ],
)
def test_diverged_copies_on_one_host(
    one_host: dict[str, Any], scenario: str, where: str, groups: list[list[int]], culprits: list[int]
) -> None:
    verdict = one_host[scenario]
    (divergence,) = verdict["divergences"]
    assert verdict["status"] == "diverged"
    assert divergence["leaf"] + divergence["index"] == where
    assert divergence["groups"] == [[f"host-0/cpu:{n}" for n in group] for group in groups]
    assert divergence["culprits"] == [f"host-0/cpu:{n}" for n in culprits]
    assert "at step 40" in verdict["message"] and where in verdict["message"]
    assert ("culprit unknown" in verdict["message"]) == (not culprits)


def test_bytes_with_one_copy_are_never_called_ok(one_host: dict[str, Any]) -> None:
    counts = {
        "sharded only": ("nothing-checked", 0, 48),
        "one device": ("nothing-checked", 0, 5 * 4 + 3 * 8 + 8),
        "empty": ("nothing-checked", 0, 0),
        "empty arrays": ("nothing-checked", 0, 0),
        "partly replicated, clean": ("ok", 96, 0),
    }
    for scenario, expected in counts.items():
        verdict = one_host[scenario]
        assert (verdict["status"], verdict["bytes_checked"], verdict["bytes_single_copy"]) == expected, scenario
        assert verdict["message"] == ""


def test_many_divergences_are_one_message_of_a_few_lines(one_host: dict[str, Any]) -> None:
    message = one_host["many leaves"]["message"]
    assert "in 20 of 20 leaves" in message and message.endswith("and 12 more")
    assert len(message.splitlines()) == 1 + 8 * 2 + 1  # with the first difference in each
    assert len(one_host["many leaves"]["divergences"]) == 20


def test_the_verdict_is_the_same_on_every_rank(two_hosts: list[dict[str, Any]]) -> None:
    own = {"trees", "steps"}  # here the ranks differ in what a verdict repeats of its caller: num_leaves, step
    first, second = ({name: rank[name] | {"seconds": 0} for name in rank if name not in own} for rank in two_hosts)
    assert first == second
    for name in own:
        assert two_hosts[0][name]["divergences"] == two_hosts[1][name]["divergences"]


def test_clean_copies_on_two_hosts_are_ok(two_hosts: list[dict[str, Any]]) -> None:
    clean = two_hosts[0]["clean"]
    # The array on one device, the NumPy array and the number lie on each host: these are compared between the hosts.
    assert (clean["status"], clean["bytes_checked"], clean["bytes_single_copy"]) == ("ok", 48 + 20 + 16 + 8, 0)


@pytest.mark.parametrize(
    ("scenario", "index", "hosts", "has_culprit"),
    [
        ("one of four", "", [["host-0", "host-0", "host-1"], ["host-1"]], True),
        ("host-dependent", "", [["host-0", "host-0"], ["host-1", "host-1"]], False),
        ("across hosts", "[0:2, 0:3]", [["host-0"], ["host-1"]], False),
        ("inside hosts", "[2:4, 0:3]", [["host-1"], ["host-1"]], False),
        ("numpy", "", [["host-0"], ["host-1"]], False),
        ("number", "", [["host-0"], ["host-1"]], False),
        ("one device", "", [["host-0"], ["host-1"]], False),
        ("namesakes", "", [["localhost (rank 0)"], ["localhost (rank 1)"]], False),
    ],
)
def test_diverged_copies_on_two_hosts(
    two_hosts: list[dict[str, Any]], scenario: str, index: str, hosts: list[list[str]], has_culprit: bool
) -> None:
    verdict = two_hosts[0][scenario]
    (divergence,) = verdict["divergences"]
    assert verdict["status"] == "diverged"
    assert divergence["index"] == index
    assert [[holder.split("/")[0] for holder in group] for group in divergence["groups"]] == hosts
    assert bool(divergence["culprits"]) == has_culprit


def test_one_bad_leaf_of_many_is_the_one_that_is_told(two_hosts: list[dict[str, Any]]) -> None:
    verdict = two_hosts[0]["one of many leaves"]
    assert [divergence["leaf"] for divergence in verdict["divergences"]] == ["leaf 137"]
    assert (verdict["bytes_checked"], verdict["bytes_single_copy"]) == (300 * 48, 0)


def test_what_lies_on_one_rank_alone_is_counted_as_that(two_hosts: list[dict[str, Any]]) -> None:
    verdict = two_hosts[0]["here and there"]
    assert (verdict["status"], verdict["bytes_checked"], verdict["bytes_single_copy"]) == ("ok", 48, 48)


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("shapes", "w: float64[3] in host memory on host-0, but float64[4] in host memory on host-1"),
        ("dtypes", "w: bfloat16[3] on host-0, but float32[3] on host-1"),
        ("trees", "extra: absent on host-0, but float64[1] in host memory on host-1"),
        ("kinds", "w: float32[3] on host-0, but float32[3] in host memory on host-1"),
        ("cuts", "w: float32[4, 3] on host-0, but float32[4, 3], cut 2x1 on host-1"),
        ("steps", "(step): 40 on host-0, but 41 on host-1"),
    ],
)
def test_trees_that_are_built_differently_are_told_in_words(
    two_hosts: list[dict[str, Any]], scenario: str, words: str
) -> None:
    for rank in two_hosts:
        assert rank[scenario]["status"] == "diverged"
        assert rank[scenario]["message"].splitlines()[1:] == [f"  {words}"]


def test_raise_if_diverged_is_silent_otherwise() -> None:
    for status in ("ok", "nothing-checked"):
        Verdict(
            status=status, step=1, num_leaves=0, bytes_checked=0, bytes_single_copy=0, seconds=0.0
        ).raise_if_diverged()
    diverged = judge([_block("a", "b")], step=7, num_leaves=1, seconds=0.0)
    with pytest.raises(ReplicaDivergenceError, match="at step 7, in 1 of 1 leaves"):
        diverged.raise_if_diverged()


def test_two_trees_of_one_step_are_one_verdict() -> None:
    first = judge([_block("a", "a")], step=7, num_leaves=1, seconds=1.0, bytes_single_copy=3)
    nothing = judge([_block("a")], step=7, num_leaves=1, seconds=2.0)
    wrong = judge([_block("a", "b")], step=7, num_leaves=1, seconds=0.5)
    both = first.with_(nothing)
    assert (both.status, both.num_leaves, both.seconds) == ("ok", 2, 3.0)
    assert (both.bytes_checked, both.bytes_single_copy) == (8, 11)
    assert nothing.with_(first).status == "ok" and nothing.with_(nothing).status == "nothing-checked"
    assert first.with_(wrong).status == "diverged" and first.with_(wrong).divergences == wrong.divergences


def test_the_error_survives_pickling_with_its_verdict() -> None:
    verdict = judge([_block("a", "b")], step=7, num_leaves=1, seconds=0.0)
    with pytest.raises(ReplicaDivergenceError) as caught:
        verdict.raise_if_diverged()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.verdict) == (str(caught.value), verdict)


def test_the_message_names_place_bits_and_culprit(one_host: dict[str, Any]) -> None:
    assert one_host["one of four"]["message"].splitlines() == [
        "replicas differ at step 40, in 1 of 2 leaves:",
        "  p/w: 3 x (host-0/cpu:0, host-0/cpu:1, host-0/cpu:3) against 1 x (host-0/cpu:2); "
        "culprit: host-0/cpu:2 (majority)",
        "    first at [3, 2]: 0x41300000 (11.0) on host-0/cpu:0, 0x40300000 (2.75) on host-0/cpu:2, bit 24; "
        "1 of 12 elements differ",
    ]


def test_scenarios_fit_into_json(one_host: dict[str, Any]) -> None:
    assert json.loads(json.dumps(one_host)) == one_host
