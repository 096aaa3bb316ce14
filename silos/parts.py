"""Who uses which part of the records: private tuning's candidates, scores and reported run, counted.

`silos.selection` prices a selection: so many runs on the training part, one score of each on the scoring
part, one reported run on the rest. The price holds as long as nobody uses a part once more. `Parts` keeps
count: it admits a selection, and from then on hands out each part as it was priced, once; the next request
is refused. What it hands out is a `Grant`, and where the records are, a gate or a scorer on one of the parts
is built through a `GrantedRun` alone:

* *training part*: to each priced run once, which must then answer exactly the releases that were priced for
  it, at the noise that was admitted, in every silo;
* *scoring part*: to one scorer of that run, which answers one request;
* *the rest*: to one setting, whatever it is, since the gate keeps such a run within the silo's budget; once
  in each trial, which is the reported run of a world of its own.

All of them on one division of the records, that of the first. A grant names what is to be run, so it serves
nothing else. A granted run may be repeated, because a worker was lost or a result is gone, only where its
noise and batches are a function of the run, so that it gives the same bits. So the count is kept by whoever
drives the selection, although its runs are in other processes or come from a cache. A silo whose entropy
never repeats has to keep its own count, durably, beside its ledger.

**Not covered**: a second selection, which has a `Parts` of its own and adds to the first, as does another run
on records that were put aside. A grant is a form, not a secret: code that fills one in itself is not kept
from it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.problems.kinds import Problem, scores_of_records
from fedsim.protocol.limits import Limits
from fedsim.protocol.plain import plain_tensor
from fedsim.protocol.plan import Census, Plan
from fedsim.protocol.terms import Admitted
from silos.entropy import Entropy, Purpose
from silos.selection import AdmittedSelection, SelectionTerms, admit_selection


class Scorer:
    """The records that a cohort of silos scores one model with: how many of them it gets wrong.

    It is the one release that is no mean of gradients. Guarantee: a model's score at a silo is its number of
    mistakes plus N(0, z^2). A record is wrong or right, 0 or 1 by its own values and the model's alone, so
    that replacing one record moves the number by at most 1: a Gaussian mechanism with noise multiplier z. A
    record that the model cannot be applied to is wrong: it must not decide whether there is a score. The silo
    divides by its public number of records. A scorer answers one request in its life, so that the price of a
    plan of scores, one release of weight 1 for each scorer, is what is paid.
    """

    def __init__(
        self,
        silos: Sequence[tuple[np.ndarray, np.ndarray]],
        problem: Problem,
        multipliers: Sequence[float],
        entropy: Entropy,
        limits: Limits,
        dtype: torch.dtype,
    ) -> None:
        """`silos`: features (n, d) and target (n,), classes from 0, n >= 1; `multipliers`: z of each silo."""
        self._records = [(torch.as_tensor(x).to(dtype), torch.as_tensor(y)) for x, y in silos]
        self._problem, self._entropy, self._limits = problem, entropy, limits
        self._multipliers = np.array(multipliers, dtype=np.float64)
        self._once = threading.Lock()  # taken by the one request that is answered

    def answer(self, w: Tensor) -> np.ndarray:
        """Each silo's noisy share of records that the model w, (d,), gets wrong; may lie outside [0, 1].

        Raises:
            Refused: a point out of bounds or no plain tensor, or a second request.
        """
        w = plain_tensor(w, "a model")
        self._limits.check_point(w, self._problem.dimension)
        if not self._once.acquire(blocking=False):
            raise Refused("a score was released already; one is paid for")
        wrong = [mistakes(scores_of_records(self._problem, x, w), y).sum() for x, y in self._records]
        streams = self._entropy.streams(range(len(self._records)), 0, Purpose.SCORE)
        noise = np.array([stream.standard_normal() for stream in streams])
        sizes = np.array([len(target) for _, target in self._records])
        return np.asarray((np.array(wrong, dtype=np.float64) + self._multipliers * noise) / sizes)


def mistakes(scores: Tensor, target: Tensor) -> Tensor:
    """Which records are misclassified, (records,) of truth values; scores that are no numbers are a mistake.

    Args:
        scores: (records,), predicting class 1 where positive and else 0, or (records, classes).
        target: classes, (records,).
    """
    predicted = (scores > 0).long() if scores.dim() == 1 else scores.argmax(-1)
    unknown = scores.isnan() if scores.dim() == 1 else scores.isnan().any(-1)
    return (predicted != target) | unknown


class RunId(NamedTuple):
    """What is run: on which records, divided how, and in which setting (both as digests), and the trial."""

    records: str
    setting: str
    trial: int


class Grant(NamedTuple):
    """Leave to make one run on one part of the records; plain values, so that it travels with the run.

    Args:
        part: what the run is: a candidate, trained and scored on records put aside, or reported.
        run: which run it is.
        releases: of a candidate, for each silo in canonical order, what it answers in this run.
        noise: of a candidate, z of each silo.
        score_noise: of a candidate, z of each silo's score.
    """

    part: Literal["candidate", "reported"]
    run: RunId
    releases: tuple[Census, ...] = ()
    noise: tuple[float, ...] = ()
    score_noise: tuple[float, ...] = ()


class Parts:
    """The parts of all silos' records in one selection, and what has been handed out of them."""

    def __init__(
        self, runs: Sequence[Sequence[Census]], silos: Sequence[SelectionTerms], limits: Limits
    ) -> None:
        """Admit a selection; arguments and errors as `silos.selection.admit_selection`."""
        self.silos: list[AdmittedSelection] = admit_selection(runs, silos, limits)
        self._runs = list(zip(*runs, strict=True))
        self._candidates: set[int] = set()
        self._reported: set[int] = set()
        self._records: str | None = None
        self._setting: str | None = None
        self._lock = threading.Lock()

    def candidate(self, run: RunId) -> Grant:
        """Leave for one of the priced runs, whose number is its trial.

        Raises:
            Refused: there is no such run, it was handed out, or its records are divided in another way.
        """
        if type(run.trial) is not int or not 0 <= run.trial < len(self._runs):
            raise Refused(
                f"{len(self._runs)} runs of candidates were priced, and run {run.trial!r} is none of them"
            )
        with self._lock:
            self._hand_out(run, self._candidates, "candidates")
        noise = tuple(silo.noise_multiplier for silo in self.silos)
        score_noise = tuple(silo.score_noise_multiplier for silo in self.silos)
        return Grant("candidate", run, self._runs[run.trial], noise, score_noise)

    def reported(self, run: RunId) -> Grant:
        """Leave for one trial of the reported run.

        Raises:
            Refused: another setting is reported, this trial was handed out, or its records are divided in
                another way.
        """
        with self._lock:
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


