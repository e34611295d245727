"""What many tests here share: a context of one rank, and what they compile."""

from pathlib import Path
from typing import Any

import pytest
from jax.experimental.compilation_cache import compilation_cache

from launcher.rank.compile_cache import use_compile_cache
from workloads.context import Context


@pytest.fixture(scope="session", autouse=True)
def programs_are_kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What this process compiles it keeps until its end, as on a host: many tests compile the same programs anew."""
    use_compile_cache(str(tmp_path_factory.mktemp("programs")))
    compilation_cache.reset_cache()  # JAX looks once, and tests of another folder may have compiled before


@pytest.fixture
def events() -> list[dict[str, Any]]:
    """What the context of a test has emitted."""
    return []


@pytest.fixture
def context(tmp_path: Path, events: list[dict[str, Any]]) -> Context:
    """Of the only rank."""
    return Context.local(tmp_path, emit=events.append)
