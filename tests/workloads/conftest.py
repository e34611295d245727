"""What tests here compile in this process is kept until its end, as on a host: many compile the same programs anew."""

import pytest
from jax.experimental.compilation_cache import compilation_cache

from launcher.rank.compile_cache import use_compile_cache


@pytest.fixture(scope="session", autouse=True)
def programs_are_kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    use_compile_cache(str(tmp_path_factory.mktemp("programs")))
    compilation_cache.reset_cache()  # JAX looks once, and tests of another folder may have compiled before
