"""Which texts name a function of the user's, and how its module is found."""

import textwrap
from pathlib import Path

import pytest

from workloads.errors import ConfigError
from workloads.params import describe, parse
from workloads.target import Target, parse_target
from workloads.user import check, load


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("./my_file.py:run", Target(place="my_file.py", function="run")),
        ("src/deep/x.py:go", Target(place="src/deep/x.py", function="go")),
        ("pkg.module:run", Target(place="pkg.module", function="run")),
        ("transformer", None),
        ("independent-chains", None),
        ("a.py", None),
        ("a b.txt:run", None),
        ("x.py:1run", None),
        (":run", None),
    ],
)
def test_what_names_a_function(text: str, target: Target | None) -> None:
    assert parse_target(text) == target


def test_a_plain_dataclass_is_a_config_with_checked_types(tmp_path: Path) -> None:
    (tmp_path / "user_plain_workload.py").write_text(textwrap.dedent("""
        import dataclasses

        @dataclasses.dataclass(frozen=True)
        class Settings:
            steps: int = 3
            name: str | None = None

        def run(settings: Settings, context, resume=False):
            return settings.steps
    """))  # fmt: skip
    workload = load("./user_plain_workload.py:run", tmp_path)
    assert [(param.name, param.type, param.default) for param in describe(workload.config_class())] == [
        ("steps", "whole number", 3), ("name", "text", None)
    ]  # fmt: skip
    config = parse(workload.config_class(), {"steps": "5"})
    check(config, None)
    assert workload.run_function()(config, None) == 5
    with pytest.raises(ConfigError, match="steps='x': must be a whole number"):
        check(workload.config_class()(steps="x"), None)


def test_a_config_that_can_change_is_refused(tmp_path: Path) -> None:
    (tmp_path / "user_loose_workload.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    x: int = 1\ndef run(c: C, context): pass\n"
    )
    with pytest.raises(ConfigError, match="frozen"):
        load("user_loose_workload.py:run", tmp_path)
