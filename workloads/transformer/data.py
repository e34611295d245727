"""Text as tokens, and batches that are a pure function of (seed, step).

Nothing is iterated, so nothing has to be checkpointed: the global batch of a step is the same on any number of
processes, and each process cuts only the rows that its devices hold.
"""

import dataclasses
import hashlib
import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from workloads.errors import ConfigError
from workloads.transformer import partition
from workloads.transformer.config import VOCAB_MULTIPLE, Config

VALIDATION_PART = 10  # the last tenth of the text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
    """An encoded text and its split.

    Attributes:
        vocabulary: the text's characters, sorted by code point; a token is an index into it.
        train: (N,) int32, the first 90 %.
        validation: (M,) int32, the rest.
        sha256: of the file's bytes.
    """

    vocabulary: str
    train: np.ndarray
    validation: np.ndarray
    sha256: str

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    def decode(self, tokens: np.ndarray) -> str:
        return "".join(self.vocabulary[token] for token in tokens)


def read_text(path: Path, context_length: int) -> Text:
    """Reads and encodes a UTF-8 file.

    Raises:
        ConfigError: it is not UTF-8, or too short for the context.
    """
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"data={path.name}: is not UTF-8 text ({error.reason} at byte {error.start})") from error
    codes, tokens = _tokens(np.frombuffer(text.encode("utf-32-le"), np.uint32))
    cut = len(tokens) * (VALIDATION_PART - 1) // VALIDATION_PART
    if len(tokens) - cut < context_length + 1:
        least = VALIDATION_PART * context_length + 1
        raise ConfigError(
            f"data={path.name}: has {len(tokens)} characters; context_length={context_length} needs {least}, "
            f"of which a tenth is for validation"
        )
    return Text(
        vocabulary="".join(map(chr, codes)),
        train=tokens[:cut],
        validation=tokens[cut:],
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _tokens(characters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The code points that occur, sorted, and for each character the index of its own: (V,) int64 and (N,) int32.

    By a table of all code points: `np.unique` sorts the text, half a second for a million characters.
    """
    token_of = np.zeros(sys.maxunicode + 1, np.int32)
    token_of[characters] = 1
    codes = np.flatnonzero(token_of)
    token_of[codes] = np.arange(len(codes))
    return codes, token_of[characters]


def train_starts(text: Text, config: Config, seed: int, step: int) -> np.ndarray:
    """Where each sequence of one step's global batch begins: (B,) int64, uniform over the training split."""
    generator = np.random.default_rng([seed % 2**64, step])
    return generator.integers(0, len(text.train) - config.context_length, config.batch_size)


def train_batches(text: Text, config: Config, seed: int, first_step: int, mesh: Mesh) -> jax.Array:
    """The global batches of `steps_per_dispatch` steps from `first_step` on, rows split over the data axis.

    Returns:
        (K, B, T + 1) int32: `[..., :-1]` are the inputs, `[..., 1:]` their targets.
    """
    steps = range(first_step, first_step + config.steps_per_dispatch)
    starts_KxB = np.stack([train_starts(text, config, seed, step) for step in steps])
    return _windows(text.train, starts_KxB, config.context_length, mesh)


def validation_batches(text: Text, config: Config, mesh: Mesh) -> tuple[jax.Array, jax.Array]:
    """Windows spread evenly over the validation split, none overlapping another's targets.

    Returns:
        (K, B, T + 1) int32 windows, and (K, B, T) float32 weights: 0 in windows beyond the end of a short split.
    """
    shape = (config.eval_batches, config.batch_size)
    length = config.context_length
    last = len(text.validation) - length - 1
    stride = max(length, last // max(1, shape[0] * shape[1] - 1))
    starts = (stride * np.arange(shape[0] * shape[1])).reshape(shape)
    inside = starts <= last
    windows = _windows(text.validation, np.where(inside, starts, 0), length, mesh)
    weights = np.broadcast_to(inside[..., None], (*shape, length)).astype(np.float32)
    sharding = NamedSharding(mesh, partition.BATCHES)
    return windows, jax.make_array_from_callback(weights.shape, sharding, lambda index: weights[index])


def _windows(tokens: np.ndarray, starts_KxB: np.ndarray, length: int, mesh: Mesh) -> jax.Array:
    """Cuts (K, B, length + 1) windows; of the rows, only those that this process holds."""
    offsets = np.arange(length + 1)

    def piece(index: tuple[slice, ...]) -> np.ndarray:
        return tokens[starts_KxB[index[:2]][..., None] + offsets]

    shape = (*starts_KxB.shape, length + 1)
    return jax.make_array_from_callback(shape, NamedSharding(mesh, partition.BATCHES), piece)
