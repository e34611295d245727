"""The manifest of a step: what it must hold, bit for bit, and by whom it was written.

It covers itself by a digest, what tells Orbax how to read by digests of those files, the arrays by their fingerprints
and every file by its size. The metadata lie in it, so that nothing of a step is uncovered.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from etils import epath

from workloads.durable import write_whole
from workloads.errors import DamageError
from workloads.storage.folders import MANIFEST, STATE, files_below
from workloads.storage.index import files_with, leaves_in
from workloads.words import first_of

Files = dict[str, dict[str, Any]]

FORMAT = 1

DEVICES, MEMORY = "devices", "memory"
_DATA_FOLDER = "d"  # of OCDBT: the arrays' bytes, which the fingerprints cover


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """What a manifest says of a leaf.

    Attributes:
        kind: on "devices", or in "memory" of the host and equal on all ranks.
        dtype: as NumPy names it.
        shape: of the whole array.
        fingerprint: 16 hexadecimal digits; those of the two kinds cannot be compared.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    fingerprint: str = ""

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}" + (" in host memory" if self.kind == MEMORY else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `manifest.json` says.

    Attributes:
        step: steps (or draws) that the state has behind it.
        attempt, attempt_id: which attempt of the job wrote it.
        seed: the job's.
        config: the workload's parameters, as its context has them.
        metadata: the workload's own.
        leaves: `{path: leaf}`.
        files: `{path below the step's folder: {"size": bytes}}`, and "sha256" of those that hold no array data
            (of all, where copies of them are made).
        computed_with: see `workloads.computed_with`; empty: it is not known.
    """

    step: int
    attempt: int
    attempt_id: str
    seed: int
    config: dict[str, Any]
    metadata: dict[str, Any]
    leaves: dict[str, Leaf]
    files: Files
    computed_with: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Manifest":
        leaves = {name: Leaf(**{**leaf, "shape": tuple(leaf["shape"])}) for name, leaf in content["leaves"].items()}
        known = {field.name for field in dataclasses.fields(cls)}  # other versions have others
        own = {name: value for name, value in content.items() if name in known}
        return cls(**{"config": {}, **own, "leaves": leaves})


def digest_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def changes(manifest: Manifest, *, seed: int, config: Mapping[str, Any]) -> list[str]:
    """Parameters, and the seed, with which a step was saved and that are other ones now: `rows=4096 (now 8192)`.

    Args:
        seed, config: the present ones; an empty config is not known, and neither is an empty one of the manifest.
    """
    before, now = {"seed": manifest.seed}, {"seed": seed}
    if manifest.config and config:
        before, now = before | manifest.config, now | dict(config)
    names = [name for name in {**now, **before} if before.get(name, "-") != now.get(name, "-")]
    return [f"{name}={before.get(name, '-')} (now {now.get(name, '-')})" for name in names]


def list_files(folder: epath.Path, known: Files | None = None) -> Files:
    """Sizes of all files that Orbax has left, and digests of the small ones that say how to read the others.

    Args:
        folder: of the step.
        known: what is known of some of them. If given, the others are digested too, whatever they hold: where copies
            are made, each must be known to be one.
    """
    found: Files = {}
    for below, path in files_below(folder / STATE):
        name = f"{STATE}/{below}"
        digest = known is not None or _DATA_FOLDER not in below.split("/")[:-1]
        found[name] = (known or {}).get(name) or file_facts(path, digest=digest)
    return found


def file_facts(path: epath.Path, *, digest: bool) -> dict[str, Any]:
    """What a manifest says of a file.

    Raises:
        OSError: it cannot be read.
    """
    facts: dict[str, Any] = {"size": path.stat().length}
    if digest:
        with path.open("rb") as file:
            facts["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    return facts


def write_manifest(folder: epath.Path, manifest: Manifest) -> None:
    """Commits the step: once this file is in place, it counts.

    Raises:
        OSError: it could not be written; the step does not count.
    """
    content = {"format": FORMAT, **manifest.to_json()}
    text = json.dumps({**content, "sha256": digest_json(content)}, indent=1, ensure_ascii=False)
    write_whole(folder / MANIFEST, text)


def read_manifest(folder: epath.Path) -> Manifest:
    """Reads a step's manifest; see `parse_manifest`.

    Raises:
        DamageError: it is gone, or not what was written.
        OSError: the storage fails, which tells nothing of the manifest.
    """
    try:
        text = (folder / MANIFEST).read_text()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise DamageError(f"{MANIFEST} cannot be read ({type(error).__name__}: {error})") from error
    return parse_manifest(text)


def parse_manifest(text: str) -> Manifest:
    """Checks that a manifest is what was written.

    Raises:
        DamageError: it is not.
    """
    try:
        content = json.loads(text)
        written = content.pop("sha256")
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise DamageError(f"{MANIFEST} cannot be read ({type(error).__name__}: {error})") from error
    if written != digest_json(content):
        raise DamageError(f"{MANIFEST} is not what was written: its sha256 differs")
    if content.pop("format") != FORMAT:
        raise DamageError(f"{MANIFEST} is of another format than {FORMAT}, the one that this version reads")
    return Manifest.from_json(content)


def check_files(folder: epath.Path, manifest: Manifest) -> None:
    """Whether all files are there in their sizes, and the small ones as they were written.

    Raises:
        DamageError: naming the file, and the leaves that it holds.
        OSError: the storage fails, which tells nothing of the files.
    """
    for name, expected in manifest.files.items():
        try:
            found = file_facts(folder / name, digest="sha256" in expected)
        except FileNotFoundError:
            found = {}
        if found == expected:
            continue
        why = f"has {found['size']} bytes, {expected['size']} were written" if found else "is gone"
        if found.get("size") == expected["size"]:
            why = "is not what was written: its sha256 differs"
        raise DamageError(f"{name}{leaves_in(folder, name, list(manifest.leaves))} {why}")


def check_fingerprints(folder: epath.Path, manifest: Manifest, found: Mapping[str, str]) -> None:
    """Whether every leaf has the bits that were saved.

    Raises:
        DamageError: naming the leaves, and the files that hold them.
    """
    wrong = [name for name, leaf in manifest.leaves.items() if found.get(name) != leaf.fingerprint]
    if wrong:
        where = files_with(folder, wrong)
        raise DamageError(f"the bits of {first_of(wrong)}{where} are not those that were saved")


def check_same_arrays(manifest: Manifest, wanted: Mapping[str, Leaf], folder: epath.Path) -> None:
    """Refuses what Orbax would cast in silence.

    Raises:
        ValueError: the tree, a shape or a dtype is not the one that was saved.
    """
    if manifest.leaves.keys() != wanted.keys():
        odd = sorted(manifest.leaves.keys() ^ wanted.keys())
        raise ValueError(f"{folder}: the saved tree is another one; in one and not in the other: {', '.join(odd[:5])}")
    for name, leaf in wanted.items():
        saved = dataclasses.replace(manifest.leaves[name], fingerprint="")
        if saved != leaf:
            raise ValueError(f"{folder}: {name} was saved as {saved}, and {leaf} is asked")
