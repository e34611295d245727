"""Draws as an ArviZ-compatible dataset: one netCDF file with the groups `posterior` and `sample_stats`.

`arviz.from_netcdf(path)` and `xarray.open_datatree(path)` open it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import arviz_base
import numpy as np

from workloads.mcmc.diagnostics import Draws


def save_dataset(
    path: Path,
    posterior: Draws,
    sample_stats: Draws,
    *,
    attributes: Mapping[str, str | int | float] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Writes the dataset by h5netcdf and h5py, which need no netCDF library.

    Args:
        path: file to write, `.nc`.
        posterior: `{variable: (chains, draws, ...)}`, real.
        sample_stats: `{name: (chains, draws, ...)}` by ArviZ's names: `lp`, `diverging`, `step_size`,
            `acceptance_rate`, `tree_depth`, `n_steps`.
        attributes: recorded on both groups, such as `{"sampler": "nuts"}`.
        dims: names of the dimensions after chain and draw, `{variable: names}`; numbered ones by default.
        coords: labels along named dimensions, `{dimension: labels}`.

    Returns:
        `path`.
    """
    groups = {
        "posterior": {name: np.asarray(array) for name, array in posterior.items()},
        "sample_stats": {name: np.asarray(array) for name, array in sample_stats.items()},
    }
    tree = arviz_base.from_dict(
        groups,
        dims={name: list(names) for name, names in (dims or {}).items()},
        coords={name: list(labels) for name, labels in (coords or {}).items()},
        attrs={group: dict(attributes or {}) for group in groups},
    )
    tree.to_netcdf(path, engine="h5netcdf")
    return path
