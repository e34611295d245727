"""Text from the model: one character after the other, from a sliding window of the context."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from workloads.compile_on_use import CompiledOnUse
from workloads.context import Context
from workloads.transformer import partition
from workloads.transformer.train import Trainer

PyTree = Any


def sampler(trainer: Trainer, context: Context) -> CompiledOnUse:
    """`generate` for a trainer's parameters, as `program(params, key, first_token)`."""
    program = jax.jit(functools.partial(generate, trainer), out_shardings=partition.copies(trainer.mesh))
    return CompiledOnUse(context, "sample", program)


def generate(trainer: Trainer, params: PyTree, key: jax.Array, first_token: jax.Array) -> jax.Array:
    """Draws `sample_length` characters at the configured temperature.

    The window is recomputed for each character (no cache of keys and values): plain, and fast enough for a sample.

    Args:
        trainer: network and mesh.
        params: its parameters.
        key: typed PRNG key; a character's draw depends on it and on the character's position alone.
        first_token: () int32, which the text begins with; not part of the result.

    Returns:
        (sample_length,) int32 tokens.
    """
    length, context = trainer.config.sample_length, trainer.config.context_length
    is_padding = jnp.arange(trainer.padded_vocab_size) >= trainer.vocab_size

    def body(index: jax.Array, text: jax.Array) -> jax.Array:
        start = jnp.maximum(0, index + 1 - context)  # what lies behind `index` in the window is masked by causality
        window = jax.lax.dynamic_slice(text, (start,), (context,))
        logits_1xTxV = trainer.logits(params, window[None])
        logits_V = partition.constrain(logits_1xTxV[0, index - start], trainer.mesh, partition.COPIES)
        logits_V = jnp.where(is_padding, -jnp.inf, logits_V / trainer.config.temperature)
        token = jax.random.categorical(jax.random.fold_in(key, index), logits_V)
        return text.at[index + 1].set(token.astype(jnp.int32))

    text = jnp.zeros(length + context, jnp.int32).at[0].set(first_token)
    return jax.lax.fori_loop(0, length, body, text)[1 : length + 1]
