"""Ranks of a host, forked from its template: the warm one of the last job's code, or one of their own."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.command_process import Activation
from launcher.rank_process import RankProcess, keep
from launcher.template_process import TemplateEndedError, TemplateProcess


class HostTemplates:
    """The template of a host, one at a time, besides those of ranks that cannot wait for it.

    Args:
        folder: the host's.
        environment: gives the variables of a rank of some code.
    """

    def __init__(self, folder: Path, environment: Callable[[str], Mapping[str, str]]):
        self._folder = folder
        self._environment = environment
        self._template: TemplateProcess | None = None
        self._changing = asyncio.Lock()

    async def fill(self, code_digest: str) -> None:
        """Makes the template of that code warm, starting it if there is none."""
        async with self._changing:
            template = self._template
            if template is None or not template.running or template.code_digest != code_digest:
                if template is not None:
                    await template.end()
                environment = self._environment(code_digest)
                template = self._template = await TemplateProcess.start(environment, self._folder, code_digest)
        await template.import_all()

    def state(self, code_digest: str) -> str:
        """`WARM`, `warming`, or `none`."""
        template = self._of(code_digest)
        return "none" if template is None else "WARM" if template.warm else "warming"

    async def fork(self, code_digest: str, own: Activation | None) -> RankProcess:
        """A new rank; if there is no warm template of this code, from one of its own that has imported nothing.

        Args:
            code_digest: of the code that it runs.
            own: the Python environment of its job, of which there is never a warm one; None: this process's.
        """
        template = self._of(code_digest)
        if template is not None and template.warm and own is None:
            with contextlib.suppress(TemplateEndedError):
                return await template.fork()
        if self._template is not None:
            self._template.pause()  # the rank that starts now needs the cores more; `fill` lets it go on
        cold = await TemplateProcess.start(self._environment(code_digest), self._folder, code_digest, own)
        rank = await cold.fork()
        keep(cold.end_after(rank))
        return rank

    def _of(self, code_digest: str) -> TemplateProcess | None:
        template = self._template
        return template if template is not None and template.running and template.code_digest == code_digest else None
