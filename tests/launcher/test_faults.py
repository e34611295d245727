"""What can be asked of `--inject`, and how a mistake is answered."""

from pathlib import Path

import pytest

from launcher.errors import UserError
from launcher.faults import KINDS, Fault, check_faults, parse_fault
from launcher.rank.damage import DAMAGED_BYTES


def test_a_fault_is_read() -> None:
    assert parse_fault("kill rank=1 step=20") == Fault(kind="kill", place=1, step=20, attempt=1, options={})
    assert parse_fault("sleep step=3 rank=0 seconds=2.5 attempt=2").options == {"seconds": "2.5"}
    assert parse_fault("raise rank=0 step=0 attempt=any").attempt is None
    assert parse_fault("kill-supervisor step=9").place == 0


def test_options_have_defaults() -> None:
    assert parse_fault("flip-bit device=3 step=30").options == {"leaf": "any", "index": "any", "bit": "any"}
    assert parse_fault("flip-bit device=3 step=30 leaf=params/w").options["leaf"] == "params/w"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "There are, each with step=N"),
        ("kil rank=1 step=20", "did you mean 'kill'?"),
        ("kil rank=1 step=20", "\n  kill rank=N: the rank is killed (SIGKILL)\n"),
        ("kil rank=1 step=20", "\n  slow rank=N [factor=3]: "),
        ("kill step=20", "rank=N missing"),
        ("kill rank=1", "step=N missing"),
        ("kill-raylet rank=1 step=3", "'rank=1' is not one of host, step, attempt"),
        ("kill rank=1 step=2 step=3", "given twice"),
        ("kill rank=one step=2", "rank=one is not a whole number"),
        ("kill rank=1 step=-2", "step=-2 is not a whole number"),
        ("kill rank", "'rank' is not one of"),
        ("sleep rank=0 step=1 second=3", "did you mean 'seconds'?"),
    ],
)
def test_a_mistake_is_told(text: str, words: str) -> None:
    with pytest.raises(UserError, match="--inject") as caught:
        parse_fault(text)
    assert words in str(caught.value)


def test_it_must_hit_something_that_is_there() -> None:
    check_faults([parse_fault("kill rank=1 step=0"), parse_fault("flip-bit device=3 step=0")], 2, 2)
    with pytest.raises(UserError, match="ranks 0 to 1"):
        check_faults([parse_fault("kill rank=2 step=0")], 2, 2)
    with pytest.raises(UserError, match="devices 0 to 3"):
        check_faults([parse_fault("flip-bit device=4 step=0")], 2, 2)


def test_nothing_is_killed_in_a_ray_that_is_not_ours() -> None:
    for text in ("kill-raylet host=0 step=0", "kill-supervisor step=0", "kill-holder step=0"):
        check_faults([parse_fault(text)], 2, 2)
        with pytest.raises(UserError, match="is not ours"):
            check_faults([parse_fault(text)], 2, 2, owns_ray=False)
    check_faults([parse_fault("kill-agent host=0 step=0")], 2, 2, owns_ray=False)


def test_the_rank_that_makes_it_happen() -> None:
    flip = parse_fault("flip-bit device=3 step=30")
    assert flip.rank(devices_per_host=2) == 1
    assert flip.due(1, 1, 2) and not flip.due(0, 1, 2) and not flip.due(1, 2, 2)
    assert parse_fault("kill rank=0 step=1 attempt=any").due(0, 7, 2)


def test_a_damaged_checkpoint_must_be_a_file() -> None:
    faults = [parse_fault("corrupt-checkpoint rank=0 step=20")]
    check_faults(faults, 2, 2, storage="/shared/storage")
    with pytest.raises(UserError, match="go to gs://bucket/runs"):
        check_faults(faults, 2, 2, storage="gs://bucket/runs")


@pytest.mark.parametrize(
    "text",
    [
        "kill rank=1 step=20",
        "raise rank=0 step=4 attempt=any",
        "flip-bit device=3 step=30 leaf=params/w bit=7 attempt=2",
        "kill-holder step=9",
    ],
)
def test_a_fault_is_told_as_it_was_asked_for(text: str) -> None:
    assert str(parse_fault(text)) == text


def test_json_brings_it_back() -> None:
    fault = parse_fault("flip-bit device=3 step=30 bit=7 attempt=2")
    assert Fault.from_json(fault.to_json()) == fault


def test_the_page_tells_every_kind_with_its_options_and_what_it_does() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    table = page.partition("| fault | what happens |\n|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [f"| `{kind.words(name)}` | {kind.meaning} |" for name, kind in KINDS.items()]


def test_as_many_bits_of_a_checkpoint_flip_as_is_said() -> None:
    assert KINDS["corrupt-checkpoint"].meaning.startswith(f"{DAMAGED_BYTES} bits ")
