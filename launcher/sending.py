"""Requests that name bytes by their digest: the cluster says which it lacks, and gets those."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.place_code import Code
from cluster.record import Cluster
from launcher.code_copy import CodeFile, digest_code, pack, read_code, source_root
from launcher.protocol import CLIENT_TIMEOUT_S, Connection, Message
from launcher.version_skew import require_same_launcher


def packed(files: Sequence[CodeFile]) -> Code:
    return Code(digest_code(list(files)), pack(list(files)))


def our_code(cluster: Cluster) -> Code:
    """The copy of our packages that a job brings.

    Raises:
        UserError: the cluster runs another version of the launcher.
    """
    files = read_code(source_root())
    require_same_launcher(cluster, files)
    return packed(files)


def ask_with_bytes(
    cluster: Cluster, request: Message, code: Code, paths: Mapping[str, Path], timeout_s: float = CLIENT_TIMEOUT_S
) -> Message:
    """Asks; and once more, after whatever bytes the cluster does not have yet.

    Args:
        cluster: that is up.
        request: which names the code's and the files' digests.
        code: of our packages.
        paths: of input files, by sha256.
        timeout_s: the longest silence to wait through.
    """
    with Connection(cluster.socket, timeout_s=timeout_s) as connection:
        return ask_on(connection, request, code, paths)


def ask_on(connection: Connection, request: Message, code: Code, paths: Mapping[str, Path]) -> Message:
    """As `ask_with_bytes`, on a connection that goes on."""
    answer = connection.ask(request)
    for digest in answer.get("missing", ()):
        is_file = digest in paths
        data = paths[digest].read_bytes() if is_file else code.archive
        connection.ask({"op": "blob", "digest": digest, "is_file": is_file}, data)
    return connection.ask(request) if "missing" in answer else answer
