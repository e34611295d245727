"""Cloud TPU slices from the request to bitwise results and back to nothing; the cloud is a fake, all else is real."""

import pytest

from tests.provision.conftest import Cloud

pytestmark = [pytest.mark.provision, pytest.mark.timeout(600)]


def test_up(cloud: Cloud) -> None:
    file = cloud.write("pod")
    print(cloud.cli("up", file))
    print(cloud.cli("submit", "psum-check"))
    print(cloud.cli("down", "pod"))
    assert cloud.fake.there() == {}