class GrantedRun:
    """One run's use of the records, where they are: no gate and no scorer but what its grant says."""

    def __init__(self, grant: Grant | None, run: RunId) -> None:
        """`run`: what is about to be run, found out where it runs and not by whoever granted it.

        Raises:
            Refused: there is no grant, or it is for something else.
        """
        if grant is None:
            raise Refused("records are put aside for private tuning: a run on any part of them needs a grant")
        if grant.run != run:
            raise Refused(f"the grant is for another run than this one, trial {run.trial}")
        self._grant = grant
        self._trained = self._scored = False

    def train(self, plan: Plan, admitted: Sequence[Admitted]) -> None:
        """Take the training records for one gate, before it answers.

        Args:
            plan: the gate's.
            admitted: what the silos accepted, in canonical order.

        Raises:
            Refused: a gate has them, or a silo accepted another plan or noise than was priced.
        """
        if self._trained:
            raise Refused("this run's gate was given its records already; one is paid for")
        self._trained = True
        if self._grant.part == "candidate":
            self._check(plan, admitted)

    def _check(self, plan: Plan, admitted: Sequence[Admitted]) -> None:
        census = cache(plan.census)
        for silo, priced, z in zip(admitted, self._grant.releases, self._grant.noise, strict=True):
            rounds = silo.terms.rounds
            own = census(rounds if isinstance(rounds, range) else tuple(rounds))
            if own != priced or (own and silo.noise_multiplier != z):  # who answers nothing needs no noise
                raise Refused(
                    f"silo {silo.terms.name!r}: this is not the plan, at the noise, that was priced"
                )

    def scorer(
        self,
        silos: Sequence[tuple[np.ndarray, np.ndarray]],
        problem: Problem,
        entropy: Entropy,
        limits: Limits,
        dtype: torch.dtype,
    ) -> Scorer:
        """The one scorer of a candidate's run, on the records that score; arguments as `Scorer`.

        Raises:
            Refused: it was given out, or the run is no candidate's.
        """
        if self._grant.part != "candidate":
            raise Refused("only a candidate's run is scored")
        if self._scored:
            raise Refused("this run's scorer was given out already; one score is paid for")
        self._scored = True
        return Scorer(silos, problem, self._grant.score_noise, entropy, limits, dtype)
