"""Lower bounds on epsilon from the scores of runs in two worlds that differ in one unit.

Three of them, and what each takes for granted:

* **No assumption.** At a threshold fixed in advance, false positives alpha and false negatives beta of any
  (epsilon, delta)-DP mechanism obey 1 - beta <= e^epsilon alpha + delta, and the same with the worlds
  exchanged. Both rates are bounded from above (Clopper and Pearson), together at the confidence stated.
* **The plan's own curve.** As before, but the two rates are compared with the whole trade-off curve of the
  plan, at the noise z that fits: the largest z at which some test of the plan's dominating pair is as good.
  For full batches that is Gaussian differential privacy (Nasr et al., arXiv 2302.07956), for sampled ones
  the curve that the accountant composed. A bound above the claim refutes the claimed curve, without
  assumption.
* **Mean difference.** Scores are taken to be normal, of equal variance in both worlds, which is estimated:
  the largest mu with P(T >= t) <= 5 % for T noncentral t with 2 n - 2 degrees of freedom (in general n1 +
  n2 - 2 and mu / sqrt(1/n1 + 1/n2)), and the exact Gaussian epsilon of mu. A test of normality goes with
  it.

Where the two upper bounds add up to more than 1 nothing is proven: the bound is then 0.

How many runs an audit does is a fixed amount of work, so that equal commands do equal work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

from fedsim.common.errors import Refused
from fedsim.common.serialise import finite
from fedsim.privacy import attainable, cost, gaussian
from fedsim.privacy.calibrate import Budget, noise_multipliers
from fedsim.privacy.convert import group_gaussian
from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.problems.network import NeuralNetwork
from fedsim.protocol.batch import WithReplacement
from fedsim.protocol.plan import Census
from fedsim.report.audit import AttainedPart
from fedsim.testing.attacks.setting import Setting

CONFIDENCE = 0.95
_SLOPES = (0.01, 0.1, 0.3, 1.0, 2.0, 4.0)
"""Epsilons at which the plan's curve is compared: the two rates are bounded once for all of them."""
_MOST_NOISE = 1e9
_NORMAL, _TESTED = 0.01, 20  # below this p-value, or with fewer of them, scores do not count as normal
_HAIR = 1e-6  # of a noncentrality: it is found to less than that


@dataclass(frozen=True)
class Claim:
    """A silo's guarantee: its plan's composition at n records, and (epsilon, delta).

    `shaped` says whether the promise has the trade-off curve of the plan's noise.
    """

    census: Census
    n: int
    epsilon: float
    delta: float
    shaped: bool = True


def claim_of(setting: Setting, silo: int) -> Claim:
    """The guarantee by which a setting's silo has admitted the plan."""
    admitted = setting.admitted[silo]
    terms, census = admitted.terms, setting.census(silo)
    shaped = setting.shaped and (setting.swapped == 1 or is_gaussian(census))
    return Claim(census, terms.n, admitted.epsilon_guaranteed, terms.delta, shaped)


def worth(claim: Claim, records: int) -> Claim:
    """A claim about one record, to so many of them that are swapped for as many at once.

    Exact where the plan is one Gaussian release; otherwise nothing is claimed at the same delta (infinity).
    """
    known = None
    if claim.shaped and is_gaussian(claim.census):
        known = group_gaussian(float(gaussian.mu(claim.epsilon, claim.delta)), claim.delta, records)
    return replace(claim, epsilon=math.inf if known is None else known.epsilon)


def bounds(first: np.ndarray, second: np.ndarray, claim: Claim) -> AttainedPart:
    """Lower bounds on epsilon at the claim's delta, from scores in the two worlds, larger in the second; the
    threshold is 0. Each holds by itself at `CONFIDENCE`. The one to quote is chosen by a rule that looks at
    the claim and at normality alone.
    """
    alpha, beta = rates(first, second, CONFIDENCE)
    normal, free = normality(first, second), assumption_free(alpha, beta, claim.delta)
    moved, curved = mean_difference(first, second, claim.delta, CONFIDENCE), curve(alpha, beta, claim)
    value, name = curved, "plan's curve"
    if not claim.shaped:
        value, name = free, "no assumption"
    elif is_gaussian(claim.census) and normal >= _NORMAL:
        value, name = moved, "mean difference"
    return AttainedPart(
        attained=value,
        estimator=name,
        runs=(len(first), len(second)),
        mean_difference=moved,
        plan_curve=curved,
        assumption_free=free,
        normality_p=normal,
        claimed=finite(claim.epsilon),
    )


