"""A saved checkpoint is damaged at random, again and again: nothing wrong is ever restored in silence.

SPMD_LAUNCH_DAMAGES says how many times; the table is printed with `-s`.
"""

import collections
import dataclasses
import os
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workloads import checkpoint
from workloads.checkpoint.leaves import is_key, named_leaves
from workloads.context import Context
from workloads.result import digest_arrays

# Where a read fails, Orbax drops coroutines of its own.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NUM_DAMAGES = int(os.environ.get("SPMD_LAUNCH_DAMAGES", "100"))


def _state(step: int) -> dict[str, object]:
    """Of several dtypes, sizes and kinds; noise, and zeros that compress to nothing."""
    noise = jax.random.normal(jax.random.key(step), (64, 48))
    return {
        "weights": {"kernel": noise, "half": noise.astype(jnp.bfloat16), "zeros": jnp.zeros((100, 10))},
        "count": jnp.int32(step),
        "flags": noise[0] > 0,
        "key": jax.random.key(step),
        "history": np.asarray(noise, np.float64).ravel()[:500],
        "number": step,
    }


def _digest(state: object) -> str:
    plain = jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, state)
    return digest_arrays({name: np.asarray(leaf) for name, leaf in named_leaves(plain).items()})


def _damage(path: Path, kind: str, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if kind == "delete":
        path.unlink()
    elif kind == "truncate":
        path.write_bytes(content[: chance.randrange(len(content))])
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)


def _kind_of_file(path: Path, folder: Path) -> str:
    name = str(path.relative_to(folder))
    return "array data" if "/d/" in name else path.name.rstrip("0123456789")


@pytest.mark.timeout(3600)
def test_no_damage_is_restored_in_silence(tmp_path: Path) -> None:
    context = Context.local(tmp_path / "saved")
    for step in (1, 2):
        checkpoint.save(context, step, _state(step), {"vocabulary": "abc é", "config": {"width": 3}})
    expected = {step: _digest(_state(step)) for step in (1, 2)}
    outcomes: collections.Counter[tuple[str, str, str]] = collections.Counter()
    chance = random.Random(0)
    for number in range(NUM_DAMAGES):
        events: list[dict] = []
        trial = dataclasses.replace(context, storage=str(tmp_path / f"trial-{number}"), emit=events.append)
        shutil.copytree(context.storage, trial.storage)
        (folder,) = Path(trial.storage).glob("step_00000002*")
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        kinds = sorted({_kind_of_file(path, folder) for path in files})
        # Half of them where the arrays are; else small kinds of file come as often as large ones.
        file_kind = chance.choice(["array data"] * len(kinds) + kinds)
        path = chance.choice([path for path in files if _kind_of_file(path, folder) == file_kind])
        damage = chance.choice(["flip", "flip", "truncate", "delete"])
        _damage(path, damage, chance)

        found = checkpoint.restore(trial, lambda step, _: _state(step))
        said = [event for event in events if event["type"] == "checkpoint-skipped"]
        assert found, (damage, path)
        assert _digest(found.state) == expected[found.step], (damage, path, "restored in silence")
        assert found.metadata == {"vocabulary": "abc é", "config": {"width": 3}}, (damage, path)
        assert (found.step == 2) == (not said), (damage, path)
        if found.step == 1:
            assert said[0]["step"] == 2 and said[0]["path"] == str(folder) and said[0]["why"]
        outcomes[file_kind, damage, "fell back" if said else "no information lost"] += 1
        shutil.rmtree(trial.storage)
    for row, count in sorted(outcomes.items()):
        print(*row, count, sep=" | ")
    assert sum(outcomes.values()) == NUM_DAMAGES
    assert {damage for _, damage, outcome in outcomes if outcome == "fell back"} == {"flip", "truncate", "delete"}


def test_with_nothing_good_left_it_starts_from_step_0(tmp_path: Path) -> None:
    events: list[dict] = []
    context = Context.local(tmp_path, emit=events.append)
    for step in (1, 2):
        folder = Path(checkpoint.save(context, step, _state(step), {}))
        _damage(max(folder.rglob("d/*"), key=lambda path: path.stat().st_size), "truncate", random.Random(1))
    assert checkpoint.resume(context, lambda step, _: _state(step)) is None
    assert [event["step"] for event in events if event["type"] == "checkpoint-skipped"] == [2, 1]
    assert events[-1]["why"] == "from step 0: no checkpoint"
