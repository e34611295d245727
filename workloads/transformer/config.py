"""Parameters of the transformer workload, and which meshes and batches fit. Imports no JAX."""

import dataclasses
import math

from workloads.errors import ConfigError
from workloads.layout import Layout, fit_mesh, parse_mesh
from workloads.params import check_params, param

DATA_AXIS, MODEL_AXIS = "data", "model"

# The vocabulary is padded to a multiple of this constant and never of the shard count, so that every layout has the
# same arrays and can read every other's checkpoints.
VOCAB_MULTIPLE = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A small character model; the sizes are those of nanoGPT's README for a CPU."""

    data: str | None = param(
        None,
        "text to learn, UTF-8; default: the Python standard library's sources",
        default_file="workloads.transformer.corpus:write_default",
    )
    mesh: str = param("data:-1", "devices by axis: data:2,model:2 or 2x2; -1: all that are left")
    steps: int = param(200, "optimizer steps", minimum=1)
    batch_size: int = param(16, "sequences a step, over all devices", minimum=1)
    context_length: int = param(64, "characters a sequence", minimum=2)
    num_layers: int = param(4, "transformer blocks", minimum=1)
    num_heads: int = param(4, "attention heads", minimum=1)
    width: int = param(128, "width of the residual stream", minimum=1)
    ff_width: int = param(512, "width inside the feed-forward layers", minimum=1)
    learning_rate: float = param(1e-3, "AdamW's peak learning rate", above=0.0)
    warmup_steps: int = param(20, "steps of linear warm-up, followed by a cosine", minimum=0)
    final_fraction: float = param(
        0.1, "learning rate at the last step, as a part of the peak", minimum=0.0, maximum=1.0
    )
    weight_decay: float = param(0.1, "AdamW's weight decay, of matrices alone", minimum=0.0)
    max_grad_norm: float = param(1.0, "gradients are clipped to this global norm", above=0.0)
    z_loss: float = param(1e-4, "weight of the squared log-normalizer in the loss", minimum=0.0)
    eval_every: int = param(50, "steps between validations; one more at the end", minimum=1)
    eval_batches: int = param(20, "batches of a validation, spread over the validation split", minimum=1)
    steps_per_dispatch: int = param(10, "steps that one call of the compiled program runs, at most", minimum=1)
    sample_length: int = param(400, "characters to generate at the end", minimum=0)
    temperature: float = param(0.8, "temperature of the generated text", above=0.0)
    x64: bool = param(False, "compute in float64")
    precision: str = param(
        "highest", "of float32 products on accelerators that have faster ones", choices=("default", "high", "highest")
    )

    def __post_init__(self) -> None:
        check_params(self)
        if self.width % self.num_heads:
            fits = _divisors_near(self.width, self.num_heads)
            raise ConfigError(f"num_heads={self.num_heads}: must divide width={self.width}; {fits} would fit")
        parse_mesh(self.mesh, (DATA_AXIS, MODEL_AXIS))

    @property
    def has_constant_rate(self) -> bool:
        """Whether the learning rate stays at its peak after the warm-up, however many steps there are."""
        return self.final_fraction == 1.0

    def mesh_axes(self, layout: Layout) -> dict[str, int]:
        """`{"data": size, "model": size}` over all devices of the layout.

        Raises:
            ConfigError: the mesh does not use every device.
        """
        return fit_mesh(parse_mesh(self.mesh, (DATA_AXIS, MODEL_AXIS)), layout)

    def check(self, layout: Layout) -> None:
        """Whether mesh, batch and widths fit the hosts and devices.

        Raises:
            ConfigError: saying what would fit.
        """
        axes = self.mesh_axes(layout)
        rows, columns = axes[DATA_AXIS], axes[MODEL_AXIS]
        if self.batch_size % rows:
            below, above = self.batch_size // rows * rows, -(-self.batch_size // rows) * rows
            fits = f"{below} or {above}" if below else f"{above}"
            raise ConfigError(
                f"batch_size={self.batch_size}: must be a multiple of the data axis ({rows}); {fits} would fit"
            )
        common = math.gcd(self.num_heads, self.ff_width, VOCAB_MULTIPLE)
        if common % columns:
            fitting = math.gcd(common, layout.num_devices)
            sizes = [size for size in range(1, fitting + 1) if fitting % size == 0]
            fits = " or ".join(f"data:{layout.num_devices // size},model:{size}" for size in sizes)
            raise ConfigError(
                f"mesh={self.mesh}: the model axis ({columns}) must divide num_heads={self.num_heads}, "
                f"ff_width={self.ff_width} and the vocabulary's padding ({VOCAB_MULTIPLE}); {fits} would fit"
            )


def _divisors_near(number: int, value: int) -> str:
    """The divisors of `number` on both sides of `value`, as words."""
    divisors = [size for size in range(1, number + 1) if number % size == 0]
    below = [size for size in divisors if size < value][-1:]
    above = [size for size in divisors if size > value][:1]
    return " or ".join(str(size) for size in below + above)
