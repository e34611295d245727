"""Which processes run on test hosts while something else is done."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.hosts.commands import NAMESPACES
from tests.hosts.machines import TestHosts


@contextmanager
def watched(hosts: TestHosts) -> Iterator[set[str]]:
    """Every command line that is seen on the machines meanwhile, but for those with which the tests enter them."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            networks = set()
            for machine in hosts.machines():
                with suppress(OSError):  # off
                    networks.add((NAMESPACES / machine.namespace).stat().st_ino)
            for entry in Path("/proc").iterdir():
                with suppress(OSError):
                    if entry.name.isdigit() and (entry / "ns/net").stat().st_ino in networks:
                        seen.add((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        seen -= {line for line in seen if line.startswith(("nsenter", "env -i"))}
