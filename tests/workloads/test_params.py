"""Typed parameters: what parses, what is refused, and the one line that says why."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import pytest

from workloads.errors import ConfigError
from workloads.params import check_params, describe, file_params, nearest, param, parse


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    num_draws: int = param(1000, "draws kept of each chain", minimum=1, maximum=10**6)
    step_size: float = param(0.1, "leapfrog step size", above=0)
    temperature: float = param(1.0, "any number")
    sampler: str = param("hmc", "which sampler", choices=("hmc", "nuts"))
    x64: bool = param(False, "64-bit floats")
    thin: int | None = param(None, "keep every n-th draw", minimum=2)
    data: str | None = param(None, "training data", file=True)
    text: str | None = param(None, "text", default_file="workloads.some.corpus:freeze")

    def __post_init__(self) -> None:
        check_params(self)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("num_draws", "5", 5),
        ("num_draws", " 5 ", 5),
        ("num_draws", "1e3", 1000),
        ("num_draws", "2.0", 2),
        ("num_draws", "1000000", 10**6),
        ("step_size", "1", 1.0),
        ("step_size", "1e-300", 1e-300),
        ("temperature", "-2.5", -2.5),
        ("sampler", "nuts", "nuts"),
        *[("x64", text, True) for text in ("true", "True", "1", "yes", "on")],
        *[("x64", text, False) for text in ("false", "FALSE", "0", "no", "off")],
        ("thin", "none", None),
        ("thin", "", None),
        ("thin", "2", 2),
        ("data", "some=file.npz", "some=file.npz"),
        ("data", "None", None),
    ],
)
def test_values_that_parse(key: str, text: str, value: object) -> None:
    parsed = getattr(parse(Config, {key: text}), key)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("num_draws", "0", "num_draws=0: must be at least 1"),
        ("num_draws", "-1", "num_draws=-1: must be at least 1"),
        ("num_draws", "1000001", "num_draws=1000001: must be at most 1000000"),
        ("num_draws", "2.5", "num_draws='2.5': must be a whole number"),
        ("num_draws", "many", "num_draws='many': must be a whole number"),
        ("num_draws", "", "num_draws='': must be a whole number"),
        ("num_draws", "nan", "num_draws='nan': must be a whole number"),
        ("num_draws", "inf", "num_draws='inf': must be a whole number"),
        ("num_draws", "1e999", "num_draws='1e999': must be a whole number"),
        ("num_draws", "true", "num_draws='true': must be a whole number"),
        ("num_draws", "none", "num_draws='none': must be a whole number"),
        ("step_size", "0", "step_size=0.0: must be greater than 0"),
        ("step_size", "nan", "step_size=nan: must be finite"),
        ("step_size", "inf", "step_size=inf: must be finite"),
        ("temperature", "-inf", "temperature=-inf: must be finite"),
        ("temperature", "NaN", "temperature=nan: must be finite"),
        ("step_size", "0,1", "step_size='0,1': must be a number"),
        ("sampler", "nut", "sampler='nut': must be one of hmc, nuts; did you mean 'nuts'?"),
        ("sampler", "", "sampler='': must be one of hmc, nuts"),
        ("x64", "maybe", "x64='maybe': must be true or false"),
        ("x64", "", "x64='': must be true or false"),
        ("thin", "1", "thin=1: must be at least 2"),
        ("thin", "x", "thin='x': must be a whole number"),
        ("sampler", "a\nb", "sampler='a\\nb': must be one of hmc, nuts"),
    ],
)
def test_values_that_are_refused(key: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(Config, {key: text})
    assert str(refused.value) == message
    assert "\n" not in message


def test_long_digits_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="must be a whole number"):
        parse(Config, {"num_draws": "9" * 5000})  # over Python's limit for int()


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("num_samples", "num_draws"),
        ("draws", "num_draws"),
        ("num_drwas", "num_draws"),
        ("stepsize", "step_size"),
        ("dataset", "data"),
        ("X64", "x64"),
    ],
)
def test_unknown_names_get_the_nearest(key: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(Config, {key: "1"})
    text = str(refused.value)
    assert text.startswith(f"no parameter {key!r}; did you mean {hint!r}? (allowed: num_draws, step_size,")


def test_a_name_like_no_other_gets_no_hint() -> None:
    assert nearest("qqqqq", ["num_draws"]) == ""
    # An alias whose target this config lacks is no hint.
    assert nearest("lr", ["num_draws"]) == ""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_draws": "5"}, "num_draws='5': must be a whole number"),
        ({"num_draws": 5.0}, "num_draws=5.0: must be a whole number"),
        ({"num_draws": True}, "num_draws=True: must be a whole number"),
        ({"num_draws": None}, "num_draws=None: must be a whole number"),
        ({"step_size": True}, "step_size=True: must be a number"),
        ({"x64": 1}, "x64=1: must be true or false"),
        ({"sampler": None}, "sampler=None: must be text"),
        ({"thin": "2"}, "thin='2': must be a whole number or none"),
    ],
)
def test_a_config_made_in_python_is_checked_too(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config(**values)
    assert str(refused.value) == message


def test_a_config_is_frozen_and_its_variants_are_checked() -> None:
    config = Config(step_size=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_draws = 5  # type: ignore[misc]
    with pytest.raises(ConfigError, match="at least 1"):
        dataclasses.replace(config, num_draws=0)
    assert Config(**dataclasses.asdict(config)) == config


def test_describe_says_all_there_is_to_a_parameter() -> None:
    infos = {info.name: info for info in describe(Config)}
    assert list(infos) == [field.name for field in dataclasses.fields(Config)]
    assert [info.type for info in infos.values()] == [
        "whole number", "number", "number", "text", "true or false", "whole number", "text", "text",
    ]  # fmt: skip
    assert infos["sampler"].choices == ("hmc", "nuts")
    assert infos["num_draws"].default == 1000 and infos["num_draws"].help == "draws kept of each chain"
    assert [name for name, info in infos.items() if info.is_file] == ["data", "text"]


def test_file_params_name_their_makers() -> None:
    assert file_params(Config) == {"data": None, "text": "workloads.some.corpus:freeze"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain:
    """As users write it, most of it without `param`."""

    steps: int
    depth: int = param(dataclasses.MISSING, "how deep", minimum=1)
    rate: float = dataclasses.field(default_factory=lambda: 0.5)
    norm: Literal["layer", "batch"] = "layer"
    order: Literal[1, 2] | None = None

    def __post_init__(self) -> None:
        check_params(self)


def test_a_field_without_a_default_must_be_set() -> None:
    for settings, absent in (({}, "steps, depth"), ({"steps": "3"}, "depth")):
        with pytest.raises(ConfigError) as refused:
            parse(Plain, settings)
        first = absent.partition(",")[0]
        assert str(refused.value) == f"{absent}: must be set, there is no default: --set {first}=..."
    config = parse(Plain, {"steps": "3", "depth": "2", "norm": "batch", "order": "2"})
    assert (config.steps, config.depth, config.rate, config.norm, config.order) == (3, 2, 0.5, "batch", 2)


def test_literals_are_choices() -> None:
    good = {"steps": "1", "depth": "1"}
    for settings, message in (
        ({"norm": "bach"}, "norm='bach': must be one of layer, batch; did you mean 'batch'?"),
        ({"order": "3"}, "order=3: must be one of 1, 2"),
        ({"order": "x"}, "order='x': must be a whole number"),
    ):
        with pytest.raises(ConfigError) as refused:
            parse(Plain, {**good, **settings})
        assert str(refused.value) == message


def test_describe_of_a_plain_config_is_json() -> None:
    infos = [dataclasses.asdict(info) for info in describe(Plain)]
    assert json.loads(json.dumps(infos))
    assert [(info["name"], info["default"], info["is_required"]) for info in infos] == [
        ("steps", None, True), ("depth", None, True), ("rate", 0.5, False), ("norm", "layer", False),
        ("order", None, False),
    ]  # fmt: skip
    assert infos[3]["choices"] == ("layer", "batch") and infos[4]["choices"] == ("1", "2")


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        (tuple[int, ...], "tuple[int, ...]"),
        (Path, "Path"),
        (list, "list"),
        (int | str, "int | str"),
        (Literal["a", 1], "typing.Literal['a', 1]"),
        (Any, "Any"),
    ],
)
def test_a_type_that_no_text_stands_for_is_refused_by_the_fields_name(hint: Any, shown: str) -> None:
    config = dataclasses.make_dataclass("Odd", [("good", int, 1), ("shape", hint, None)], frozen=True)
    for look in (lambda: describe(config), lambda: parse(config, {}), lambda: check_params(config())):
        with pytest.raises(ConfigError, match="which must be int, float, bool, str, a Literal") as refused:
            look()
        assert str(refused.value).startswith(f"shape: {shown} is no type of a parameter")
