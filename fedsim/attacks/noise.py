"""The noise itself: as much as is stated, in every answer anew.

A silo whose records all count as zero answers with noise alone, whatever the batch. So the variance of every
answer can be compared with the one that the plan was priced for, and answers with each other: noise that is
used twice would not show in any single answer, and the difference of the two has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from fedsim.attacks.search import Attack
from fedsim.attacks.setting import Setting
from fedsim.attacks.wiretap import Heard, Tap, Wiretap
from fedsim.attacks.worst import beside

_COORDINATES, _ANSWERS = 64, 300
_NUMBERS, _FEWEST, _LEAST, _MOST = 100_000, 128, 16, 1024
"""Numbers to measure the noise by, and how many clones say them."""


@dataclass(frozen=True)
class Measured:
    """Noise over what is stated, and what is wrong with it.

    Attributes:
        ratio: measured over stated standard deviation, of all answers together.
        repeated: the largest correlation between two answers' noise.
        faults: in words; empty unless chance would have it so with a probability below the alarm rate.
    """

    ratio: float
    repeated: float
    faults: tuple[str, ...]


def measure(setting: Setting, silo: int, chosen: Attack, alarm: float) -> Measured:
    """Measure the noise of clones of one silo over its plan, at the attack's broadcasts.

    Args:
        alarm: probability that right noise is called wrong.
    """
    return judged(_standardised(setting, silo, chosen), alarm)


def judged(noise: np.ndarray, alarm: float) -> Measured:
    """What is wrong with noise over its stated standard deviation, (answers, clones, coordinates)."""
    if not noise.size:
        return Measured(1.0, 0.0, ())
    answers, clones, _ = noise.shape
    own = noise.reshape(answers, -1)
    across = noise.transpose(1, 0, 2).reshape(clones, -1)
    ratios = np.sqrt((own**2).mean(1))
    least = int(ratios.argmin())
    chance = stats.chi2.cdf((own[least] ** 2).sum(), own.shape[1]) * answers
    faults = []
    if chance < alarm / 3:
        faults.append(f"answer {least} has {ratios[least]:.3g} times the noise that is stated")
    largest = max(_correlation(own), _correlation(across), key=lambda found: found[0] / found[1])
    if largest[0] > _threshold(alarm / 3, answers**2 + clones**2) * largest[1]:
        faults.append(f"the noise of two answers has correlation {largest[0]:.3g}")
    return Measured(float(np.sqrt((own**2).mean())), largest[0], tuple(faults))


def _threshold(alarm: float, pairs: int) -> float:
    return float(stats.norm.isf(alarm / (2 * pairs)))


def _correlation(rows: np.ndarray) -> tuple[float, float]:
    """The largest absolute correlation between two rows, and its standard deviation where there is none."""
    spread = 1 / math.sqrt(rows.shape[1])
    if len(rows) < 2:
        return 0.0, spread
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(length > 0, length, 1)
    products = np.abs(unit @ unit.T)
    np.fill_diagonal(products, 0)
    return float(products.max()), spread


def _standardised(setting: Setting, silo: int, chosen: Attack) -> np.ndarray:
    """Noise over its stated standard deviation, (answers, clones, coordinates)."""
    tap, terms = Tap(), setting.admitted[silo].terms
    silent = beside(setting, silo, "silent", chosen.first)
    clones = clones_of(setting, silo)
    streams = [f"noise/{silo}/{clone}" for clone in range(clones)]
    gate = setting.gate(Wiretap(setting.resolved.algorithm, tap), [silo] * clones, [silent] * clones, streams)
    by_round = {r: k for k, kind in enumerate(setting.kinds) for r in kind.rounds}
    rounds = [r for r in terms.rounds if r in by_round]
    found: list[np.ndarray] = []
    for r in rounds:
        gate.answer(r, chosen.broadcasts[by_round[r]])
        found += [row for heard in tap.take() for row in _over_stated(setting, silo, heard)]
        if len(found) >= _ANSWERS:
            break
    return np.stack(found) if found else np.empty((0, 0, 0))


def clones_of(setting: Setting, silo: int) -> int:
    """How many clones are listened to: enough for a noise level that is right to half a per cent."""
    answers = min(_ANSWERS, max(1, setting.admitted[silo].releases))
    coordinates = min(_COORDINATES, setting.resolved.problem.dimension)
    wanted = min(_MOST, max(_FEWEST, _NUMBERS // (answers * coordinates)))
    return max(_LEAST, wanted // setting.together)


def _over_stated(setting: Setting, silo: int, heard: Heard) -> list[np.ndarray]:
    admitted = setting.admitted[silo]
    rows = []
    for query, answer in zip(heard.queries, heard.answers, strict=True):
        sensitivity = (
            2 * torch.as_tensor(query.clip).double().reshape(-1, 1) / query.batch.size(admitted.terms.n)
        )
        sigma = query.noise_ratio * admitted.noise_multiplier * sensitivity
        if bool((sigma > 0).all()):
            rows.append((answer[:, :_COORDINATES].double() / sigma).numpy())
    return rows
