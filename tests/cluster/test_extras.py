"""What a client's extras ask for is in the one lock file, so that they install together."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
OF_HOSTS = {"gpu", "tpu"}  # they have lock files of their own, see cluster/host_environment.py
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - OF_HOSTS))
def test_an_extra_is_locked_with_all_else(extra: str) -> None:
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert len(locked) > 50
    for text in EXTRAS[extra]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(locked[requirement.name]), text
