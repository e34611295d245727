"""The transformer's config and default text: what fits, what is refused and how, and no JAX."""

import subprocess
import sys
from pathlib import Path

import pytest

from workloads.errors import ConfigError
from workloads.layout import Layout
from workloads.params import file_params, parse
from workloads.transformer import corpus
from workloads.transformer.config import Config

TWO_BY_TWO = Layout(num_hosts=2, devices_per_host=2)


def test_neither_config_nor_corpus_imports_jax() -> None:
    code = (
        "import sys, workloads.transformer.config, workloads.transformer.corpus\n"
        "print([name for name in ('jax', 'flax', 'optax', 'numpy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("mesh", "axes"),
    [
        ("data:-1", {"data": 4, "model": 1}),
        ("data:2,model:2", {"data": 2, "model": 2}),
        ("1x4", {"data": 1, "model": 4}),
        ("model:2,data:-1", {"data": 2, "model": 2}),
    ],
)
def test_meshes_that_fit(mesh: str, axes: dict[str, int]) -> None:
    config = Config(mesh=mesh)
    config.check(TWO_BY_TWO)
    assert config.mesh_axes(TWO_BY_TWO) == axes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mesh": "2x4"}, r"mesh=data:2,model:4: needs 8 devices, the job has 2 x 2 = 4 devices; data:4,model:1 or"),
        ({"batch_size": "10"}, r"batch_size=10: must be a multiple of the data axis \(4\); 8 or 12 would fit"),
        ({"batch_size": "3"}, r"batch_size=3: must be a multiple of the data axis \(4\); 4 would fit"),
        (
            {"mesh": "1x4", "num_heads": "2"},
            r"model axis \(4\) must divide num_heads=2.*; data:4,model:1 or data:2,model:2 would fit",
        ),
        ({"mesh": "1x4", "ff_width": "510"}, r"must divide num_heads=4, ff_width=510.*data:2,model:2 would fit"),
    ],
)
def test_what_does_not_fit_the_devices_is_refused_saying_what_would(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Config, settings).check(TWO_BY_TWO)


def test_a_model_axis_of_three_does_not_divide_the_padded_vocabulary() -> None:
    config = Config(mesh="1x3", num_heads=3, width=96, ff_width=96)
    with pytest.raises(ConfigError, match=r"the vocabulary's padding \(128\); data:3,model:1 would fit"):
        config.check(Layout(num_hosts=3, devices_per_host=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": "5"}, r"num_heads=5: must divide width=128; 4 or 8 would fit"),
        ({"mesh": "rows:2"}, r"no axis 'rows'"),
        ({"num_steps": "5"}, r"no parameter 'num_steps'; did you mean 'steps'\?"),
        ({"learning_rate": "nan"}, r"learning_rate=nan: must be"),
        ({"final_fraction": "1.5"}, r"final_fraction=1.5: must be at most 1"),
        ({"precision": "hi"}, r"must be one of default, high, highest"),
    ],
)
def test_wrong_values_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Config, settings)


def test_default_text_is_the_standard_library_whole_modules_in_order(tmp_path: Path) -> None:
    assert file_params(Config) == {"data": "workloads.transformer.corpus:write_default"}
    path = corpus.write_default(tmp_path)
    content = path.read_bytes()
    text = content.decode("utf-8")
    assert 1_000_000 < len(text) <= corpus.MAX_CHARACTERS
    other = tmp_path / "other"
    other.mkdir()
    assert corpus.write_default(other).read_bytes() == content
    first, later = text.index("class ABCMeta("), text.index("class ArgumentParser(")
    assert first < later
    assert str(tmp_path) not in text
    assert sys.prefix not in text
