"""Bernoulli matrix factorisation: who watched what, from user factors that are sharded and movie factors that are not.

The model of TFP's MovieLens guide with an intercept: `watched[u, m] ~ Bernoulli(sigmoid(intercept + user_factors[u] .
movie_factors[m]))`, standard normal priors on all factors. A user's factors lie on the device that holds the user's
row of the matrix: sampled state, momenta and gradients are sharded, and the accept decision still is one for all.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from tensorflow_probability.substrates.jax import distributions as tfd

from workloads.sharded_mcmc.datasets import WatchMatrix
from workloads.sharded_mcmc.model import Array, Model, Position, float_dtype
from workloads.sharded_mcmc.placement import DATA_AXIS, P, padded_rows, shard_row_mask, shard_rows


class Ratings(NamedTuple):
    """The watch matrix on the devices, sharded along axis 0.

    Attributes:
        watched: (padded users, movies), bool.
        is_seen: (padded users, movies), bool; what the model learns from.
        is_held_out: (padded users, movies), bool; what it is tested on.
        is_real: (padded users,), bool; false for padding.
    """

    watched: jax.Array
    is_seen: jax.Array
    is_held_out: jax.Array
    is_real: jax.Array


def matrix_factorization_model(matrix: WatchMatrix, rank: int, mesh: Mesh) -> Model:
    """Places the watch matrix and describes the posterior.

    Args:
        matrix: on the host, equal on all processes.
        rank: number of factors.
        mesh: with the axis `data`.
    """
    num_users, num_movies = matrix.watched.shape
    num_rows = padded_rows(num_users, mesh)
    return Model(
        name="matrix-factorization",
        parts={
            "user_factors": Array(
                dims=("user", "rank"), shape=(num_users, rank), placed_shape=(num_rows, rank), spec=P(DATA_AXIS)
            ),
            "movie_factors": Array.replicated(movie=num_movies, rank=rank),
            "intercept": Array.replicated(),
        },
        identified=("intercept",),
        prediction=Array(
            dims=("user", "movie"),
            shape=(num_users, num_movies),
            placed_shape=(num_rows, num_movies),
            spec=P(DATA_AXIS),
        ),
        data=Ratings(
            watched=shard_rows(matrix.watched, mesh),
            is_seen=shard_rows(~matrix.held_out, mesh) & shard_row_mask(num_users, mesh)[:, None],
            is_held_out=shard_rows(matrix.held_out, mesh),
            is_real=shard_row_mask(num_users, mesh),
        ),
        log_density=log_density,
        predict=lambda position, data: jax.nn.sigmoid(logits(position, data)),
        score=lambda probabilities, data: {"held_out_log_loss": held_out_log_loss(probabilities, data)},
        assess=lambda probabilities: assess(probabilities, matrix),
        outcomes=lambda probabilities: (probabilities[matrix.held_out], matrix.watched[matrix.held_out]),
    )


def log_density(position: Position, data: Ratings) -> jax.Array:
    """Log prior and log likelihood of the seen entries: a scalar.

    Padded users enter neither, so the posterior, and the real users' draws, do not depend on the padding.

    Args:
        position: `user_factors` (padded users, rank), `movie_factors` (movies, rank) and `intercept` ().
        data: see `Ratings`.
    """
    standard_normal = tfd.Normal(jnp.zeros((), float_dtype()), 1.0)
    users = standard_normal.log_prob(position["user_factors"])
    log_prior = jnp.where(data.is_real[:, None], users, 0.0).sum()
    log_prior += standard_normal.log_prob(position["movie_factors"]).sum()
    log_prior += standard_normal.log_prob(position["intercept"])
    log_likelihood = tfd.Bernoulli(logits=logits(position, data)).log_prob(data.watched)
    return log_prior + jnp.where(data.is_seen, log_likelihood, 0.0).sum()


def logits(position: Position, data: Ratings) -> jax.Array:
    """(padded users, movies); those of padded users are the intercept."""
    user_factors = jnp.where(data.is_real[:, None], position["user_factors"], 0.0)
    return position["intercept"] + user_factors @ position["movie_factors"].T


def held_out_log_loss(probabilities: jax.Array, data: Ratings) -> jax.Array:
    """Mean negative log likelihood of the held-out entries, in nats: a scalar.

    Args:
        probabilities: (padded users, movies).
        data: see `Ratings`.
    """
    log_likelihood = tfd.Bernoulli(probs=probabilities).log_prob(data.watched)
    return -jnp.where(data.is_held_out, log_likelihood, 0.0).sum() / data.is_held_out.sum()


def assess(probabilities: np.ndarray, matrix: WatchMatrix) -> dict[str, float]:
    """How the averaged prediction ranks held-out entries, and how close it comes to the truth.

    Args:
        probabilities: (users, movies).
        matrix: see `WatchMatrix`; its `probability` is the best that any prediction can do.
    """
    watched, held_out = matrix.watched, matrix.held_out
    truth = matrix.probability[held_out]
    return {
        "held_out_auc": area_under_curve(probabilities[held_out], watched[held_out]),
        "held_out_auc_of_truth": area_under_curve(truth, watched[held_out]),
        "held_out_log_loss_of_truth": float(-np.log(np.where(watched[held_out], truth, 1.0 - truth)).mean()),
        "held_out_rmse_to_truth": float(np.sqrt(np.mean((probabilities[held_out] - truth) ** 2))),
    }


def area_under_curve(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """Probability that a positive scores above a negative, ties counting half; NaN without one of each.

    Args:
        scores: (entries,), floating.
        is_positive: (entries,), bool.
    """
    ordered, rank_of = np.unique(scores, return_inverse=True)
    negatives = np.bincount(rank_of[~is_positive], minlength=len(ordered))
    below = np.cumsum(negatives) - negatives
    wins = (below + 0.5 * negatives)[rank_of[is_positive]].sum()
    pairs = is_positive.sum() * (~is_positive).sum()
    return float(wins / pairs) if pairs else float("nan")
