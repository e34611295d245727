"""Training state and the three pure functions that are compiled: initialise, train a few steps, validate."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from workloads.transformer import partition
from workloads.transformer.config import DATA_AXIS, Config
from workloads.transformer.loss import TokenSums, token_sums
from workloads.transformer.model import Transformer
from workloads.transformer.reduce import ordered_sum, split_rows

PyTree = Any
State = dict[str, PyTree]  # "params": nested dicts, "opt": optax's state, "step": () int32, steps done


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainer:
    """One network and optimizer on one mesh; the state is passed in and out.

    Attributes:
        config: the sizes and the recipe.
        mesh: with axes data and model.
        vocab_size: number of characters.
        padded_vocab_size: rows of the embedding.
    """

    config: Config
    mesh: Mesh
    vocab_size: int
    padded_vocab_size: int

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(jnp.float64 if self.config.x64 else jnp.float32)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.config)

    @functools.cached_property
    def graph(self) -> nnx.GraphDef:
        """The network without its parameters."""
        return nnx.split(nnx.eval_shape(lambda: self._network(jax.random.key(0))))[0]

    @functools.cached_property
    def state_shardings(self) -> State:
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)

    @functools.cached_property
    def abstract_state(self) -> State:
        """Shapes, dtypes and shardings of the state: enough to compile for it, or to restore it."""
        shapes = jax.eval_shape(self.init_state, jax.random.key(0))
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            shapes,
            partition.shardings(shapes, self.mesh),
        )

    def init_state(self, key: jax.Array) -> State:
        """Fresh parameters and moments; jit it with `out_shardings=state_shardings`, so that each device makes its own.

        The bits depend on the key alone, whatever the sharding.
        """
        params = nnx.to_pure_dict(nnx.state(self._network(key), nnx.Param))
        return {"params": params, "opt": self.optimizer.init(params), "step": jnp.int32(0)}

    def logits(self, params: PyTree, tokens_BxT: jax.Array) -> jax.Array:
        """(B, T) int32 to (B, T, V) logits over the padded vocabulary."""
        return nnx.merge(self.graph, params)(tokens_BxT, self.mesh)

    def loss_sum(self, params: PyTree, windows_RxT1: jax.Array, weights_RxT: jax.Array) -> tuple[jax.Array, TokenSums]:
        """Cross entropy plus z-loss, summed over the tokens of weight 1: inputs `[:, :-1]`, targets `[:, 1:]`."""
        logits_RxTxV = self.logits(params, windows_RxT1[:, :-1])
        sums = token_sums(logits_RxTxV, windows_RxT1[:, 1:], weights_RxT, self.vocab_size)
        return sums.cross_entropy + self.config.z_loss * sums.squared_log_z, sums

    def gradients(self, params: PyTree, windows_BxT1: jax.Array, weights_BxT: jax.Array) -> tuple[PyTree, TokenSums]:
        """Gradients of the mean loss over the global batch's unmasked tokens, and the sums that it is made of."""
        by_group = self._by_group(jax.grad(self.loss_sum, has_aux=True))
        grads, sums = by_group(params, windows_BxT1, weights_BxT)
        return jax.tree.map(lambda leaf: leaf / sums.count, grads), sums

    def train_step(self, state: State, windows_BxT1: jax.Array) -> tuple[State, TokenSums]:
        """One AdamW step."""
        weights = jnp.ones_like(windows_BxT1[:, 1:], self.dtype)
        grads, sums = self.gradients(state["params"], windows_BxT1, weights)
        updates, opt = self.optimizer.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt, "step": state["step"] + 1}, sums

    def train_chunk(
        self, state: State, windows_KxBxT1: jax.Array, num_steps: jax.Array
    ) -> tuple[State, dict[str, jax.Array]]:
        """`num_steps` steps in one dispatch; one compiled program serves every number up to K.

        Returns:
            The state, and curves of shape (K,): `loss` (cross entropy) and `accuracy`; 0 from `num_steps` on.
        """
        curves = {name: jnp.zeros(windows_KxBxT1.shape[0], self.dtype) for name in ("loss", "accuracy")}

        def body(index: jax.Array, carry: tuple[State, dict[str, jax.Array]]) -> tuple[State, dict[str, jax.Array]]:
            state, curves = carry
            state, sums = self.train_step(state, windows_KxBxT1[index])
            values = {"loss": sums.cross_entropy / sums.count, "accuracy": sums.correct / sums.count}
            return state, {name: curves[name].at[index].set(value) for name, value in values.items()}

        return jax.lax.fori_loop(0, num_steps, body, (state, curves))

    def evaluate(self, params: PyTree, windows_KxBxT1: jax.Array, weights_KxBxT: jax.Array) -> dict[str, jax.Array]:
        """Mean cross entropy `loss` and `accuracy` over all unmasked tokens: two scalars."""

        def one(_: None, batch: tuple[jax.Array, jax.Array]) -> tuple[None, TokenSums]:
            return None, self._by_group(lambda *args: self.loss_sum(*args)[1])(params, *batch)

        _, sums_K = jax.lax.scan(one, None, (windows_KxBxT1, weights_KxBxT))
        sums = jax.tree.map(jnp.sum, sums_K)
        return {"loss": sums.cross_entropy / sums.count, "accuracy": sums.correct / sums.count}

    def _by_group(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """`function(params, windows, weights)` of each data-axis device's own rows, summed over the devices."""

        def summed(params: PyTree, windows_BxT1: jax.Array, weights_BxT: jax.Array) -> PyTree:
            windows_SxRxT1, weights_SxRxT = (split_rows(array, self.mesh) for array in (windows_BxT1, weights_BxT))
            mapped = jax.vmap(function, in_axes=(None, 0, 0), spmd_axis_name=DATA_AXIS)
            return ordered_sum(mapped(params, windows_SxRxT1, weights_SxRxT), self.mesh)

        return summed

    def _network(self, key: jax.Array) -> Transformer:
        return Transformer(self.config, self.padded_vocab_size, self.dtype, nnx.Rngs(params=key))


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """AdamW (arXiv:1711.05101) with linear warm-up and a cosine; nanoGPT's betas; norms are not decayed."""
    warmup = min(config.warmup_steps, config.steps - 1)
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=config.learning_rate / (warmup + 1),
        peak_value=config.learning_rate,
        warmup_steps=warmup,
        decay_steps=config.steps,
        end_value=config.learning_rate * config.final_fraction,
    )

    def is_matrix(params: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(schedule, b1=0.9, b2=0.99, weight_decay=config.weight_decay, mask=is_matrix),
    )
