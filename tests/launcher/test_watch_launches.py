"""`submit --watch-launches` on real ranks: launches that do not go through the context are compared too."""

import pytest

from tests.ranks import run_ranks


@pytest.mark.parametrize(
    ("watched_ranks", "words"),
    [
        ([0, 1], "LaunchOrderError: ranks have launched programs in different orders: "),
        ([], ""),
        ([1], "EnvironmentMismatchError: "),
    ],
)
def test_swapped_launches_of_user_code(watched_ranks: list[int], words: str) -> None:
    ranks = run_ranks(
        "tests.launcher.watch_programs:swapped", num_hosts=2, devices_per_host=2, watched_ranks=watched_ranks
    )
    errors = {rank["error"] for rank in ranks}
    (error,) = errors
    assert error.startswith(words) if words else error == "", "unwatched, it passes in silence"
    if watched_ranks == [0, 1]:
        assert "launch 3: rank 0 launched 'jit(largest)' where rank 1 launched 'jit(total)'" in error
    if watched_ranks == [1]:
        assert "watch launches: rank 0 (host-0): false; rank 1 (host-1): true" in error
