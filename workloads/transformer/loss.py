"""Cross entropy, z-loss and accuracy of logits whose vocabulary may be split over devices.

Every reduction over the vocabulary is a maximum, a minimum or a sum, which the partitioner turns into one small
all-reduce each; a gather of the target's logit or an argmax would first collect all logits on every device.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class TokenSums(NamedTuple):
    """Sums over unmasked tokens; divide by `count` for means. Scalars of the logits' dtype."""

    cross_entropy: jax.Array
    squared_log_z: jax.Array
    correct: jax.Array
    count: jax.Array


def token_sums(logits_BxTxV: jax.Array, targets_BxT: jax.Array, weights_BxT: jax.Array, vocab_size: int) -> TokenSums:
    """Cross entropy, squared log-normalizer and correct predictions, summed over the tokens of weight 1.

    The z-loss is that of PaLM (arXiv:2204.02311, section 5): `log(Z)^2` with `log Z = max + log sum exp(l - max)`;
    without the maximum it would keep no logit small. Of equal logits the lowest index is predicted.

    Args:
        logits_BxTxV: floating point; entries from `vocab_size` on are padding and take part in nothing.
        targets_BxT: whole numbers below `vocab_size`.
        weights_BxT: 1 for tokens that count, 0 for masked ones.
        vocab_size: the number of characters.
    """
    characters_V = jnp.arange(logits_BxTxV.shape[-1])
    logits = jnp.where(characters_V < vocab_size, logits_BxTxV, jnp.finfo(logits_BxTxV.dtype).min)
    highest_BxTx1 = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    log_z_BxT = highest_BxTx1[..., 0] + jnp.log(jnp.exp(logits - highest_BxTx1).sum(axis=-1))
    is_target = characters_V == targets_BxT[..., None]
    target_logit_BxT = jnp.where(is_target, logits, 0).sum(axis=-1)
    predicted_BxT = jnp.where(logits == highest_BxTx1, characters_V, logits.shape[-1]).min(axis=-1)
    weights = weights_BxT.astype(logits.dtype)
    return TokenSums(
        cross_entropy=(weights * (log_z_BxT - target_logit_BxT)).sum(),
        squared_log_z=(weights * log_z_BxT**2).sum(),
        correct=(weights * (predicted_BxT == targets_BxT)).sum(),
        count=weights.sum(),
    )
