"""The plot of this workload alone: how the averaged prediction compares with what happened."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

NUM_BINS = 10


def plot_calibration(path: Path, probabilities: np.ndarray, happened: np.ndarray) -> None:
    """How often what was predicted with some probability came true, with the number of predictions below.

    Args:
        path: file to write, `.png`.
        probabilities: (predictions,), of the Bayesian model average.
        happened: (predictions,), bool.
    """
    which = np.minimum((probabilities * NUM_BINS).astype(int), NUM_BINS - 1)
    counts = np.bincount(which, minlength=NUM_BINS)
    filled = counts > 0
    predicted = np.bincount(which, probabilities, minlength=NUM_BINS)[filled] / counts[filled]
    observed = np.bincount(which, happened, minlength=NUM_BINS)[filled] / counts[filled]
    error = np.sqrt(observed * (1.0 - observed) / counts[filled])

    figure = Figure(figsize=(5.0, 6.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot([0, 1], [0, 1], color="0.7", linewidth=1.0, label="perfect calibration")
    above.errorbar(predicted, observed, yerr=error, marker="o", markersize=4, linewidth=1.0, label="held-out data")
    above.set_ylabel("observed frequency")
    above.set_title("calibration of the Bayesian model average", fontsize=10, loc="left")
    above.legend(fontsize=8)
    above.grid(alpha=0.3)
    below.bar((np.arange(NUM_BINS) + 0.5) / NUM_BINS, counts, width=0.9 / NUM_BINS, color="0.6")
    below.set_yscale("log")
    below.yaxis.set_minor_formatter(NullFormatter())
    below.set_ylabel("predictions")
    below.set_xlabel("predicted probability")
    figure.savefig(path, dpi=120)
