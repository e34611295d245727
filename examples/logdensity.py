"""A log density of one's own: `spmd-launch submit independent-chains --set model=./examples/logdensity.py:logdensity`.

Brownlee's stack loss plant, 21 days: how much ammonia is lost, by air flow, water temperature and acid concentration.
A linear regression with flat priors on its weights and on the logarithm of the noise: the posterior of the weights is a
multivariate t around the least squares solution, with 17 degrees of freedom.
"""

import jax
import jax.numpy as jnp
import numpy as np

AIR_FLOW = [80, 80, 75, 62, 62, 62, 62, 62, 58, 58, 58, 58, 58, 58, 50, 50, 50, 50, 50, 56, 70]
WATER_TEMPERATURE = [27, 27, 25, 24, 22, 23, 24, 24, 23, 18, 18, 17, 18, 19, 18, 18, 19, 19, 20, 20, 20]
ACID_CONCENTRATION = [89, 88, 90, 87, 87, 87, 93, 93, 87, 80, 89, 88, 82, 93, 89, 86, 72, 79, 80, 82, 91]
STACK_LOSS = [42, 37, 37, 28, 18, 18, 19, 20, 15, 14, 14, 13, 11, 12, 8, 7, 8, 8, 9, 15, 15]

FEATURES = np.array([AIR_FLOW, WATER_TEMPERATURE, ACID_CONCENTRATION], np.float32).T  # (days, features)
LOSS = np.array(STACK_LOSS, np.float32)
MEAN = FEATURES.mean(axis=0)
# Columns that are orthogonal and of one length: one step size then suits all weights.
ORTHOGONAL, TRIANGULAR = np.linalg.qr((FEATURES - MEAN) / np.sqrt(len(LOSS)))
COLUMNS, TO_SLOPES = ORTHOGONAL * np.sqrt(len(LOSS)), np.linalg.inv(TRIANGULAR)


def logdensity(position):
    """Of a position, any tree of real arrays: {"weights": {"level": (), "columns": (3,)}, "log_variance": ()}."""
    weights, log_variance = position["weights"], position["log_variance"]
    expected = weights["level"] + COLUMNS @ weights["columns"]
    return jnp.sum(jax.scipy.stats.norm.logpdf(LOSS, expected, jnp.exp(log_variance / 2)))


def initial_position(key):
    """Where a chain starts, at random; its shapes are those of the position."""
    keys = jax.random.split(key, 3)
    weights = {"level": 15 + jax.random.normal(keys[0]), "columns": jax.random.normal(keys[1], (3,))}
    return {"weights": weights, "log_variance": 4 + jax.random.uniform(keys[2])}


def report(position):
    """What the results show; without it the position itself, as `weights.level` and so on."""
    slopes = TO_SLOPES @ position["weights"]["columns"]
    intercept = position["weights"]["level"] - jnp.dot(slopes, MEAN)
    return {"intercept": intercept, "slopes": slopes, "noise": jnp.exp(position["log_variance"] / 2)}


dims = {"slopes": ["feature"]}
coords = {"feature": ["air flow", "water temperature", "acid concentration"]}
