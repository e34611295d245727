"""Runs on a rank: damages copies of a real checkpoint at random, and tells what became of each."""

import dataclasses
import random
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads import checkpoint
from workloads.checkpoint.leaves import named_leaves
from workloads.checkpoint.stored import is_key
from workloads.context import Context, Event
from workloads.durable import as_path
from workloads.result import digest_arrays
from workloads.storage.index import leaves_in

METADATA = {"vocabulary": "abc é", "config": {"width": 3}}


def make(step: int) -> dict[str, Any]:
    """A state of several dtypes, sizes and kinds; noise, and zeros that compress to nothing."""
    noise = jax.random.normal(jax.random.key(step), (64, 48))
    return {
        "weights": {"kernel": noise, "half": noise.astype(jnp.bfloat16), "zeros": jnp.zeros((100, 10))},
        "count": jnp.int32(step),
        "flags": noise[0] > 0,
        "key": jax.random.key(step),
        "history": np.asarray(noise, np.float64).ravel()[:500],
        "number": step,
    }


def digest(state: Any) -> str:
    plain = jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, state)
    return digest_arrays({name: np.asarray(leaf) for name, leaf in named_leaves(plain).items()})


def damage(path: Path, kind: str, chance: random.Random) -> None:
    """Flips a bit at a random place, truncates at one, or deletes."""
    content = bytearray(path.read_bytes())
    if kind == "delete":
        path.unlink()
    elif kind == "truncate":
        path.write_bytes(content[: chance.randrange(len(content))])
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)


def damage_again_and_again(context: Context, times: int) -> list[list[str]]:
    """Of steps 1 and 2, one file of step 2 is damaged, each time in a fresh copy.

    Returns:
        Of each time the kind of file, the kind of damage, and what became of it: "fell back" to step 1 with step 2
        named, or "no information lost": step 2 with the bits that were saved. "WRONG: ..." is anything else.
    """
    for step in (1, 2):
        checkpoint.save(context, step, make(step), METADATA)
    expected = {step: digest(make(step)) for step in (1, 2)}
    chance = random.Random(context.seed)
    outcomes = []
    for number in range(times):
        events: list[Event] = []
        trial = dataclasses.replace(context, storage=f"{context.storage}-{number}", emit=events.append)
        shutil.copytree(context.storage, trial.storage)
        (folder,) = Path(trial.storage).glob("step_00000002*")
        file_kind, path = _choose(folder, chance)
        kind = chance.choice(["flip", "flip", "truncate", "delete"])
        file = str(path.relative_to(folder))
        leaves = _leaves_in(folder, file)
        damage(path, kind, chance)
        found = checkpoint.restore(trial, lambda step, _: make(step))
        outcomes.append([file_kind, kind, _outcome(found, events, (str(folder), file, leaves), expected)])
        shutil.rmtree(trial.storage)
    return outcomes


def _choose(folder: Path, chance: random.Random) -> tuple[str, Path]:
    """Half the time one where the arrays are; else each kind of file comes as often as any other."""
    by_kind: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        is_data = path.parent.name == "d"
        by_kind.setdefault("array data" if is_data else path.name.rstrip("0123456789"), []).append(path)
    kinds = sorted(by_kind)
    kind = chance.choice(["array data"] * len(kinds) + kinds)
    return kind, chance.choice(by_kind[kind])


def _leaves_in(folder: Path, file: str) -> list[str]:
    """Leaves of which one must be named if a file is damaged: none where it is the index, which alone knows them."""
    if file.startswith("state/d/"):
        return []
    return [leaf for leaf in named_leaves(make(0)) if leaves_in(as_path(str(folder)), file, [leaf])]


def _outcome(
    found: checkpoint.Restored | None,
    events: list[Event],
    damaged: tuple[str, str, list[str]],
    expected: dict[int, str],
) -> str:
    """What became of it, where this file of this folder, which holds these leaves, was damaged."""
    said = [event for event in events if event["type"] == "checkpoint-skipped"]
    if not found or digest(found.state) != expected[found.step] or found.metadata != METADATA:
        return f"WRONG: {found and found.step} was restored, {said} was said"
    if found.step == 2:
        return "no information lost" if not said else f"WRONG: restored and skipped, {said}"
    folder, file, leaves = damaged
    is_named = [(event["step"], event["path"]) for event in said] == [(2, folder)] and file in said[0]["why"]
    is_named = is_named and (not leaves or any(re.search(rf"\b{leaf}\b", said[0]["why"]) for leaf in leaves))
    return "fell back" if is_named else f"WRONG: {said} was said"
