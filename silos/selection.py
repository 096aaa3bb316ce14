"""Before tuning: each silo prices all candidates together, and sets the noise of every run and every score.

**Guarantee.** Silo i's records are divided into three parts: h that train candidates, h that score them,
and the rest, which the reported run uses (`fedsim.data.reserve`). For every i, the joint view of everything
that the silo releases to choose a setting *and* of the reported run with the chosen setting is (eps,
delta_i)-DP for replacing one of its records, with n_i fixed and public, for any behaviour of the server and
the other silos, and

    eps = max(epsilon_training, epsilon_scores, epsilon_guaranteed of the reported run) <= eps_i.

Why:

* *The division.* A silo permutes the positions of its records by a permutation drawn independently of their
  values. Fix it: the record that differs between neighbouring data sets is in one part, the same in both.
  The division is never changed, neither by candidate nor by repetition nor by trial.
* *Parallel composition.* Releases of the other two parts are then the same functions of equal records,
  noise that is independent of everything, and earlier releases: they are post-processing of what the first
  part released, in whatever order and however adaptively the three take turns. So the view costs what the
  differing part releases, at most the largest of the three. Averaging over permutations keeps the bound,
  since the hockey-stick divergence is jointly convex. All three are priced at one delta_i, that of the
  reported run, without which a maximum of epsilons would mean nothing.
* *Training part.* It answers every candidate's plan, once for each repetition, with one base multiplier and
  fresh noise each time: `fedsim.privacy.cost.compose_runs`, a sum. Nothing is saved because only one is
  chosen.
* *Scoring part.* It answers one count for each candidate and repetition (`silos.parts`): as many Gaussian
  releases of weight 1, mu^2 = (number of scores) / z^2. The models scored are releases of another part.
* *The choice* is a function of noisy scores and public numbers; a candidate that fails does so by noisy
  answers or public numbers. So the choice is free, and the reported run keeps within (eps_i, delta_i)
  whatever is chosen.
* *Test records* of the reported run come from the rest, and are used for nothing else.

* *Nothing is used once more.* `silos.parts` counts what is handed out, and refuses the next.

**Not covered**: a second selection, which adds to the first within its part of the records.
A silo that is absent from a candidate's rounds still scores its model, and pays for that.

As for every run, it is assumed that features are prepared without looking at other records: scaling by
statistics and principal components, which do look, are reported as not private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from fedsim.common.errors import Refused
from fedsim.privacy.calibrate import Budget, smallest_multipliers
from fedsim.privacy.cost import compose_runs
from fedsim.protocol.batch import FULL
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Census, Release

_SCORE: Census = ((Release(FULL, 1.0), 1),)


@dataclass(frozen=True)
class SelectionTerms:
    """What one silo brings to a selection.

    Args:
        name: the silo.
        half: h, records that train candidates, and as many that score them.
        epsilon: its budget, which each part may spend; infinity without a mechanism.
        delta: its delta.
    """

    name: str
    half: int
    epsilon: float
    delta: float


@dataclass(frozen=True)
class AdmittedSelection:
    """A silo's answer: z of every candidate's run, z of every score, and what each part costs."""

    terms: SelectionTerms
    noise_multiplier: float
    score_noise_multiplier: float
    epsilon_training: float
    epsilon_scores: float

    @property
    def epsilon(self) -> float:
        """Of all that is released in order to choose (module docstring)."""
        return max(self.epsilon_training, self.epsilon_scores)


def admit_selection(
    runs: Sequence[Sequence[Census]], silos: Sequence[SelectionTerms], limits: Limits
) -> list[AdmittedSelection]:
    """The smallest noise of each silo within whose budget all runs and scores are (module docstring).

    Args:
        runs: for each silo what it answers in each run, a candidate's repetition; a score follows each run.
        silos: in the same order.
        limits: the largest noise multiplier.

    Raises:
        Refused: names the silo that cannot afford it at the largest noise that it allows.
    """
    found = []
    for own, terms in zip(runs, silos, strict=True):
        if terms.epsilon == inf:
            found.append(AdmittedSelection(terms, 0.0, 0.0, inf, inf))
            continue
        budget = Budget(terms.half, terms.epsilon, terms.delta)
        try:
            training = _afford(tuple(own), budget, limits.max_noise_multiplier)
            scores = _afford((_SCORE,) * len(own), budget, limits.max_noise_multiplier)
        except Refused as refusal:
            raise Refused(f"silo {terms.name!r}, {len(own)} runs to choose from: {refusal}") from None
        found.append(AdmittedSelection(terms, training[0], scores[0], training[1], scores[1]))
    return found


@lru_cache(maxsize=64)  # silos are often alike
def _afford(censuses: tuple[Census, ...], budget: Budget, limit: float) -> tuple[float, float]:
    """(noise multiplier, its true cost)."""
    composition = compose_runs(censuses, budget.n)
    (z,) = smallest_multipliers({budget.n: composition}, [budget], limit)
    return z, composition.epsilon(z, budget.delta)
