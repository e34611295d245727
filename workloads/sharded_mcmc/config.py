"""Parameters of `sharded-mcmc`. Imports no JAX."""

import dataclasses

from workloads.errors import ConfigError
from workloads.layout import Layout
from workloads.params import check_params, param


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hamiltonian Monte Carlo whose data and state are sharded over every device of the job."""

    model: str = param(
        "logistic",
        "logistic: Bayesian multinomial logistic regression; matrix-factorization: Bernoulli, user factors sharded",
        choices=("logistic", "matrix-factorization"),
    )
    data: str | None = param(
        None,
        "logistic: .npz with train_images (uint8), train_labels, test_images, test_labels; none: scikit-learn's digits",
        file=True,
    )
    num_examples: int | None = param(None, "logistic: use only the first so many training examples", minimum=1)
    num_users: int = param(203, "matrix-factorization: rows of the synthetic watch matrix", minimum=1)
    num_movies: int = param(96, "matrix-factorization: columns of the synthetic watch matrix", minimum=2)
    rank: int = param(4, "matrix-factorization: number of factors", minimum=1)
    num_chains: int = param(2, "chains, batched in one wide product", minimum=1)
    num_warmup: int = param(100, "transitions before the first draw; the step size adapts during 80 %", minimum=0)
    num_draws: int = param(100, "draws of each chain after the warm-up", minimum=1)
    num_leapfrog_steps: int = param(10, "gradients a transition", minimum=1)
    step_size: float = param(0.01, "step size that the adaptation starts from", above=0.0)
    target_accept: float = param(
        0.8, "mean acceptance probability that the adaptation aims at", above=0.0, maximum=0.99
    )
    init_scale: float = param(0.1, "standard deviation of the initial position (1: the prior)", minimum=0.0)
    draws_per_dispatch: int = param(10, "transitions in one dispatch; progress is reported after each", minimum=1)
    max_draws_mib: int = param(
        256, "draws kept on each host, in MiB; where they need more, every k-th is kept, and k is reported", minimum=1
    )
    x64: bool = param(False, "compute in float64")
    precision: str = param(
        "highest",
        "matrix products on TPU and GPU (highest: accurate to float32)",
        choices=("default", "high", "highest"),
    )

    def __post_init__(self) -> None:
        check_params(self)
        if self.model != "logistic":
            for name in ("data", "num_examples"):
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"{name}={getattr(self, name)!r}: only model=logistic reads it; "
                        f"model={self.model} draws a watch matrix of num_users x num_movies"
                    )

    def check(self, layout: Layout) -> None:
        """Refuses what does not fit the layout: nothing so far.

        Rows (examples or users) that the devices do not divide, even fewer rows than devices, are padded and masked.
        """

    @property
    def num_adaptation_steps(self) -> int:
        """Transitions during which the step size adapts; the rest of the warm-up runs at the final one."""
        return int(0.8 * self.num_warmup)

    @property
    def num_transitions(self) -> int:
        """Warm-up and draws together."""
        return self.num_warmup + self.num_draws
