"""Private tuning: its price, and the count of the uses of the records.

Before tuning each silo prices all candidates together, and sets the noise of every run and every score.

**Guarantee.** Silo i's records are divided into three parts: h that train candidates, h that score them,
and the rest, which the reported run uses (`fedsim.data.division`). For every i, the joint view of everything
that the silo releases to choose a setting *and* of the reported run with the chosen setting is (eps,
delta_i)-DP for replacing one of its records, with n_i fixed and public, for any behaviour of the server and
the other silos, and, as of every division (`fedsim.protocol.division`),

    eps = max(epsilon_training, epsilon_scores, epsilon_guaranteed of the reported run) <= eps_i.

The permutation of a silo's records is never changed, neither by candidate nor by repetition nor by trial.

* *Training part.* It answers every candidate's plan, once for each repetition, with one base multiplier and
  fresh noise each time: `fedsim.privacy.cost.compose_runs`, a sum. Nothing is saved because only one is
  chosen.
* *Scoring part.* It answers one sum for each candidate and repetition (`Scorer`): as many Gaussian
  releases of weight 1, mu^2 = (number of scores) / z^2. The models scored are releases of another part.
* *The choice* is a function of noisy scores and public numbers; a candidate that fails does so by noisy
  answers or public numbers. So the choice is free, and the reported run keeps within (eps_i, delta_i)
  whatever is chosen.
* *Test records* of the reported run come from the rest, and are used for nothing else.

* *Nothing is used once more.* `Parts` admits a selection, and hands out each part as it was priced, once: the
  training part to each priced run, which must then answer exactly the releases that were priced for it, at
  the noise that was admitted, in every silo; the scoring part to one scorer of that run; the rest to one
  setting, once in each trial. All of them are on one division of the records, that of the first. A run may
  be repeated, because a worker was lost, only where its noise and batches are a function of the run.

**Not covered**: a second selection, which has a `Parts` of its own and adds to the first.
A silo that is absent from a candidate's rounds still scores its model, and pays for that.

As for every run, it is assumed that features are prepared without looking at other records: scaling by
statistics and principal components, which do look, are reported as not private.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from math import inf
from threading import Lock
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.measure.from_histogram import metrics
from fedsim.privacy.calibrate import Budget, smallest_multipliers
from fedsim.privacy.cost import compose_runs
from fedsim.problems.kinds import Problem
from fedsim.protocol.batch import FULL
from fedsim.protocol.copies import copied_tensor
from fedsim.protocol.division import Division
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Admitted, Census, Plan, QueryShape, Release, Terms
from fedsim.protocol.rows import Rows
from fedsim.protocol.statistics import size_of, statistic
from silos.vault.entropy import Entropy, Purpose
from silos.vault.owners import ALONE, Owners
from silos.vault.records import Records
from silos.vault.scores import log_loss_range
from silos.vault.terms import summed

_SCORE: Census = ((Release(FULL, 1.0), 1),)


def admit_selection(
    runs: Sequence[Sequence[Census]], silos: Sequence[Terms], limits: Limits
) -> list[Division]:
    """The smallest noise of each silo within whose budget all runs and scores are (module docstring).

    `runs` has for each silo what it answers in each run, a candidate's repetition; a score follows each run.
    The n of a silo's terms is h. Refused names the silo that cannot afford it at the largest noise that
    `limits` allow.
    """
    found = []
    for own, terms in zip(runs, silos, strict=True):
        parts = {"candidates": tuple(own), "scores": (_SCORE,) * len(own)}
        try:
            admitted = {part: _afford(each, terms, limits) for part, each in parts.items()}
        except Refused as refusal:
            raise Refused(f"silo {terms.name!r}, {len(own)} runs to choose from: {refusal}") from None
        found.append(Division(admitted))
    return found


def _afford(censuses: tuple[Census, ...], terms: Terms, limits: Limits) -> Admitted:
    releases = sum(count for census in censuses for _, count in census)
    if terms.epsilon == inf:
        return Admitted(terms, 0.0, inf, releases)
    budget = Budget(terms.n, terms.epsilon, terms.delta)
    return Admitted(terms, *_smallest(censuses, budget, limits.max_noise_multiplier), releases)


@lru_cache(maxsize=64)  # silos are often alike
def _smallest(censuses: tuple[Census, ...], budget: Budget, limit: float) -> tuple[float, float]:
    """(noise multiplier, its true cost)."""
    composition = compose_runs(censuses, budget.n)
    (z,) = smallest_multipliers({budget.n: composition}, [budget], limit)
    return z, composition.epsilon(z, budget.delta)


class Score(NamedTuple):
    """What a silo releases to score a model: a sum of bounded terms (`silos.vault.scores`)."""

    metric: str = "error"  # or log_loss, brier, auc
    bins: int = 10  # B, of the histogram that auc is computed from
    bound: float = 0.01  # b: log_loss holds probabilities to [b, 1 - b]

    @property
    def shape(self) -> QueryShape:
        """The statistic that it is (`fedsim.protocol.statistics`)."""
        if self.metric == "auc":
            return QueryShape("score_histogram", 1, 1.0, (float(self.bins),))
        options = (self.bound,) if self.metric == "log_loss" else ()
        return QueryShape("mistakes" if self.metric == "error" else self.metric, 1, 1.0, options)

    def value(self, mean: np.ndarray, classes: int) -> float:
        """The metric of the given number of classes, from the mean of the terms."""
        if self.metric == "auc":
            return metrics(mean, 0.0, 1.0)["auc"].value
        most_brier = 2.0 if self.metric == "brier" and classes > 2 else 1.0
        least, most = log_loss_range(self.bound) if self.metric == "log_loss" else (0.0, most_brier)
        return least + (most - least) * float(mean)


MISTAKES = Score()


class Scorer:
    """The records that a cohort of silos scores one model with.

    Guarantee: a model's score at a silo is the sum of its units' terms (`silos.vault.terms`) plus N(0, (z
    s)^2) in each number, where s is the spread of the statistic. A term is made of its unit and the model
    alone, so that replacing one moves the sum by at most s in the 2-norm: a Gaussian mechanism with noise
    multiplier z, whatever the score. A record whose score is no number has the worst term: it must not decide
    whether there is a score. The silo divides by its public number of units. A scorer answers one request in
    its life, so that the price of a plan of scores, one release of weight 1 for each scorer, is what is paid.
    """

    def __init__(
        self,
        silos: Sequence[Rows],
        problem: Problem,
        multipliers: Sequence[float],
        entropy: Entropy,
        limits: Limits,
        dtype: torch.dtype,
        score: Score = MISTAKES,
        owners: Owners = ALONE,
    ) -> None:
        """`silos`: n >= 1 records each, of classes from 0; `multipliers`: z of each silo."""
        self._records = Records(silos, problem, dtype, owners)
        self._problem, self._entropy, self._limits, self._score = problem, entropy, limits, score
        self._multipliers = np.array(multipliers, dtype=np.float64)
        self._answered = Lock()  # taken once, and never copied or pickled

    def answer(self, w: Tensor) -> np.ndarray:
        """Each silo's noisy mean of the terms at the model w, (d,): (silos,) or for auc (silos, 2 B).

        Refused for a point out of bounds or no plain tensor, or a second request.
        """
        w = copied_tensor(w, "a model")
        if tuple(w.shape) != (self._problem.dimension,):
            raise Refused(f"a model of shape {tuple(w.shape)}; its dimension is {self._problem.dimension}")
        self._limits.check_point(w)
        if not self._answered.acquire(blocking=False):
            raise Refused("a score was released already; one is paid for")
        shape, records = self._score.shape, self._records
        silos = range(len(records.sizes))
        size = size_of(shape, len(w), self._problem.num_features)
        totals = torch.empty(len(silos), size, dtype=torch.float64)
        for block in records.full(silos):
            totals[block.members] = summed(records.clipped_sum, shape, self._problem, block, (w,), 1.0)
        numbers = totals.numpy() if self._score.metric == "auc" else totals.numpy()[:, 0]
        streams = self._entropy.streams(silos, 0, Purpose.SCORE)
        noise = np.stack([stream.standard_normal(numbers.shape[1:]) for stream in streams])
        spread, sizes = statistic(shape.statistic).spread_of(shape.options), np.array(records.sizes)
        noisy: np.ndarray = (numbers.T + spread * self._multipliers * noise.T) / sizes
        return noisy.T


class RunId(NamedTuple):
    """What is run: on which records, divided how, and in which setting (both as digests), and the trial."""

    records: str
    setting: str
    trial: int


class Grant(NamedTuple):
    """Leave to make one run on one part of the records; plain values, so that it travels with the run."""

    part: Literal["candidate", "reported"]  # a candidate uses records put aside
    run: RunId  # which run it is
    # of a candidate, for each silo in canonical order:
    releases: tuple[Census, ...] = ()  # what it answers in this run
    noise: tuple[float, ...] = ()  # its z
    score_noise: tuple[float, ...] = ()  # z of its score
    score: Score = MISTAKES

    def check(self, plan: Plan, admitted: Sequence[Admitted]) -> None:
        """Refuse a candidate's gate that would answer another plan, or at other noise, than was priced;
        `admitted` is what the silos accepted, in canonical order.
        """
        if self.part != "candidate":
            return
        census = cache(plan.census)
        for silo, priced, z in zip(admitted, self.releases, self.noise, strict=True):
            rounds = silo.terms.rounds
            own = census(rounds if isinstance(rounds, range) else tuple(rounds))
            if own != priced or (own and silo.noise_multiplier != z):  # a silo without answers needs no noise
                name = silo.terms.name
                raise Refused(f"silo {name!r}: this is not the plan, at the noise, that was priced")


class Parts:
    """The parts of all silos' records in one selection, and what has been handed out of them."""

    def __init__(
        self,
        runs: Sequence[Sequence[Census]],
        silos: Sequence[Terms],
        limits: Limits,
        score: Score = MISTAKES,
    ) -> None:
        """Admit a selection by this score; other arguments and errors as `admit_selection`."""
        self.score = score
        self.silos: list[Division] = admit_selection(runs, silos, limits)
        self._runs = list(zip(*runs, strict=True))
        self._candidates: set[int] = set()
        self._reported: set[int] = set()
        self._records: str | None = None
        self._setting: str | None = None

    def candidate(self, run: RunId) -> Grant:
        """Leave for one of the priced runs, whose number is its trial. Refused if there is no such run, it
        was handed out, or its records are divided in another way.
        """
        if not 0 <= run.trial < len(self._runs):
            raise Refused(f"{len(self._runs)} runs of candidates were priced, not run {run.trial}")
        self._hand_out(run, self._candidates, "candidates")
        parts = ("candidates", "scores")
        z, of_score = (tuple(silo[part].noise_multiplier for silo in self.silos) for part in parts)
        return Grant("candidate", run, self._runs[run.trial], z, of_score, self.score)

    def reported(self, run: RunId) -> Grant:
        """Leave for one trial of the reported run. Refused if another setting is reported, this trial was
        handed out, or its records are divided in another way.
        """
        if self._setting not in (None, run.setting):
            raise Refused("another setting is reported already, and one is paid for")
        self._hand_out(run, self._reported, "the reported run")
        self._setting = run.setting
        return Grant("reported", run)

    def _hand_out(self, run: RunId, given: set[int], what: str) -> None:
        if self._records not in (None, run.records):
            raise Refused("these records are divided in another way than those of an earlier run")
        if run.trial in given:
            raise Refused(f"run {run.trial} was given its part of the records for {what}: once is paid for")
        self._records = run.records
        given.add(run.trial)
