"""Input that is named, not shipped: a path on this host, or a URL, made a local path. Imports no JAX."""

import shutil
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_S = 60.0


def resolve_inputs(params: Mapping[str, str | None], settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with every file parameter as a local path.

    Args:
        params: file parameters, see `workloads.params.file_params`.
        settings: `{parameter: text}`.
    """
    return {key: local_input(text) if key in params else text for key, text in settings.items()}


def local_input(text: str) -> str:
    """A readable local path for a path of this host (`~` is its home) or a URL, which is fetched.

    Raises:
        OSError: it is not there; urllib's errors are of that kind.
    """
    if "://" not in text:
        return str(Path(text).expanduser())
    name = Path(urllib.parse.urlparse(text).path).name or "input"
    target = Path(tempfile.mkdtemp(prefix="input-")) / name
    if text.startswith(("http://", "https://", "file://")):
        with urllib.request.urlopen(text, timeout=TIMEOUT_S) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    else:  # gs://, s3://
        from etils import epath

        epath.Path(text).copy(target)
    return str(target)
