"""Parameters of `psum-check`."""

import dataclasses

from workloads.layout import Layout
from workloads.params import check_params, param


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One psum, then `steps` data-parallel steps of one matrix product and one all-reduce each."""

    steps: int = param(0, "data-parallel steps to time after the first psum", minimum=0)
    size: int = param(512, "rows and columns of each device's float32 matrix in a step", minimum=1, maximum=16384)
    report_every: int = param(50, "steps between progress reports", minimum=1)
    x64: bool = param(False, "64-bit floating point throughout")
    precision: str = param("default", "of matrix products", choices=("default", "high", "highest"))

    def __post_init__(self) -> None:
        check_params(self)

    def check(self, layout: Layout) -> None:
        """Fits every layout."""
