"""Metrics of a two-class model from a noisy histogram of its scores, each with the noise's standard error.

The histogram counts records by their class and the bin of their predicted probability of class 1
(`silos.vault.scores.score_bins`), with independent noise of one known standard deviation s in each cell.
Every metric is a function f of the counts, and with f's gradient g the noise gives it the standard error

    s |g - mean(g)|

exactly where f is linear, else to first order (delta method). The mean comes off because the number of
records is public: what the counts add up to beyond it is noise, and is taken off all cells alike, the
least-squares estimate under that constraint. Cells may be negative and stay so, since cutting them at 0 would
move every sum upwards; a metric is cut to the range that it can have.

Binning is an error of its own, which more bins lessen: a bin's records count as spread evenly over it, and as
tied where they are ordered. Records that are elsewhere in their bins move a metric by `binning` at most.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_MOST = 0.1
_POINTS = 64  # of a bin, at which a record's value is averaged


class Estimate(NamedTuple):
    """A metric, and the standard error that the noise gives it: not that of having few records.

    NaN and infinity where it is unknown for a `reason`. `binning`: how far bins may move it at most.
    """

    value: float
    standard_error: float
    reason: str | None = None
    binning: float = 0.0

    @property
    def too_few(self) -> bool:
        """Whether there are too few records, for the noise on them, to say anything."""
        return not self.standard_error <= _MOST


def metrics(counts: npt.ArrayLike, noise: float, records: float, bound: float = 0.01) -> dict[str, Estimate]:
    """Accuracy at threshold 0.5, AUC, Brier score, log loss, expected calibration error; of class 1 the mean
    predicted probability and the observed share.

    Args:
        counts: (2, B) or (2 B,), class 0 first, bins ascending; B even. Of one silo or a sum.
        noise: s of a cell, >= 0.
        records: n, public: what the counts would add up to without noise.
        bound: b; for the log loss, probabilities are held to [b, 1 - b].
    """
    table = np.asarray(counts, float).reshape(2, -1)
    table = table + (records - table.sum()) / table.size
    points = (np.arange(table.shape[1])[:, None] + (np.arange(_POINTS) + 0.5) / _POINTS) / table.shape[1]
    of_label = np.stack([1 - points, points])  # (2, B, points)
    lowest, highest = -math.log(1 - bound), -math.log(bound)
    means = {
        "accuracy": (of_label > 0.5, (0.0, 1.0)),
        "brier": ((1 - of_label) ** 2, (0.0, 1.0)),
        "log_loss": (-np.log(of_label.clip(bound, 1 - bound)), (lowest, highest)),
        "mean_predicted_probability": (np.stack([points, points]), (0.0, 1.0)),
        "observed_share": (np.stack([0 * points, 0 * points + 1]), (0.0, 1.0)),
    }
    found = dict[str, Estimate]()
    for name, (values, limits) in means.items():
        g = values.mean(axis=2) / records
        hidden = np.abs(values / records - g[..., None]).max(axis=2) * table.clip(0)
        found[name] = _estimate(float(np.sum(g * table)), g, noise, *limits, float(np.sum(hidden)))
    return {**found, "auc": auc(table, noise), "calibration_error": _calibration_error(table, noise, records)}


def auc(table: Array, noise: float) -> Estimate:
    """ROC AUC of counts (2, B): of all pairs of a record of each class, the share in which that of class 1
    has the higher bin; a tie counts half. It is unknown, 0.5 +- infinity, where a class has no records.
    """
    zeros, ones = table
    totals = table.sum(axis=1)
    if min(totals) <= 0:
        return Estimate(0.5, math.inf)
    below = (np.cumsum(zeros) - zeros / 2) / totals[0]  # share of class 0 that a record of class 1 beats
    above = (totals[1] - np.cumsum(ones) + ones / 2) / totals[1]
    value = float(below @ ones / totals[1])
    gradient = np.stack([(above - value) / totals[0], (below - value) / totals[1]])
    tied = float(zeros.clip(0) @ ones.clip(0) / totals.prod())
    return _estimate(value, gradient, noise, 0.0, 1.0, tied / 2)


def _calibration_error(table: Array, noise: float, records: float) -> Estimate:
    """sum over bins of |records of class 1 - centre of the bin * records| / n (Guo et al., 2017).

    Noise lengthens every gap g: |x| of x = g + N(0, s^2) is too large on average. In its place stands
    |x| - 0.95 s e^(-(x / s)^2), whose mean is within s / 4 of |g| and whose root mean squared error is at
    most 1.21 s, for every g.
    """
    centre = (np.arange(table.shape[1]) + 0.5) / table.shape[1]
    gaps = (1 - centre) * table[1] - centre * table[0]
    spread = noise * np.sqrt((1 - centre) ** 2 + centre**2)
    noises = np.divide(gaps, spread, out=np.full_like(gaps, math.inf), where=spread > 0)
    lengths = np.abs(gaps) - 0.95 * spread * np.exp(-(noises**2))
    error = 1.21 * float(np.linalg.norm(spread))
    return Estimate(min(max(float(np.sum(lengths)) / records, 0.0), 1.0), error / records)


def _estimate(value: float, gradient: Array, noise: float, low: float, high: float, bins: float) -> Estimate:
    spread = noise * float(np.linalg.norm(gradient - gradient.mean()))
    return Estimate(min(max(value, low), high), spread, binning=bins)
