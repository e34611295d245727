"""What tests of hosts without a launcher on them have in common."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder of the test's own, with a short path: sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="slt-") as folder:
        monkeypatch.setenv("SPMD_LAUNCH_HOME", folder)
        yield Path(folder)
