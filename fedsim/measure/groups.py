"""How far predictions differ between groups of test records; NaN where the records do not say.

Of two classes the rates are those of class 1; of several, a gap is the largest over the classes, each against
the rest. A record without a group counts nowhere. A declared group without records, or without those of the
label that a rate needs, has no such rate, and the gap is unknown.

Where groups differ in their shares of label 1, equal rates of positives make unequal errors: one gap may rise
while another falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.common.serialise import finite
from fedsim.data.source import Floats, Ints


@dataclass(frozen=True, eq=False)
class ByGroup:
    """Sums over the records of R groups, of C classes, each with its weight."""

    counts: Floats  # weights of records by [group, label, predicted class], (R, C, C)
    probabilities: Floats | None  # predicted, by [group, class], (R, C); None where the problem gives none

    @classmethod
    def of(
        cls, codes: Sequence[Ints], probability: Floats | None, shape: Sequence[int], weight: Floats | None
    ) -> ByGroup:
        """From groups (-1: none), targets and predictions (n,), probabilities (n, C); `shape` is (R, C)."""
        (groups, target, predicted), (count, classes) = codes, shape
        known = groups >= 0
        cell = ((groups * classes + target) * classes + predicted)[known]
        own = np.ones(len(cell)) if weight is None else weight[known]
        counts = np.bincount(cell, own, count * classes**2).reshape(count, classes, classes)
        sums = None
        if probability is not None:
            sums = np.zeros((count, classes))
            for k in range(classes):
                sums[:, k] = np.bincount(groups[known], probability[known, k] * own, count)
        return cls(counts.astype(np.float64), sums)

    @property
    def records(self) -> Floats:
        """(R,)."""
        total: Floats = self.counts.sum(axis=(1, 2))
        return total

    @property
    def errors(self) -> Floats:
        """Shares of records that are predicted wrongly, (R,)."""
        return _share(self.records - np.trace(self.counts, axis1=1, axis2=2), self.records)

    @property
    def rates(self) -> Floats:
        """Shares of records that are predicted to be of class 1 of two, of each of several, (R, classes)."""
        return _share(_asked(self.counts.sum(axis=1)), self.records[:, None])

    def rows(self, names: Sequence[str]) -> list[tuple[str, int, int, float | None, float | None]]:
        """(group, class of the rate, records, rate, error), of every group and class that `rates` have."""
        classes = self.counts.shape[1]
        return [
            (name, label, int(records), finite(rate), finite(error))
            for name, records, rates, error in zip(names, self.records, self.rates, self.errors, strict=True)
            for label, rate in zip(range(classes == 2, classes), rates.tolist(), strict=True)
        ]

    @property
    def parity_gap(self) -> float:
        """The largest rate less the smallest (demographic parity difference)."""
        return _gap(self.rates)

    @property
    def parity_linf(self) -> float:
        """The largest distance of a rate from that of all records with a group (thesis, equation 6.2)."""
        overall = _share(_asked(self.counts.sum(axis=(0, 1))), self.records.sum())
        return float(np.abs(self.rates - overall).max())

    @property
    def opportunity_gap(self) -> float:
        """The gap of true positive rates (equal opportunity; Hardt, Price and Srebro, 2016)."""
        hits = np.diagonal(self.counts, axis1=1, axis2=2)
        return _gap(_asked(_share(hits, self.counts.sum(axis=2))))

    @property
    def odds_gap(self) -> float:
        """The larger of the gaps of true and of false positive rates (equalized odds difference)."""
        alarms = self.counts.sum(axis=1) - np.diagonal(self.counts, axis1=1, axis2=2)
        others = self.records[:, None] - self.counts.sum(axis=2)
        return float(np.maximum(self.opportunity_gap, _gap(_asked(_share(alarms, others)))))

    @property
    def ermi(self) -> float | None:
        """ERMI of the predicted probabilities (thesis, chapter 5); None where there are none."""
        return None if self.probabilities is None else _chi_squared(self.probabilities)

    @property
    def ermi_hard(self) -> float:
        """The same of predicted classes: of two and two groups it is the squared correlation."""
        return _chi_squared(self.counts.sum(axis=1))


def _asked(columns: Floats) -> Floats:
    """Of the last axis, class 1 of two or all of several."""
    return columns[..., 1:] if columns.shape[-1] == 2 else columns


def _share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


def _gap(rates: Floats) -> float:
    return float(np.ptp(rates, axis=0).max())


def _chi_squared(sums: Floats) -> float:
    """sum_{r,j} p(r, j)^2 / (p_r p_j) - 1 of sums (R, C): chi-squared over n; NaN where a group is empty."""
    if not sums.sum(axis=1).all():
        return np.nan
    joint = sums[:, sums.sum(axis=0) > 0] / sums.sum()
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
    return float(((joint - apart) ** 2 / apart).sum())  # the same, without cancellation
