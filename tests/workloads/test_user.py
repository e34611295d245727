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
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    x: int = 1\ndef run(c: C, context, resume): pass\n"
    )
    with pytest.raises(ConfigError, match="frozen"):
        load("user_loose_workload.py:run", tmp_path)


def write_run(folder: Path, parameters: str, more: str = "pass") -> str:
    """A workload with these parameters; returns how it is submitted."""
    name = f"user_signature_{folder.name}"  # a module is imported once
    lines = ["import dataclasses", "@dataclasses.dataclass(frozen=True)", "class C:", "    x: int = 1"]
    (folder / f"{name}.py").write_text("\n".join([*lines, f"def run({parameters}): pass", more, ""]))
    return f"./{name}.py:run"


@pytest.mark.parametrize(
    "parameters",
    [
        "c: C, context, resume",
        "c: C, context, resume=False",
        "c: C, context, *, resume",
        "c: C, context, resume=False, verbose=True, *more, **named",
        "c: C, context, /, **named",
        "c: C, *positional, **named",
        "settings: C, ctx, *, extra=None, resume=False",
    ],
)
def test_whatever_takes_what_a_rank_calls_it_with_is_a_workload(tmp_path: Path, parameters: str) -> None:
    load(write_run(tmp_path, parameters), tmp_path).run_function()(None, None, resume=False)


def test_a_decorator_may_take_what_the_function_does_not(tmp_path: Path) -> None:
    """`functools.wraps` shows the signature of the function; called is the decorator's."""
    wrapped = "import functools\ninner = run\n@functools.wraps(inner)\ndef run(c, context, resume): inner(c, context)"
    load(write_run(tmp_path, "c: C, context", wrapped), tmp_path).run_function()(None, None, resume=False)


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ("c: C, context", "unexpected keyword argument 'resume'"),
        ("c: C, resume=False", "multiple values for argument 'resume'"),
        ("c: C, **named", "too many positional arguments"),
        ("c: C, context, resume, /", "'resume' parameter is positional only"),
        ("c: C, context, path, resume=False", "missing a required argument: 'path'"),
        ("c: C, context, *, path, resume=False", "missing a required .*argument: 'path'"),
        ("*, c: C, context, resume=False", "too many positional arguments"),
        ("", "too many positional arguments"),
    ],
)
def test_what_a_rank_could_not_call_is_refused_with_both_signatures(tmp_path: Path, parameters: str, why: str) -> None:
    text = write_run(tmp_path, parameters)
    with pytest.raises(ConfigError, match=why) as refused:
        load(text, tmp_path)
    said = str(refused.value)
    assert said.startswith(f"'{text}': it cannot be called as run(config, context, resume=False): ")
    assert "expected `def run(config: Config, context, resume=False)`, found `def run(" in said


def test_a_decorator_cannot_hide_that_there_is_no_config(tmp_path: Path) -> None:
    wrapped = "import functools\ninner = run\n@functools.wraps(inner)\ndef run(*a, **named): inner()"
    text = write_run(tmp_path, "", wrapped)
    with pytest.raises(ConfigError, match="its first parameter, '', must be annotated with its config"):
        load(text, tmp_path)


def test_a_callable_without_a_signature_is_refused(tmp_path: Path) -> None:
    text = write_run(tmp_path, "c: C, context, resume", "run = min")
    with pytest.raises(ConfigError, match="no function of Python's that could be a workload"):
        load(text, tmp_path)
