"""Input: labelled images (scikit-learn's digits, or an .npz file), and synthetic watch matrices."""

import zipfile
from typing import NamedTuple

import numpy as np

from workloads.errors import ConfigError

IMAGE_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


class LabelledImages(NamedTuple):
    """A classification data set on the host.

    Attributes:
        train_images: (examples, features), uint8.
        train_labels: (examples,), int32, 0 to num_classes - 1.
        test_images: (test examples, features), uint8.
        test_labels: (test examples,), int32.
        max_pixel: features are divided by it, so that they lie in [0, 1].
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    max_pixel: int

    @property
    def num_classes(self) -> int:
        return 1 + int(max(self.train_labels.max(), self.test_labels.max()))


class WatchMatrix(NamedTuple):
    """Who watched what, drawn from known factors.

    Attributes:
        watched: (users, movies), bool.
        held_out: (users, movies), bool; true for the entries (a tenth) that the model may not see.
        probability: (users, movies), float64; what `watched` was drawn with.
    """

    watched: np.ndarray
    held_out: np.ndarray
    probability: np.ndarray


def load_digits() -> LabelledImages:
    """scikit-learn's bundled 8 x 8 digits: 1,797 of them, every fifth one is for testing."""
    from sklearn import datasets  # takes a second; a job with its own data need not pay it

    images, labels = datasets.load_digits(return_X_y=True)
    is_test = np.arange(len(images)) % 5 == 0
    images, labels = images.astype(np.uint8), labels.astype(np.int32)
    return LabelledImages(images[~is_test], labels[~is_test], images[is_test], labels[is_test], max_pixel=16)


def load_npz(path: str) -> LabelledImages:
    """Reads labelled images, MNIST for one.

    Args:
        path: an .npz file with `train_images` (examples, ...) uint8, `train_labels` (examples,) whole numbers,
            `test_images` and `test_labels` likewise.

    Raises:
        ConfigError: not an .npz file, or arrays are missing, or not of that form.
    """
    if not zipfile.is_zipfile(path):
        raise ConfigError(f"data={path!r}: is no .npz file; it must hold the arrays {', '.join(IMAGE_ARRAYS)}")
    with np.load(path, allow_pickle=False) as arrays:
        missing = [name for name in IMAGE_ARRAYS if name not in arrays.files]
        if missing:
            raise ConfigError(
                f"data={path!r}: has no array {', '.join(missing)} (needed: {', '.join(IMAGE_ARRAYS)}; "
                f"it has: {', '.join(arrays.files) or 'none'})"
            )
        train_images, train_labels, test_images, test_labels = (arrays[name] for name in IMAGE_ARRAYS)
    _check_split(path, "train", train_images, train_labels)
    _check_split(path, "test", test_images, test_labels)
    if train_images.shape[1:] != test_images.shape[1:]:
        raise ConfigError(
            f"data={path!r}: train_images are {train_images.shape[1:]} each, test_images {test_images.shape[1:]}"
        )
    return LabelledImages(
        train_images.reshape(len(train_images), -1),
        train_labels.astype(np.int32),
        test_images.reshape(len(test_images), -1),
        test_labels.astype(np.int32),
        max_pixel=255,
    )


def _check_split(path: str, split: str, images: np.ndarray, labels: np.ndarray) -> None:
    if images.dtype != np.uint8 or images.ndim < 2 or not len(images):
        raise ConfigError(
            f"data={path!r}: {split}_images is {images.dtype}{images.shape}, must be uint8 (examples, ...) with "
            "at least one example"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1] or labels.min() < 0:
        raise ConfigError(
            f"data={path!r}: {split}_labels is {labels.dtype}{labels.shape}, must be whole numbers from 0, "
            f"one for each of {len(images)} {split}_images"
        )


def synthetic_watch_matrix(num_users: int, num_movies: int, rank: int) -> WatchMatrix:
    """Bernoulli draws from a product of standard normal factors; about a fifth is watched. Always the same.

    Args:
        num_users: rows.
        num_movies: columns.
        rank: number of factors.
    """
    generator = np.random.default_rng(0)
    user_factors = generator.standard_normal((num_users, rank))
    movie_factors = generator.standard_normal((num_movies, rank))
    probability = 1.0 / (1.0 + np.exp(2.0 - user_factors @ movie_factors.T))
    return WatchMatrix(
        watched=generator.random((num_users, num_movies)) < probability,
        held_out=generator.random((num_users, num_movies)) < 0.1,
        probability=probability,
    )
