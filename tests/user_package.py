"""A package of a user's that offers a workload, really installed; and a Python that has it beside all that we need."""

import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

WORKLOAD = """
    import dataclasses
    import numpy as np
    from workloads.params import param
    from workloads.result import Result, digest_arrays

    @dataclasses.dataclass(frozen=True)
    class Config:
        size: int = param(3, "of nothing in particular", minimum=1)

    def run(config: Config, context, resume=False):
        values = np.ones(config.size)
        return Result(metrics={"sum": values.sum()}, diagnostics={}, result_digest=digest_arrays({"v": values}))
"""


def install(target: Path, *names: str, package: str = "lab-models", version: str = "1.0") -> Path:
    """Builds a package and installs it into a folder of modules.

    Args:
        target: the folder.
        names: of the workloads that it offers; all are one function.
        package, version: of the package.
    """
    source = target / f"source-{package}"
    module = package.replace("-", "_")
    (source / module).mkdir(parents=True)
    (source / module / "__init__.py").write_text("")
    (source / module / "fit.py").write_text(textwrap.dedent(WORKLOAD))
    entries = "".join(f'{name} = "{module}.fit:run"\n' for name in names)
    (source / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "{package}"\nversion = "{version}"\n'
        f'[project.entry-points."spmd_launch.workloads"]\n{entries}'
    )
    words = ["uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation", "--target"]
    command = [sys.executable, "-m", *words, str(target), "--python", sys.executable, str(source)]
    subprocess.run(command, check=True)
    return target


def python_with(folder: Path, *names: str) -> str:
    """A virtual environment that has this one's packages and one that offers these workloads; its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    install(site, *names)
    return str(folder / "bin" / "python")
