"""The network: pre-norm decoder blocks without biases, learned positions, output tied to the embedding.

Shapes: B rows, T positions, D width, H heads, K width of a head, F feed-forward width, V padded vocabulary. There are
no biases, so that none can be added once a shard. Written for whole arrays; the partitioner splits it (`partition`).
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from workloads.transformer import partition
from workloads.transformer.config import Config
from workloads.transformer.dense import dense

INIT_STDDEV = 0.02  # GPT-2's


class Block(nnx.Module):
    """Causal self-attention, then a feed-forward layer, each added to the residual stream."""

    def __init__(self, config: Config, dtype: jnp.dtype, rngs: nnx.Rngs):
        width, heads = config.width, config.num_heads
        head_width = width // heads
        out_stddev = INIT_STDDEV / (2 * config.num_layers) ** 0.5  # GPT-2: the residual's variance stays near 1
        self.attention_norm = nnx.Param(jnp.ones(width, dtype))
        self.qkv = _normal(rngs, (width, 3, heads, head_width), INIT_STDDEV, dtype)
        self.attention_out = _normal(rngs, (heads, head_width, width), out_stddev, dtype)
        self.ff_norm = nnx.Param(jnp.ones(width, dtype))
        self.ff_in = _normal(rngs, (width, config.ff_width), INIT_STDDEV, dtype)
        self.ff_out = _normal(rngs, (config.ff_width, width), out_stddev, dtype)

    def __call__(self, x_BxTxD: jax.Array, mesh: Mesh) -> jax.Array:
        x_BxTxD = x_BxTxD + self._attention(_layer_norm(x_BxTxD, self.attention_norm[...]))
        x_BxTxD = partition.constrain(x_BxTxD, mesh, partition.RESIDUAL)
        x_BxTxD = x_BxTxD + self._feed_forward(_layer_norm(x_BxTxD, self.ff_norm[...]))
        return partition.constrain(x_BxTxD, mesh, partition.RESIDUAL)

    def _attention(self, x_BxTxD: jax.Array) -> jax.Array:
        qkv_BxTx3xHxK = dense(x_BxTxD, self.qkv[...])
        y_BxTxHxK = _causal_attention(*(qkv_BxTx3xHxK[:, :, part] for part in range(3)))
        return dense(y_BxTxHxK, self.attention_out[...], 2)

    def _feed_forward(self, x_BxTxD: jax.Array) -> jax.Array:
        h_BxTxF = jax.nn.gelu(dense(x_BxTxD, self.ff_in[...]))
        return dense(h_BxTxF, self.ff_out[...])


class Transformer(nnx.Module):
    """Logits of the next character.

    Args:
        config: the sizes.
        padded_vocab_size: rows of the embedding, a multiple of 128.
        dtype: of the parameters and of all computation.
        rngs: NNX's generators, for the initial values.
    """

    def __init__(self, config: Config, padded_vocab_size: int, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.embedding = _normal(rngs, (padded_vocab_size, config.width), INIT_STDDEV, dtype)
        self.positions = _normal(rngs, (config.context_length, config.width), INIT_STDDEV, dtype)
        self.blocks = nnx.List([Block(config, dtype, rngs) for _ in range(config.num_layers)])
        self.final_norm = nnx.Param(jnp.ones(config.width, dtype))

    def __call__(self, tokens_BxT: jax.Array, mesh: Mesh) -> jax.Array:
        """(B, T) int32 to (B, T, V) logits, of which those from `vocab_size` on belong to no character."""
        x_BxTxD = jnp.take(self.embedding[...], tokens_BxT, axis=0, mode="clip")
        x_BxTxD = partition.constrain(x_BxTxD + self.positions[...][: tokens_BxT.shape[1]], mesh, partition.RESIDUAL)
        for block in self.blocks:
            x_BxTxD = block(x_BxTxD, mesh)
        x_BxTxD = _layer_norm(x_BxTxD, self.final_norm[...])
        return partition.constrain(dense(x_BxTxD, self.embedding[...].T), mesh, partition.LOGITS)


def _normal(rngs: nnx.Rngs, shape: tuple[int, ...], stddev: float, dtype: jnp.dtype) -> nnx.Param:
    """Drawn flat and reshaped: XLA compiles 18 draws in 2.1 s of CPU time so, against 5.1 s with their own shapes."""
    return nnx.Param((stddev * jax.random.normal(rngs.params(), (math.prod(shape),), dtype)).reshape(shape))


def _causal_attention(q_BxTxHxK: jax.Array, k_BxTxHxK: jax.Array, v_BxTxHxK: jax.Array) -> jax.Array:
    """Scaled dot-product attention (arXiv:1706.03762), each position to itself and those before it.

    Written out because `jax.nn.dot_product_attention` computes its scores in float32 whatever the dtype.
    """
    length, head_width = q_BxTxHxK.shape[1], q_BxTxHxK.shape[3]
    scores_BxHxTxT = jnp.einsum("bthk,bshk->bhts", q_BxTxHxK, k_BxTxHxK) * head_width**-0.5
    is_past_TxT = jnp.tril(jnp.ones((length, length), bool))
    probabilities_BxHxTxT = jax.nn.softmax(jnp.where(is_past_TxT, scores_BxHxTxT, -jnp.inf))
    return jnp.einsum("bhts,bshk->bthk", probabilities_BxHxTxT, v_BxTxHxK)


def _layer_norm(x_BxTxD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """LayerNorm (arXiv:1607.06450) with a scale and no shift."""
    centred = x_BxTxD - x_BxTxD.mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * scale_D
