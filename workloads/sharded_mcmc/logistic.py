"""Bayesian multinomial logistic regression with its examples sharded over the mesh.

The model of TFP's guide "Distributed inference with JAX": standard normal priors on weights and biases. The log
density is written as for one device; the compiler splits the product over the examples and inserts the sums.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from tensorflow_probability.substrates.jax import distributions as tfd

from workloads.sharded_mcmc.datasets import LabelledImages
from workloads.sharded_mcmc.model import Array, Model, Position, float_dtype
from workloads.sharded_mcmc.placement import DATA_AXIS, P, padded_rows, shard_row_mask, shard_rows


class Examples(NamedTuple):
    """Examples on the devices, sharded along axis 0.

    Attributes:
        features: (padded examples, features), floating.
        labels: (padded examples,), int32.
        is_real: (padded examples,), bool; false for padding.
    """

    features: jax.Array
    labels: jax.Array
    is_real: jax.Array


class Split(NamedTuple):
    """Training and test examples."""

    train: Examples
    test: Examples


def logistic_model(images: LabelledImages, mesh: Mesh, num_examples: int | None = None) -> Model:
    """Places the data and describes the posterior.

    Args:
        images: on the host, equal on all processes.
        mesh: with the axis `data`.
        num_examples: use only the first so many training examples.
    """
    split = Split(
        train=_place(images.train_images[:num_examples], images.train_labels[:num_examples], images.max_pixel, mesh),
        test=_place(images.test_images, images.test_labels, images.max_pixel, mesh),
    )
    num_features, num_classes, num_test = images.train_images.shape[1], images.num_classes, len(images.test_labels)
    return Model(
        name="logistic",
        parts={
            "weights": Array.replicated(feature=num_features, label=num_classes),
            "biases": Array.replicated(label=num_classes),
        },
        identified=("weights", "biases"),
        prediction=Array(
            dims=("example", "label"),
            shape=(num_test, num_classes),
            placed_shape=(padded_rows(num_test, mesh), num_classes),
            spec=P(DATA_AXIS),
        ),
        data=split,
        log_density=log_density,
        predict=lambda position, data: jax.nn.softmax(logits(position, data.test.features)),
        score=lambda probabilities, data: {"test_accuracy": accuracy(probabilities, data.test)},
        assess=lambda probabilities: {},
        outcomes=lambda probabilities: (
            probabilities.ravel(),
            (images.test_labels[:, None] == np.arange(num_classes)).ravel(),
        ),
    )


def log_density(position: Position, data: Split) -> jax.Array:
    """Log prior and log likelihood of the training examples: a scalar.

    Args:
        position: `weights` (features, classes) and `biases` (classes,).
        data: see `Split`.
    """
    standard_normal = tfd.Normal(jnp.zeros((), float_dtype()), 1.0)
    log_prior = sum(standard_normal.log_prob(part).sum() for part in position.values())
    train = data.train
    log_likelihood = tfd.Categorical(logits=logits(position, train.features)).log_prob(train.labels)
    return log_prior + jnp.where(train.is_real, log_likelihood, 0.0).sum()


def logits(position: Position, features: jax.Array) -> jax.Array:
    """(examples, features) to (examples, classes)."""
    return features @ position["weights"] + position["biases"]


def accuracy(probabilities: jax.Array, examples: Examples) -> jax.Array:
    """Fraction of the real examples whose label is the most probable class (the lowest of equals): a scalar.

    Args:
        probabilities: (padded examples, classes).
        examples: see `Examples`.
    """
    is_right = (jnp.argmax(probabilities, axis=-1) == examples.labels) & examples.is_real
    return is_right.sum() / examples.is_real.sum()


def _place(images: np.ndarray, labels: np.ndarray, max_pixel: int, mesh: Mesh) -> Examples:
    dtype = np.dtype(float_dtype())
    return Examples(
        features=shard_rows(images, mesh, lambda rows: rows.astype(dtype) / dtype.type(max_pixel)),
        labels=shard_rows(labels, mesh),
        is_real=shard_row_mask(len(images), mesh),
    )
