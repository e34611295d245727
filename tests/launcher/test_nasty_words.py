"""Whatever stands on a command line is refused in words, or means just what it says."""

import math
import sys
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.errors import UserError
from launcher.faults import check_faults, parse_fault
from launcher.job import valid_name
from tests.nasty import nasty
from workloads.errors import ConfigError
from workloads.layout import Layout
from workloads.registry import checked_config

LAYOUT = Layout(num_hosts=2, devices_per_host=2)
# Commands that take a name or a file; there is no cluster and no job, so that each must refuse.
COMMANDS = (
    ["up"], ["down"], ["status"], ["results"], ["logs"], ["jobs"], ["jobs", "--prune"], ["cancel"], ["stacks"],
    ["doctor"], ["doctor", "--security"], ["submit"], ["submit", "--resume"], ["submit", "psum-check", "--cluster"],
    ["submit", "psum-check", "--set"], ["submit", "psum-check", "--name"], ["submit", "psum-check", "--inject"],
)  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_refuses_what_is_not_there_in_words(
    words: list[str],
    state_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for text in nasty(0):
        if "\0" in text or text == "--help":  # no process can be given the one; the other is a question
            continue
        option = words[-1].startswith("--") and words[-1] not in ("--prune", "--security")
        given = [*words[:-1], f"{words[-1]}={text}"] if option else [*words, "--", text]
        monkeypatch.setattr(sys, "argv", ["spmd-launch", *given])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (1, 2), given
        assert capfd.readouterr().err.strip(), given
    assert not list((tmp_path / "work").iterdir())
    assert not state_folder.exists() or not any(path.is_file() for path in state_folder.rglob("*"))


def test_names_of_jobs_are_names_of_folders_below() -> None:
    good = [text for text in nasty(2000) if valid_name(text)]
    assert valid_name("a-1") and not [text for text in good if Path(text).name != text or text.startswith((".", "-"))]


def test_a_setting_is_refused_in_words_or_kept_as_it_is() -> None:
    kept = 0
    for text in nasty(300):
        for name in ("data", "steps", "matmul_precision", text):
            try:
                config = checked_config("transformer", {name: text}, LAYOUT)
            except ConfigError as error:
                assert str(error)
                continue
            kept += 1
            value = getattr(config, name)
            same = value is None if text in ("", "none") else value == (text if isinstance(value, str) else float(text))
            assert same, (name, text)
    assert kept


def test_a_fault_is_refused_in_words_or_kept_as_it_is() -> None:
    kept = 0
    for text in nasty(300):
        faults = (
            text,
            f"kill rank={text} step=20",
            f"kill rank=1 step={text}",
            f"sleep rank=1 step=2 seconds={text}",
            f"exit rank=1 step=2 code={text}",
            f"flip-bit device=1 step=2 leaf={text}",
        )
        for words in faults:
            try:
                fault = parse_fault(words)
                check_faults([fault], LAYOUT.num_hosts, LAYOUT.devices_per_host)
            except UserError as error:
                assert str(error)
                continue
            kept += 1
            for option, value in fault.options.items():
                assert words.split().count(f"{option}={value}") == 1 or value in ("any", "3", "600")
                assert option == "leaf" or value == "any" or math.isfinite(float(value))
    assert kept
