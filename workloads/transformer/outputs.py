"""What the training leaves behind: curves as CSV and PNG, the sample, and the memory table."""

import contextlib
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workloads.agreement.program import Program
from workloads.context import Context

Curves = Mapping[str, np.ndarray]

TRAIN_COLOUR, VALIDATION_COLOUR = "#9ecae1", "#d94801"
MEAN_COLOUR = "#2171b5"


def write_curves(folder: Path, train: Curves, validation: Curves) -> Path:
    """One row a step; the validation's columns are empty where there was none.

    Args:
        folder: it exists.
        train: `loss` and `accuracy`, each (steps,), row 0 being step 1.
        validation: `step`, `loss` and `accuracy`, each (validations,).
    """
    found = {
        int(step): (f"{loss:.9g}", f"{accuracy:.9g}")
        for step, loss, accuracy in zip(*(validation[name] for name in ("step", "loss", "accuracy")), strict=True)
    }
    path = folder / "curves.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "train_loss", "train_accuracy", "val_loss", "val_accuracy"])
        for row, (loss, accuracy) in enumerate(zip(train["loss"], train["accuracy"], strict=True), start=1):
            writer.writerow([row, f"{loss:.9g}", f"{accuracy:.9g}", *found.get(row, ("", ""))])
    return path


def plot_curves(folder: Path, train: Curves, validation: Curves) -> list[Path]:
    """Loss and token accuracy over the steps, one PNG each."""
    words = {"loss": "cross entropy / nats per character", "accuracy": "token accuracy"}
    return [_plot(folder / f"{name}.png", name, label, train, validation) for name, label in words.items()]


def _plot(path: Path, name: str, label: str, train: Curves, validation: Curves) -> Path:
    figure = Figure(figsize=(7, 4.2), layout="constrained", dpi=120)
    axes: Axes = figure.subplots()
    steps = np.arange(1, len(train[name]) + 1)
    axes.plot(steps, train[name], color=TRAIN_COLOUR, linewidth=0.8, label="training, each step")
    window = max(1, len(steps) // 20)
    if window > 1:
        mean = np.convolve(train[name], np.full(window, 1 / window), mode="valid")
        middle = np.arange(len(mean)) + (window + 1) / 2
        axes.plot(middle, mean, color=MEAN_COLOUR, label=f"training, mean of {window} steps")
    axes.plot(validation["step"], validation[name], "o-", color=VALIDATION_COLOUR, markersize=4, label="validation")
    last = validation[name][-1]
    axes.annotate(
        f"{last:.3f}",
        (validation["step"][-1], last),
        xytext=(4, 6),
        textcoords="offset points",
        color=VALIDATION_COLOUR,
        annotation_clip=False,
    )
    axes.set(xlabel="step", ylabel=label, xlim=(0, len(steps) * 1.06))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)
    return path


def memory_table(context: Context, state: Mapping[str, Any], program: Program) -> list[dict[str, Any]]:
    """Bytes on every device of every host; every rank must call it.

    Returns:
        A row a device, in the order of the ranks: `host`, `device`, `params` and `opt` (their shards), `live` (all
        arrays), `temporary` (the training program's scratch space, from the compiler) and `peak` (None on CPU).
    """
    temporary = program.compiled.memory_analysis().temp_size_in_bytes
    shares = {name: bytes_by_device(jax.tree.leaves(state[name])) for name in ("params", "opt")}
    live = bytes_by_device(jax.live_arrays())
    rows = [
        {
            "host": context.host,
            "device": str(device),
            **{name: share.get(device, 0) for name, share in shares.items()},
            "live": live.get(device, 0),
            "temporary": temporary,
            "peak": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        }
        for device in jax.local_devices()
    ]
    return [row for rows in context.exchange.all_gather("memory", rows) for row in rows]


def bytes_by_device(arrays: Sequence[jax.Array]) -> dict[jax.Device, int]:
    """Each buffer once: looking at an array's shards makes further arrays of the same buffers.

    What was deleted since it was listed is not counted: a checkpoint that has failed leaves copies to its own thread.
    Each is waited for first: asked for the address of one that is not ready, JAX waits with Python's lock held, and a
    rank that waits for another would be silent, and deaf to its lease.
    """
    seen: set[tuple[jax.Device, int]] = set()
    total: dict[jax.Device, int] = {}
    for array in arrays:
        with contextlib.suppress(RuntimeError):
            for shard in array.block_until_ready().addressable_shards:
                buffer = (shard.device, shard.data.unsafe_buffer_pointer())
                if buffer not in seen:
                    seen.add(buffer)
                    total[shard.device] = total.get(shard.device, 0) + shard.data.nbytes
    return total