def rates(first: np.ndarray, second: np.ndarray, confidence: float) -> tuple[float, float]:
    """Upper bounds on the rates of false positives and negatives at 0, that hold together (Bonferroni)."""
    return (
        _upper(int((first > 0).sum()), len(first), (1 + confidence) / 2),
        _upper(int((second <= 0).sum()), len(second), (1 + confidence) / 2),
    )


def _upper(errors: int, runs: int, confidence: float) -> float:
    """Clopper and Pearson's one-sided bound."""
    return 1.0 if errors >= runs else float(stats.beta.ppf(confidence, errors + 1, runs - errors))


def assumption_free(alpha: float, beta: float, delta: float) -> float:
    """The largest epsilon such that the rates rule out every smaller one, or 0."""
    pairs = ((alpha, beta), (beta, alpha))
    found = [math.log((1 - delta - miss) / alarm) for alarm, miss in pairs if 1 - delta - miss > alarm]
    return max(found, default=0.0)


def curve(alpha: float, beta: float, claim: Claim) -> float:
    """The epsilon of the plan at the largest noise whose trade-off curve is consistent with the rates.

    A pair of rates is consistent with noise z if 1 - e^s alpha - beta <= delta_z(s) for all s: if the plan
    costs at least s at that delta. Cost falls with z, so the z with cost s is the largest.
    """
    if not claim.shaped:
        return 0.0
    noise = min(_largest_noise(slope, 1 - math.exp(slope) * alpha - beta, claim) for slope in _SLOPES)
    if noise == math.inf:
        return 0.0
    gap = any(isinstance(release.batch, WithReplacement) for release, _ in claim.census)
    price = attainable.epsilon if gap else cost.epsilon  # a price that is not attained bounds nothing below
    return price(claim.census, claim.n, noise, claim.delta)


def _largest_noise(slope: float, delta: float, claim: Claim) -> float:
    if not 1e-9 < delta < 1:
        return math.inf
    try:
        (noise,) = noise_multipliers(claim.census, [Budget(claim.n, slope, delta)], _MOST_NOISE)
    except Refused:
        return math.inf
    return noise if noise > 0 else math.inf


def mean_difference(first: np.ndarray, second: np.ndarray, delta: float, confidence: float) -> float:
    """The Gaussian epsilon of the lower bound on mu."""
    if min(len(first), len(second)) < 2:
        return 0.0
    freedom = len(first) + len(second) - 2
    pooled = (len(first) * first.var() + len(second) * second.var()) / freedom
    scale = math.sqrt(1 / len(first) + 1 / len(second))
    if pooled <= 0:
        return 0.0
    t = float((second.mean() - first.mean()) / math.sqrt(pooled) / scale)
    noncentrality = float(special.nctdtrinc(freedom, confidence, t)) * (1 - _HAIR)
    return float(gaussian.epsilon(noncentrality * scale, delta)) if noncentrality > 0 else 0.0


def normality(first: np.ndarray, second: np.ndarray) -> float:
    """p-value of D'Agostino and Pearson's test, of skewness and kurtosis, of both worlds' centred scores."""
    scores = np.concatenate([first - first.mean(), second - second.mean()])
    return float(stats.normaltest(scores).pvalue) if len(scores) >= _TESTED and scores.std() > 0 else 0.0


def runs_needed(claim: Claim, gaussian_plan: bool, share: float = 0.92) -> int:
    """Runs a world at which an attack that attains the claim is bounded at `share` of it, nine times in ten.

    By the mean difference, whose bound lies (1.64 + 1.28) sqrt(2 / n) below mu then; at a fixed threshold six
    times as many give the same.
    """
    needed = 2 * (2.93 / ((1 - share) * float(gaussian.mu(claim.epsilon, claim.delta)))) ** 2
    return math.ceil(needed if gaussian_plan else 6 * needed)


