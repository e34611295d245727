"""Three hosts and a laptop for the whole session, mended after each test that has used them."""

from collections.abc import Iterator

import pytest

from tests.hosts.machines import TestHosts, claimed, missing


@pytest.fixture(scope="session")
def hosts() -> Iterator[TestHosts]:
    """Hosts h1, h2 and h3 in a set of their own; the test machine reaches them too."""
    if why := missing():
        pytest.skip(why)
    with claimed(from_machine=True) as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def mended(request: pytest.FixtureRequest) -> Iterator[None]:
    """The next test finds every host on, connected and as configured."""
    yield
    if "hosts" in request.fixturenames:
        request.getfixturevalue("hosts").restore()
