"""Bytes by their content's digest, on the head: code archives and input files, each stored and shipped once."""

import asyncio
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from launcher.errors import FailureError
from launcher.host_wait import while_it_answers
from launcher.whole_folder import made_whole


class BlobStore:
    """A folder of blobs.

    Args:
        folder: made if it is not there.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def missing(self, digests: Iterable[str]) -> list[str]:
        return [digest for digest in digests if not (self.folder / digest).exists()]

    def put(self, digest: str, data: bytes, *, is_file: bool) -> None:
        """Stores a blob; an input file's digest is that of its bytes and is checked, an archive's on unpacking.

        Raises:
            FailureError: what arrived is not what was announced.
        """
        found = hashlib.sha256(data).hexdigest()
        if is_file and found != digest:
            raise FailureError(f"an input file arrived with sha256 {found}, expected {digest}: submit again")
        partial = self.folder / f".{digest}.{os.getpid()}"
        partial.write_bytes(data)
        partial.replace(self.folder / digest)

    def path(self, digest: str) -> Path:
        return self.folder / digest

    def get(self, digest: str) -> bytes:
        return self.path(digest).read_bytes()


async def ship(store: BlobStore, agents: Mapping[str, Any], code_digest: str, files: Sequence[tuple[str, str]]) -> None:
    """Brings code and files to every host that does not have them, to all at once.

    Args:
        store: where the bytes are.
        agents: Ray handles, by host.
        code_digest: of our packages.
        files: `(sha256, file name)` of each input file.

    Raises:
        HostError: a host was lost, stands still, or cannot keep them.
    """
    names = dict(files)
    wanted = [code_digest, *names]
    inside: dict[str, ray.ObjectRef] = {}  # the object store: once in there, each host fetches them from it

    async def bring(agent: Any) -> None:
        held = await agent.has.remote(wanted)
        for digest in (digest for digest in wanted if digest not in held):
            if digest not in inside:
                inside[digest] = ray.put(store.get(digest))
            if digest == code_digest:
                await agent.put_code.remote(digest, inside[digest])
            else:
                await agent.put_file.remote(digest, names[digest], inside[digest])

    bringing = [asyncio.ensure_future(while_it_answers(host, agent, bring(agent))) for host, agent in agents.items()]
    try:
        await asyncio.gather(*bringing)
    finally:
        for each in bringing:
            each.cancel()


def store_file(folder: Path, name: str, data: bytes) -> None:
    """Keeps an input file on a host, in a folder that appears complete or not at all."""
    if folder.exists():
        return
    with made_whole(folder) as partial:
        (partial / name).write_bytes(data)