def is_gaussian(census: Census) -> bool:
    """Whether the plan is one Gaussian release: every batch full, and no choice."""
    return all(release.kind == "full" for release, _ in census)


def proven(samples: Sequence[tuple[np.ndarray, np.ndarray]], claim: Claim, alarm: float) -> list[str]:
    """A line where runs prove the claim broken, with the lower bound; see `violated`."""
    above = violated(samples, claim, alarm)
    if above is None:
        return []
    claimed = shown_up(claim.epsilon)
    return [f"runs prove an epsilon of at least {shown_down(above)}, above the claimed {claimed}"]


def violated(samples: Sequence[tuple[np.ndarray, np.ndarray]], claim: Claim, alarm: float) -> float | None:
    """The largest bound without assumption, or by the plan's curve, that is above the claim; None if none is.
    `alarm` is the probability, for all samples together, that a true claim counts as broken.
    """
    found = []
    for first, second in samples:
        alpha, beta = rates(first, second, 1 - alarm / len(samples))
        found += [curve(alpha, beta, claim), assumption_free(alpha, beta, claim.delta)]
    worst = max(found, default=0.0)
    return worst if worst > claim.epsilon * (1 + 1e-6) else None


_OVERHEAD = 5e6  # of one answer of the gate, in multiplications
_MEMBER = 2e4  # of one member's part in it
_ADMITTED = 1e6  # of making a silo's gate
_SEARCH, _WORST, _HONEST = 1.5e10, 5e10, 3e10
"""Multiplications for the exact search, the malicious server's and the honest one's runs, over all silos."""
_LEAST_RUNS, _WORTH_IT, _MOST_HONEST = 25, 3000, 2000


def effort(
    setting: Setting, silos: Sequence[int], claims: dict[int, Claim], share: float = 1.0
) -> tuple[dict[str, int], dict[int, int], int]:
    """Enough runs to bound 0.9 of every claim, or as many as fit; `share` of that, and of the search: its
    broadcasts of each kind of round and records, the malicious server's runs in each world, by silo, and the
    honest one's.
    """
    every = range(len(setting.data))
    queries = [sum(len(ask.queries) for ask in asks) for asks in setting.resolved.trace.plan.rounds]
    one_round = sum(queries) / max(1, len(queries)) * sum(_work(setting, i) for i in every)
    answers = share * _SEARCH / (_OVERHEAD + one_round) / (len(silos) * len(setting.kinds))
    points = round(min(10.0, max(3.0, math.sqrt(answers / 4))))
    wanted = {i: max(_WORTH_IT, runs_needed(claims[i], is_gaussian(claims[i].census))) for i in silos}
    asked = {i: sum(queries[r] for r in setting.rounds(i)) for i in every}
    more = setting.together - 1  # silos that answer with the one that is attacked
    costs = {i: 2 * (asked[i] * (_MEMBER + _work(setting, i)) * (1 + more) + _ADMITTED * more) for i in silos}
    fits = share * min(1.0, _WORST / sum(wanted[i] * costs[i] for i in silos))
    honest = 2 * sum(asked[i] * (4 * _MEMBER + 3 * _work(setting, i, alone=True)) for i in every)
    search = {"points": points, "records": round(min(120.0, max(12.0, answers / points)))}
    worst = {i: max(_LEAST_RUNS, math.ceil(fits * wanted[i])) for i in silos}
    return search, worst, max(_LEAST_RUNS, int(share * min(_MOST_HONEST, _HONEST / honest)))


def _work(setting: Setting, silo: int, alone: bool = False) -> float:
    """Multiplications of one silo's clipped sum; a network's at points of its own takes a call of its own."""
    n, d = len(setting.data[silo][1]), setting.resolved.problem.dimension
    if isinstance(setting.resolved.problem, NeuralNetwork):
        return 6.0 * n * d + (3e6 if alone else 0)
    return 2.0 * n * d
