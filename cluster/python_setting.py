"""What `python` in a cluster file may be: a version, an interpreter or a container image. Pure."""

import re
from typing import Any

from cluster.errors import ClusterConfigError

IMAGE = "image:"  # before the name of a container image
# As registries have it: host:port of one, path in it, tag and digest; none begins with a dash.
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE_NAME = (
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{{1,5}})?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


def image_of(python: str | None) -> str | None:
    """The name of the image, where it is one."""
    return python.removeprefix(IMAGE) if python is not None and python.startswith(IMAGE) else None


def check_python(python: Any, accelerator_kind: str, storage_path: Any) -> None:
    """Refuses what no host could run.

    Args:
        python: as in the cluster file.
        accelerator_kind: of what JAX is to find.
        storage_path: as in the cluster file.

    Raises:
        ClusterConfigError: with what would do.
    """
    if not isinstance(python, str) or not re.fullmatch(rf"3\.1[1-3]|/[^\0\n]+|{IMAGE}{_IMAGE_NAME}", python):
        raise ClusterConfigError(
            "python",
            'must be "3.11", "3.12", "3.13", the absolute path of an interpreter, or a container image as in '
            f"{IMAGE}registry.example.org/jax:1, not {python!r}",
        )
    if image_of(python) is None:
        return
    if accelerator_kind == "tpu":
        raise ClusterConfigError("python", "an image is for cpu and GPUs: a TPU's devices are not given to containers")
    if isinstance(storage_path, str) and set(storage_path) & set(',"'):
        raise ClusterConfigError("storage_path", f'has , or ", and so no container can share it: {storage_path!r}')
