"""The privacy accountant: the one place that states and computes what a plan costs.

**Guarantee.** `epsilon(census, n, z, delta)` returns eps such that the transcript of a silo that answers
the census with base noise multiplier z is (eps, delta)-DP, for any behaviour of the server and of the
other silos (each release may depend on all earlier ones).

* *Unit and adjacency.* One of n units (`fedsim.protocol.unit`), whose records are one term.
  Neighbouring data sets replace one unit, and n is fixed and public; or they have one more or fewer
  (`Release.removed` for Poisson batches), and n is a public number in its place.
* *Sensitivity.* z = sigma / (L2 sensitivity). A clipped mean over K units has sensitivity 2C/K; a
  Poisson sum over its public divisor q n has 2C/(q n); half of it where a unit is added or removed. A release
  of weight a has mu = a / z.
* *Full.* Gaussian of mu, exactly; mu^2 adds.
* *Fresh.* The batches are disjoint, chosen by a secret permutation that is the same in neighbouring data
  sets. Given the permutation, the record that differs is in one batch at most and meets one Gaussian
  release, of at most the largest mu; averaging over permutations keeps the bound, since the hockey-stick
  divergence is jointly convex (parallel composition). A census that needs more
  than n records has no disjoint batches: refused.
* *Part.* As Fresh, but a batch may be asked for many times: given the permutation, the record that differs
  is in one part at most, whose releases compose adaptively. mu^2 adds within a part, and the largest part
  counts. A census whose parts overlap, or that has Fresh batches too, is refused
  (`protocol.batch.check_parts`).
* *Subsample.* K-subset without replacement, q = K/n: h'(eps') = q h(eps; mu) with
  eps' = ln(1 + q (e^eps - 1)) (`pairs.SubsampledPair`).
* *WithReplacement.* K draws; a record drawn j times moves the sum by up to 2 C j. With
  eta = 1 - (1 - 1/n)^K: h'(eps') = sum_j Binom(K, 1/n)(j) h(eps; j mu), eps' = ln(1 + eta (e^eps - 1))
  (`pairs.WithReplacementPair`). `attainable` has a lower bound for comparison.
* *Poisson.* (1-q) N(0) + q N(C) against (1-q) N(0) + q N(-C) (`pairs.PoissonPair`). Where a unit is added
  or removed: (1-q) N(0) + q N(C) against N(0), in both orders (`pairs.AddRemovePair`).
* *Choices* by the exponential mechanism, of every record (`exponential.ChoicePair`). The commonest are
  composed in turn, as if after all else, and others one by one: a release of which a pair is known costs no
  less before a choice that may depend on it.
* *Mixed.* mu^2 = sum over Full + max over Fresh batches or parts is one Gaussian pair, composed with the
  others.

Without sampling the number is the exact Gaussian epsilon, rounded up. With sampling it is an upper bound
by construction (`loss`), about 1e-4 above the epsilon of the composed pairs.

| edge | result |
|---|---|
| empty census | 0: nothing leaves |
| z = 0 | infinity |
| q = 1 (Subsample or Poisson); n = 1 (WithReplacement) | as Full |
| mu beyond 200 in a sampled plan, of one release or of the Gaussian part | `Composition.gaussian_bound` |
| delta outside (0, 1), z < 0 | ValueError |

References: Lowy 2023 (thesis), Lemma 10 (composition); Zhu, Dong and Wang 2022, Proposition 30, and Lebeda
et al. 2024, arXiv 2405.20769 (sampling without replacement); Balle, Barthe and Gaboardi 2018, Theorem 10
(with replacement); Doroshenko et al., arXiv 2207.04380 (rounding).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedsim.common.errors import Refused
from fedsim.privacy import gaussian
from fedsim.protocol.batch import Batch, Fresh, Part, Poisson, Subsample, WithReplacement, check_parts
from fedsim.protocol.plan import Census, Release

if TYPE_CHECKING:  # loaded where batches are sampled
    from fedsim.privacy.pairs import ReleasePair, SampledPair

_LARGEST_SAMPLED_MU = 200.0  # a Gaussian of this mu costs epsilon 20,000
_SMALLEST_SAMPLED_MU = 1e-9  # epsilon is below 1e-7 then, sampled or not
_RARE = 1e-6  # share of delta given away for records drawn very often


def epsilon(census: Census, n: int, noise_multiplier: float, delta: float) -> float:
    """Return eps at which answering `census` is (eps, delta)-DP (module docstring), delta in (0, 1).

    Equal entries of the census add up; the silo has n >= 1 units, and noise_multiplier is z = sigma / L2
    sensitivity >= 0 of a release of weight 1. Refused if the Fresh batches hold more than n records together,
    or parts are not disjoint.

    Thirty releases of all records, ten of batches that share none, thirty of a tenth of the records:

    >>> from fedsim.protocol.batch import FULL, Fresh, Subsample
    >>> round(epsilon(((Release(FULL, 1.0), 30),), n=100, noise_multiplier=20.0, delta=1e-5), 4)
    1.0238
    >>> round(epsilon(((Release(Fresh(0.1), 1.0), 10),), n=100, noise_multiplier=2.0, delta=1e-5), 4)
    1.9931
    >>> round(epsilon(((Release(Subsample(0.1), 1.0), 30),), n=100, noise_multiplier=2.0, delta=1e-5), 3)
    1.361
    """
    return compose(census, n).epsilon(noise_multiplier, delta)


def epsilons(census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
    """Return `epsilon` for many silos (n, noise_multiplier, delta) that answer the same census.

    Equal cases are priced once, and those without sampling all together.
    """
    distinct = list(dict.fromkeys(cases))
    composed = {n: compose(census, n) for n, _, _ in distinct}
    closed = [case for case in distinct if not composed[case[0]].sampled and case[1] > 0]
    mu = np.array([composed[n].weight / z for n, z, _ in closed])
    deltas = np.array([delta for _, _, delta in closed])
    priced = dict(zip(closed, gaussian.epsilon(mu, deltas).tolist(), strict=True))
    for case in distinct:
        if case not in priced:
            priced[case] = composed[case[0]].epsilon(case[1], case[2])
    return [priced[case] for case in cases]


@dataclass(frozen=True, slots=True)
class Composition:
    """A census for given n, with equal releases together."""

    weight: float  # mu z of what is not drawn at random, one Gaussian release
    # the pairs of the other releases at z = 1, where mu is the weight, with their counts
    sampled: tuple[tuple[SampledPair, int], ...]

    @property
    def silent(self) -> bool:
        """Whether nothing is released."""
        return self.weight == 0 and not self.sampled

    def epsilon(self, noise_multiplier: float, delta: float) -> float:
        """`epsilon` of the composition."""
        if not noise_multiplier >= 0:
            raise ValueError(f"noise_multiplier: {noise_multiplier} is not >= 0")
        if not 0 < delta < 1:
            raise ValueError(f"delta: {delta} is not in (0, 1)")
        if self.silent:
            return 0.0
        everything, heaviest, left = self.gaussian_bound(delta)
        mu = everything / noise_multiplier if noise_multiplier > 0 else math.inf
        on_grid = noise_multiplier > 0 and heaviest <= _LARGEST_SAMPLED_MU * noise_multiplier
        if not self.sampled or not on_grid or mu < _SMALLEST_SAMPLED_MU:
            return float(gaussian.epsilon(mu, left))
        spent = _on_grid(tuple(self.pairs(noise_multiplier)), delta)
        # Rounding on the grid can exceed the bound that ignores sampling: take the smaller one.
        if spent == math.inf or gaussian.profile(spent, mu) <= left:
            return float(gaussian.epsilon(mu, left))
        return spent

    def gaussian_bound(self, delta: float) -> tuple[float, float, float]:
        """Return (mu z, the largest term of it, delta left): a Gaussian release that costs no less.

        Without replacement and Poisson it is that at q = 1. With replacement, records are drawn more than
        j times in a release with a probability that is taken off delta, and j mu dominates otherwise.
        """
        rare = self.rare(delta)
        terms, left = [self.weight], delta
        squares = self.weight**2
        for pair, count in self.sampled:
            most, more = pair.most(rare)
            terms.append(most * pair.mu)
            squares += count * terms[-1] ** 2
            left -= count * more
        return math.sqrt(squares), max(terms), left

    def rare(self, delta: float) -> float:
        """The probability that a release draws a record more often than `gaussian_bound` counts."""
        return _RARE * delta / max(1, sum(count for _, count in self.sampled))

    def pairs(self, z: float) -> list[tuple[ReleasePair, int]]:
        """Return the dominating pairs at noise multiplier z > 0, with their counts."""
        from fedsim.privacy.exponential import ChoicePair
        from fedsim.privacy.pairs import GaussianPair

        pairs: list[tuple[ReleasePair, int]] = [(replace(p, mu=p.mu / z), count) for p, count in self.sampled]
        choices = [(pair, count) for pair, count in pairs if isinstance(pair, ChoicePair)]
        if choices:
            most = max(choices, key=lambda each: each[1])
            pairs.remove(most)
            pairs += most[0].blocks(most[1])
        if self.weight > 0:
            pairs.append((GaussianPair(self.weight / z), 1))
        return pairs


@lru_cache(maxsize=4096)  # a sweep's runs, and a search's steps, come to the same plans and noise again
def _on_grid(pairs: tuple[tuple[ReleasePair, int], ...], delta: float) -> float:
    from fedsim.privacy import loss

    return loss.epsilon(pairs, delta)


def compose(census: Census, n: int) -> Composition:
    """Sort the releases of `census` by how they compose for a silo of n records."""
    if n < 1:
        raise ValueError(f"n: {n} is not a positive number of records")
    full = 0.0
    # mu^2 z^2 of the records of a part; the largest of Fresh batches
    disjoint: defaultdict[Batch, float] = defaultdict(float)
    sampled: Counter[SampledPair] = Counter()
    for release, count in _distinct(census, n):
        part = _sampled(release, n)
        if part is not None:
            sampled[part] += count
        elif isinstance(release.batch, Fresh):
            disjoint[release.batch] = max(disjoint[release.batch], release.weight**2)
        elif isinstance(release.batch, Part):
            disjoint[release.batch] += count * release.weight**2
        else:
            full += count * release.weight**2
    most = max(disjoint.values(), default=0.0)
    return Composition(math.hypot(math.sqrt(full), math.sqrt(most)), tuple(sampled.items()))


def _distinct(census: Census, n: int) -> list[tuple[Release, int]]:
    """Add up equal entries, drop what releases nothing, and refuse batches that cannot be disjoint."""
    counts: Counter[Release] = Counter()
    for release, count in census:
        if count < 0 or not 0 <= release.weight < math.inf:
            raise ValueError(f"census: {count} releases of weight {release.weight}")
        counts[release] += count
    check_parts((release.batch for release, count in counts.items() if count), n)
    fresh = sum(
        count * release.batch.size(n) for release, count in counts.items() if isinstance(release.batch, Fresh)
    )
    if fresh > n:
        raise Refused(f"plan draws {fresh} fresh units, the silo has {n}: lower num_rounds or batch.fraction")
    return [(release, count) for release, count in counts.items() if count > 0 and release.weight > 0]


def as_gaussian(census: Census) -> Census:
    """The census with choices as the Gaussian releases that cost no less, for accounts of mu^2."""
    return tuple((replace(release, drawn=False), count) for release, count in census)


def _sampled(release: Release, n: int) -> SampledPair | None:
    """Return the pair of `release` at z = 1; None where every record, or each record once, is used."""
    if release.drawn:
        from fedsim.privacy.exponential import ChoicePair

        return ChoicePair(release.weight)
    if not release.batch.random:
        return None
    from fedsim.privacy.pairs import AddRemovePair, PoissonPair, SubsampledPair, WithReplacementPair

    match release.batch:
        case Subsample() as batch:
            size = batch.size(n)
            return None if size >= n else SubsampledPair(release.weight, size / n)
        case WithReplacement() as batch:
            return None if n == 1 else WithReplacementPair(release.weight, n, batch.size(n))
        case Poisson(fraction=q):
            kind = AddRemovePair if release.removed else PoissonPair
            return None if q >= 1 else kind(release.weight, q)
    return None


def together(census: Census, silos: int) -> Census:
    """Return the census that costs what a unit pays that is in so many silos that each answer `census`.

    **Guarantee.** With noise in each silo that is equal and its own, `epsilon` of it bounds the joint
    transcript of the silos with respect to that unit's data in all of them. It is adaptive composition: a
    release counts once a silo, and Fresh batches, of which a unit meets one in each silo, add as mu^2.

    >>> from fedsim.protocol.batch import FULL
    >>> compose(together(((Release(FULL, 1.0), 1),), 4), 10).weight
    2.0
    """
    return tuple(
        (replace(release, weight=release.weight * math.sqrt(silos)), count)
        if isinstance(release.batch, Fresh)
        else (release, count * silos)
        for release, count in census
    )


def compose_runs(censuses: Sequence[Census], n: int) -> Composition:
    """Return the composition of plans that n records answer in turn; an equal plan counts each time.

    **Guarantee.** Its `epsilon(z, delta)` bounds the joint transcript of a silo that answers every census on
    the same n records with base noise multiplier z and fresh noise, batches and permutations for each; later
    plans may depend on earlier answers. It is adaptive composition (thesis Lemma 10) of what `compose` finds
    for each plan alone: the pairs of sampled releases are listed together, and what is not sampled, one
    Gaussian release of mu_r = weight_r / z for plan r, add as mu^2 = sum_r mu_r^2.

    A record meets one Fresh batch, or part, of *each* plan, so that they add over plans though not within
    one: pooling the censuses and composing once would take the largest only. Refused if the Fresh batches of
    one plan hold more than n records.

    >>> from fedsim.protocol.batch import Fresh
    >>> from fedsim.protocol.plan import Release
    >>> one_pass = ((Release(Fresh(0.5), 1.0), 2),)  # in each run a record is in one batch
    >>> compose_runs([one_pass] * 4, n=10).weight
    2.0
    """
    weight = 0.0
    sampled: Counter[SampledPair] = Counter()
    for census, times in Counter(censuses).items():
        one = compose(census, n)
        weight = math.hypot(weight, one.weight * math.sqrt(times))
        for pair, count in one.sampled:
            sampled[pair] += count * times
    return Composition(weight, tuple(sampled.items()))


def joint(parts: Sequence[tuple[Composition, float]]) -> Composition:
    """Return, at noise multiplier 1, the composition of plans each at its own multiplier > 0.

    **Guarantee.** Its `epsilon(1, delta)` bounds the joint transcript of silos that answer the plans, with
    respect to the data of one unit in all of them: adaptive composition, as in `compose_runs`, of
    mechanisms on data of their own and with noise of their own.

    >>> from fedsim.protocol.batch import FULL
    >>> once = compose(((Release(FULL, 1.0), 1),), n=10)
    >>> joint([(once, 0.25), (once, 1 / 3)]).weight
    5.0
    """
    sampled: Counter[SampledPair] = Counter()
    for composition, z in parts:
        for pair, count in composition.sampled:
            sampled[replace(pair, mu=pair.mu / z)] += count
    return Composition(math.hypot(*(one.weight / z for one, z in parts)), tuple(sampled.items()))
