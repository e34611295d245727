"""Parameters of `bandwidth-check`."""

import dataclasses

from workloads.layout import Layout
from workloads.params import check_params, param


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Four collectives of sizes from 4 B up, over all hosts, over each pair of hosts, and inside each host."""

    seconds: float = param(60.0, "time to spend, about; what does not fit is left out and named", above=0.0)
    max_bytes: int = param(64_000_000, "the largest size, in bytes", minimum=4, maximum=1_000_000_000)
    x64: bool = param(False, "64-bit floating point elsewhere: what is sent is float32")
    precision: str = param("default", "of matrix products: there are none", choices=("default", "high", "highest"))

    def __post_init__(self) -> None:
        check_params(self)

    def check(self, layout: Layout) -> None:
        """Fits every layout."""
