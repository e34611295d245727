"""The toolkit's benchmark, on small arrays: that it runs, what it compares, and that its peer finds a difference."""

import numpy as np
import pytest
import toolkit


def test_gather_beside_process_allgather(capsys: pytest.CaptureFixture[str]) -> None:
    targets = toolkit.gather_report(megabytes=4, rounds=2, devices_per_host=2, chunk_mib=1)
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines() if "samples" in line] == ["samples"] * 3
    assert out.count("process_allgather") == 4
    (memory,) = [target for target in targets if "to rank 0, both processes" in target.what]
    assert 0 < memory.value < memory.bound, "rank 1 is to hold none of rank 0's half"


def test_replica_checks_beside_bobbins(capsys: pytest.CaptureFixture[str]) -> None:
    # On a busy machine one pause of ours outweighs all of so small an array.
    found = (toolkit.replicas_report(megabytes=1, rounds=5, num_hosts=1) for _ in range(5))
    assert any(target.value > 1 for (target,) in found) and "bobbin's algorithm" in capsys.readouterr().out


def test_the_peer_compares_with_a_tolerance() -> None:
    copies = np.zeros((1, 4, 3), np.float32)
    copies[0, 2] = 1e-6
    toolkit.assert_replica_integrity({"w": copies}, lambda tree: tree)
    copies[0, 2] = 1e-3
    with pytest.raises(AssertionError, match=r"2-th replica of \['w'\]"):
        toolkit.assert_replica_integrity({"w": copies}, lambda tree: tree)
