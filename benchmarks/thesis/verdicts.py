"""Whether a claimed ordering holds in the honest runs: holds, fails or undecided.

A claim is that d = error of one - factor x that of another + margin is at most 0 in every comparison (each
setting and epsilon that it speaks of), or on average over them. Errors are paired by trial, whose split of
the records both had; the interval of the mean of d is Student's t with trials - 1 degrees of freedom.

- holds: every comparison's 95 % interval lies at or below 0 (below, where the claim is `strict`). No
  correction for their number: to say wrongly that all hold, the test of one that does not must err, which
  it does with probability 0.025 at most (Berger, Technometrics 24, 1982, 295-300).
- fails: some comparison's interval lies above 0, at the level 1 - 0.05 / comparisons (Bonferroni), since one
  of them is enough.
- undecided: neither, or fewer than two trials.

Ties count for what is `never worse`: where both are the same in every trial the interval is [0, 0].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field
from scipy import stats

from benchmarks.thesis.trials import Curve, Floats, paired
from fedsim.common.section import Section

LEVEL = 0.95
Word = Literal["holds", "fails", "undecided"]


class Claim(Section):
    """A claim of the thesis, as a comparison of curves of one scenario's honest runs."""

    text: str = Field(description="in words")
    scenario: str
    less: str = Field(description="the algorithm whose error is claimed to be small")
    than: str | None = Field(None, description="the one that it is compared with; none: a level alone")
    than_private: bool = Field(
        True, description="whether that one is at the same epsilon, or without privacy"
    )
    factor: float = Field(1.0, description="of the other's error")
    margin: float = Field(0.0, description="added to the difference: less - factor than + margin <= 0")
    epsilons: tuple[float, ...] = Field((), description="those that it speaks of; none: all")
    average: bool = Field(False, description="whether it speaks of the mean over settings and epsilons")
    strict: bool = Field(True, description="whether a tie is not enough")


class Mean(NamedTuple):
    """A mean over trials with its interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    `deciding` is the comparison nearest to failing, or the one that fails most clearly, with its interval at
    the level that decides; None where nothing could be compared. `sides` counts comparisons whose 95 %
    intervals lie on the claimed side, on neither, and on the other.
    """

    word: Word
    deciding: tuple[str, Mean] | None
    sides: tuple[int, int, int] = (0, 0, 0)
    trials: int = 0


def interval(values: Floats, level: float = LEVEL) -> Mean:
    """Mean and Student's t interval of at least two values (trials,); of equal values, themselves."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    half = error * float(stats.t.ppf((1 + level) / 2, len(values) - 1))
    return Mean(mean, mean - half, mean + half)


def judge(differences: Mapping[str, Floats], strict: bool = True) -> Verdict:
    """The verdict on d <= 0 in every comparison, by what it is called; d of each trial (trials,).

    Undecided where a comparison lacks a trial that another has: a run that diverged must not flatter.
    """
    counts = {len(values) for values in differences.values()}
    if len(counts) != 1 or counts <= {0, 1}:
        return Verdict("undecided", None)
    each = {name: interval(values) for name, values in differences.items()}
    corrected = 1 - (1 - LEVEL) / len(each)
    wide = {name: interval(values, corrected) for name, values in differences.items()}
    right = [one.high < 0 or (one.high == 0 and not strict) for one in each.values()]
    wrong = [one.low > 0 for one in each.values()]
    sides = sum(right), len(each) - sum(right) - sum(wrong), sum(wrong)
    trials = min(map(len, differences.values()))
    worst = max(wide, key=lambda name: wide[name].low)
    if wide[worst].low > 0:
        return Verdict("fails", (worst, wide[worst]), sides, trials)
    nearest = max(each, key=lambda name: each[name].high)
    return Verdict("holds" if all(right) else "undecided", (nearest, each[nearest]), sides, trials)


def differences_of(claim: Claim, curves: Sequence[Curve]) -> dict[str, Floats]:
    """d of each trial in every comparison that the claim speaks of, by setting and epsilon."""
    found: dict[str, Floats] = {}
    for curve in (one for one in curves if one.private and one.name == claim.less):
        other = _other(claim, curve, curves)
        if claim.than is not None and other is None:
            continue
        for epsilon in sorted(e for e in curve.at if e is not None):
            if claim.epsilons and epsilon not in claim.epsilons:
                continue
            name = ", ".join(filter(None, [curve.setting, f"epsilon {epsilon:g}"]))
            found[name] = _difference(claim, curve, other, epsilon)
    return _averaged(found) if claim.average else found


def verdict(claim: Claim, curves: Sequence[Curve]) -> Verdict:
    """Of the claim, from the curves of its scenario's honest runs."""
    return judge(differences_of(claim, curves), claim.strict)


def _other(claim: Claim, curve: Curve, curves: Sequence[Curve]) -> Curve | None:
    key = curve.setting, claim.than, claim.than_private
    return next((one for one in curves if (one.setting, one.name, one.private) == key), None)


def _difference(claim: Claim, curve: Curve, other: Curve | None, epsilon: float) -> Floats:
    if other is None:
        return np.array(list(curve.at[epsilon].values())) + claim.margin
    beside = other.at.get(epsilon if claim.than_private else None, {})
    less, than = paired(curve.at[epsilon], beside)
    return less - claim.factor * than + claim.margin


def _averaged(found: Mapping[str, Floats]) -> dict[str, Floats]:
    """One comparison: each trial's mean, where every comparison has the same trials."""
    if len({len(values) for values in found.values()}) != 1:
        return {}
    return {f"mean of {len(found)} comparisons": np.mean(list(found.values()), axis=0)}
