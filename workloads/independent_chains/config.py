"""Parameters of `independent-chains`. Imports no JAX."""

import dataclasses

from workloads.errors import ConfigError
from workloads.layout import Layout
from workloads.params import check_params, param


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Independent chains of one posterior; the defaults of TFP's guide to distributed inference."""

    model: str = param(
        "gaussian",
        "gaussian: 2-D, correlated; eight-schools: hierarchical, non-centred; funnel: Neal's, in 10 dimensions; or a "
        "log density of yours, with initial_position(key) beside it",
        choices=("gaussian", "eight-schools", "funnel"),
        function_check="workloads.independent_chains.user_model:check",
    )
    sampler: str = param(
        "hmc",
        "hmc: Hamiltonian Monte Carlo; nuts: the No-U-Turn sampler, which chooses the length of each trajectory",
        choices=("hmc", "nuts"),
    )
    num_chains: int = param(16, "chains in all, spread over the devices in blocks", minimum=1)
    num_warmup: int = param(1000, "transitions of each chain before the first draw", minimum=0)
    num_draws: int = param(1000, "draws of each chain after the warm-up", minimum=1)
    step_size: float = param(0.1, "step size of the leapfrog integrator, or where its adaptation starts", above=0.0)
    num_leapfrog_steps: int = param(10, "hmc: gradients a transition", minimum=1)
    max_tree_depth: int = param(10, "nuts: at most 2**max_tree_depth - 1 gradients a transition", minimum=1, maximum=20)
    adapt_step_size: bool | None = param(
        None, "each chain adapts its step size during 80 % of the warm-up; none: nuts does, hmc does not"
    )
    target_accept: float = param(0.8, "acceptance probability that the adaptation aims at", above=0.0, maximum=0.99)
    block_size: int = param(
        4, "chains in one vectorised block; the last block is padded. The draws' last bits depend on it", minimum=2
    )
    draws_per_dispatch: int = param(100, "transitions in one dispatch; progress is reported after each", minimum=1)
    x64: bool = param(False, "compute in float64")
    precision: str = param(
        "highest",
        "matrix products on TPU and GPU (highest: accurate to float32)",
        choices=("default", "high", "highest"),
    )

    def __post_init__(self) -> None:
        check_params(self)
        if self.adapt_step_size and not self.num_adaptation_steps:
            raise ConfigError(
                f"adapt_step_size=True: num_warmup={self.num_warmup} leaves no transition to adapt in; "
                "num_warmup=2 or more would, or adapt_step_size=false"
            )

    def check(self, layout: Layout) -> None:
        """Refuses what does not fit the layout: nothing; any number of chains runs on any number of devices.

        Devices without a block stay idle, which `run` reports.
        """

    @property
    def adapts(self) -> bool:
        """Whether the step size adapts during the warm-up."""
        return self.sampler == "nuts" if self.adapt_step_size is None else self.adapt_step_size

    @property
    def num_adaptation_steps(self) -> int:
        """Transitions during which the step size adapts; the rest of the warm-up runs at the final one."""
        return int(0.8 * self.num_warmup) if self.adapts else 0

    @property
    def num_transitions(self) -> int:
        """Warm-up and draws together, of one chain."""
        return self.num_warmup + self.num_draws

    @property
    def num_blocks(self) -> int:
        """Blocks of `block_size` chains, the last one padded."""
        return -(-self.num_chains // self.block_size)
