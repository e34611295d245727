"""How a step begins and how it comes to count, where all of its files are: in a shared place, or on the head."""

from collections.abc import Collection

from workloads.durable import as_path
from workloads.fence import check_fence
from workloads.storage.folders import STATE, find_folders, new_name, remove, superseded
from workloads.storage.manifest import Manifest, write_manifest


def begin_step(storage: str, step: int, attempt: int, attempt_id: str) -> str:
    """Makes the folder of a new step, and removes what earlier saves have left half-written.

    Returns:
        The folder's name.

    Raises:
        FencedError: a newer attempt has begun.
        OSError: the storage fails.
    """
    # Found before the fence is looked at: of a newer attempt there is nothing among them.
    found = find_folders(storage)
    check_fence(storage, attempt, attempt_id)
    for folder in found:
        if not folder.committed:
            remove(folder.path)
    name = new_name(step, attempt_id)
    (as_path(storage) / name / STATE).mkdir(parents=True)
    return name


def commit_step(storage: str, name: str, manifest: Manifest, *, keep: int, damaged: Collection[str] = ()) -> None:
    """Writes the manifest, last, and only if its attempt is still the newest; then older steps go.

    Args:
        storage: where all files of the step lie.
        name: of the step's folder.
        manifest: complete.
        keep: how many steps stay.
        damaged: names of older steps that are known to be so, and take no place among those.

    Raises:
        FencedError: a newer attempt has begun.
        OSError: the storage fails; the step does not count.
    """
    others = [folder for folder in find_folders(storage) if folder.path.name != name]
    check_fence(storage, manifest.attempt, manifest.attempt_id)
    write_manifest(as_path(storage) / name, manifest)
    for folder in superseded(others, manifest.step, keep, damaged):
        remove(folder.path)
