"""The network: pre-norm decoder blocks without biases, learned positions, output tied to the embedding.

Shapes: B rows, T positions, D width, H heads, K width of a head, F feed-forward width, V padded vocabulary. There are
no biases, so that none can be added once a shard. Written for whole arrays; the partitioner splits it (`partition`).
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from workloads.transformer import partition
from workloads.transformer.config import Config

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
        qkv_BxTx3xHxK = jnp.einsum("btd,dchk->btchk", x_BxTxD, self.qkv[...])
        q_BxTxHxK, k_BxTxHxK, v_BxTxHxK = (qkv_BxTx3xHxK[:, :, part] for part in range(3))
        y_BxTxHxK = jax.nn.dot_product_attention(q_BxTxHxK, k_BxTxHxK, v_BxTxHxK, is_causal=True)
        return jnp.einsum("bthk,hkd->btd", y_BxTxHxK, self.attention_out[...])

    def _feed_forward(self, x_BxTxD: jax.Array) -> jax.Array:
        h_BxTxF = jax.nn.gelu(jnp.einsum("btd,df->btf", x_BxTxD, self.ff_in[...]))
        return jnp.einsum("btf,fd->btd", h_BxTxF, self.ff_out[...])


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
        self.blocks = _stack(config, dtype, rngs)
        self.final_norm = nnx.Param(jnp.ones(config.width, dtype))

    def __call__(self, tokens_BxT: jax.Array, mesh: Mesh) -> jax.Array:
        """(B, T) int32 to (B, T, V) logits, of which those from `vocab_size` on belong to no character."""
        x_BxTxD = jnp.take(self.embedding[...], tokens_BxT, axis=0, mode="clip")
        x_BxTxD = partition.constrain(x_BxTxD + self.positions[...][: tokens_BxT.shape[1]], mesh, partition.RESIDUAL)
        x_BxTxD = _through(x_BxTxD, self.blocks, mesh)
        x_BxTxD = _layer_norm(x_BxTxD, self.final_norm[...])
        return partition.constrain(jnp.einsum("btd,vd->btv", x_BxTxD, self.embedding[...]), mesh, partition.LOGITS)


def _stack(config: Config, dtype: jnp.dtype, rngs: nnx.Rngs) -> Block:
    """All blocks as one, each parameter with a leading axis of layers: one layer's code is compiled, and not L."""

    @nnx.split_rngs(splits=config.num_layers)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(rngs: nnx.Rngs) -> Block:
        return Block(config, dtype, rngs)

    return make(rngs)


def _through(x_BxTxD: jax.Array, blocks: Block, mesh: Mesh) -> jax.Array:
    """Applies the stacked blocks in order."""
    import os
    if os.environ.get("UNROLL"):
        g, p = nnx.split(blocks)
        p = nnx.to_pure_dict(p)
        for l in range(4):
            x_BxTxD = nnx.merge(g, jax.tree.map(lambda a: a[l], p))(x_BxTxD, mesh)
        return x_BxTxD

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def apply(x_BxTxD: jax.Array, block: Block) -> jax.Array:
        return block(x_BxTxD, mesh)

    return apply(x_BxTxD, blocks)


def _normal(rngs: nnx.Rngs, shape: tuple[int, ...], stddev: float, dtype: jnp.dtype) -> nnx.Param:
    return nnx.Param(stddev * jax.random.normal(rngs.params(), shape, dtype))


def _layer_norm(x_BxTxD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """LayerNorm (arXiv:1607.06450) with a scale and no shift."""
    centred = x_BxTxD - x_BxTxD.mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * scale_D
