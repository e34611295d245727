"""Runs a user's script as a rank: `python _spmd_launch_bootstrap.py train.py --args`, or `-m module`, or `-c code`.

Standard library alone. The script sees what it would see without: its arguments, its folder first on the path, its
own `__main__`. Nothing of ours is on its path: our modules, which have common names, are imported below `_spmd_launch`,
from the agent's copy of our code, and the script's own `cluster/` or `workloads/` stay what they are. Our part waits
for the script to import JAX, if it does; until then and beside it, it is a thread.
"""

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PRIVATE = "_spmd_launch"
OURS = ("launcher", "cluster", "workloads")


class PrivateLoader(importlib.machinery.SourceFileLoader):
    """Loads one of our modules under a private name: its imports of our packages are private ones too."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)  # never from or into a cache, which has the module's other form
        tree = ast.parse(self.get_data(path), path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level and _is_ours(node.module or ""):
                node.module = f"{PRIVATE}.{node.module}"
            elif isinstance(node, ast.Import) and any(_is_ours(alias.name) for alias in node.names):
                raise ImportError(f"{path}: `import {node.names[0].name}` binds a name that a script may use")
        code: types.CodeType = compile(tree, path, "exec")
        return code


class PrivateFinder(importlib.abc.MetaPathFinder):
    """Finds our modules below `_spmd_launch`.

    Args:
        code: the folder that has our packages.
    """

    def __init__(self, code: Path):
        self.code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top, _, rest = fullname.partition(".")
        if top != PRIVATE:
            return None
        place = self.code.joinpath(*rest.split(".")) if rest else self.code
        if not rest:
            return importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        if place.is_dir():
            file = place / "__init__.py"
            return importlib.util.spec_from_file_location(
                fullname, file, loader=PrivateLoader(fullname, str(file)), submodule_search_locations=[str(place)]
            )
        file = place.with_suffix(".py")
        return importlib.util.spec_from_file_location(fullname, file, loader=PrivateLoader(fullname, str(file)))


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then` once a module has been imported, by whomever and whenever.

    Args:
        name: of the module.
        then: receives the module.
    """

    def __init__(self, name: str, then: Callable[[types.ModuleType], None]):
        self.name = name
        self.then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_tell(module: types.ModuleType) -> None:
            execute(module)
            self.then(module)

        spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in OURS


def run(words: Sequence[str]) -> None:
    """Runs `train.py --args`, `-m module --args` or `-c code args` as Python itself would."""
    first, *rest = words
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv = rest
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path[0] = os.path.dirname(os.path.realpath(first))
        runpy.run_path(first, run_name="__main__")


def main() -> None:
    words = sys.argv[1:]
    descriptor = int(os.environ.pop("SPMD_LAUNCH_CONTROL_FD"))
    os.set_inheritable(descriptor, False)
    sys.meta_path.insert(0, PrivateFinder(Path(os.environ.pop("SPMD_LAUNCH_CODE"))))
    script: Any = importlib.import_module(f"{PRIVATE}.launcher.rank.script")
    not_shown = (__file__, "<frozen runpy>", "<frozen importlib._bootstrap>")
    rank = script.ScriptRank(descriptor, float(os.environ["SPMD_LAUNCH_LEASE_S"]), not_shown)
    sys.excepthook = rank.show
    sys.meta_path.insert(0, AfterImport("jax._src.distributed", rank.tie))
    try:
        run(words)
    except SystemExit:
        raise
    except BaseException as error:  # here, as the script may have an excepthook of its own
        rank.tell(error)
        raise


if __name__ == "__main__":
    main()
