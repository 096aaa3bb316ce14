"""Private tuning: what candidates are run with, how their models are scored, and what it all costs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from torch import Tensor

from fedsim.common.errors import InputError, Refused
from fedsim.data.federation import SiloSplit
from fedsim.data.outline import Outline
from fedsim.protocol.plan import Census
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import LIMITS, Resolved, resolve
from fedsim.simulation.host import terms
from server.participation import admitted_rounds, schedule
from silos.admission import admit
from silos.entropy import SeededEntropy
from silos.parts import GrantedRun, Parts
from silos.selection import AdmittedSelection, SelectionTerms

_CANDIDATE = {"problem", "algorithm", "privacy", "participation"}
_PLACES: dict[str, Any] = {"participation": {"path"}}  # what lies there is in the run's own digest

_ANY = 1.0  # a plan does not depend on the noise, as every dry run checks


@dataclass(frozen=True)
class Selection:
    """How a setting is chosen among candidates.

    Args:
        scenarios: of each candidate: on the records put aside, at the noise that the silos found.
        parts: what the silos agreed to, and hand out.
        repetitions: runs of each candidate.
    """

    scenarios: tuple[Scenario, ...]
    parts: Parts
    repetitions: int

    @property
    def silos(self) -> Sequence[AdmittedSelection]:
        """What each silo agreed to, in canonical order."""
        return self.parts.silos

    @cached_property
    def digest(self) -> str:
        """Keys the noise of its runs and scores, beside each run itself: no other selection shares it."""
        trees = [s.model_dump(mode="json", include=_CANDIDATE, exclude=_PLACES) for s in self.scenarios]
        noise = [silo.score_noise_multiplier for silo in self.silos]
        return hashlib.sha256(json.dumps([trees, self.repetitions, noise]).encode()).hexdigest()


def trials_of(candidate: int, repetitions: int) -> range:
    """A number of its own for each run of each candidate: equal runs of one number have equal noise in
    simulation, and answers with equal noise do not compose.
    """
    return range(candidate * repetitions, (candidate + 1) * repetitions)


def prepare(
    candidates: Sequence[Scenario], outlines: Callable[[Scenario], Outline], repetitions: int
) -> Selection:
    """Let every silo price all runs of all candidates together (`silos.selection` states the guarantee).

    Args:
        candidates: the scenarios as they would be reported, on the rest of the records; they differ in no
            field of `data`, `partition`, `privacy` or `seed`.
        outlines: finds the outline of a scenario's data.
        repetitions: runs of each candidate.

    Raises:
        InputError: a candidate cannot be tuned so.
        Refused: names the silo that cannot afford it.
    """
    budget = resolve(candidates[0], outlines(candidates[0]))
    if budget.outline.num_classes == 0:
        expected = "private tuning counts misclassified records, so the target must be a class, not a number"
        raise InputError("scenario.problem.name", candidates[0].problem.name, expected)
    unknown = (_ANY,) * len(budget.names)
    drafts = [on_reserve(candidate, budget.deltas, unknown) for candidate in candidates]
    runs = [resolve(draft, outlines(draft)) for draft in drafts]
    silos = [
        SelectionTerms(*each)
        for each in zip(budget.names, runs[0].sizes, budget.epsilons, budget.deltas, strict=True)
    ]
    answered = [_censuses(run, t) for c, run in enumerate(runs) for t in trials_of(c, repetitions)]
    parts = Parts(list(zip(*answered, strict=True)), silos, LIMITS)
    noise = tuple(silo.noise_multiplier or _ANY for silo in parts.silos)  # 0 where it takes part in nothing
    scenarios = tuple(on_reserve(candidate, budget.deltas, noise) for candidate in candidates)
    return Selection(scenarios, parts, repetitions)


def on_reserve(scenario: Scenario, deltas: Sequence[float], noise: Sequence[float]) -> Scenario:
    """The scenario on the records put aside, at given noise multipliers; without a mechanism, none."""
    reserve = scenario.data.reserve
    if reserve is None:
        raise ValueError("nothing is put aside")
    data = scenario.data.model_copy(update={"reserve": reserve.model_copy(update={"use": "reserved"})})
    privacy = scenario.privacy
    if privacy.mechanism != "none":
        given = {"delta": tuple(deltas), "calibration": "sigma", "noise_multiplier": tuple(noise)}
        privacy = privacy.model_copy(update=given)
    return scenario.model_copy(update={"data": data, "privacy": privacy})


def _censuses(run: Resolved, trial: int) -> list[Census]:
    """What each silo answers in one run."""
    census = cache(run.trace.plan.census)
    return [census(own) for own in _rounds(run, trial)]


def _rounds(run: Resolved, trial: int) -> list[Sequence[int]]:
    """The rounds that each silo is admitted for in one run."""
    rounds = schedule(len(run.names), run.active, run.trace.holds, run.scenario.seed, trial)
    own = admitted_rounds(run.active, rounds, len(run.names))
    return [rounds if isinstance(rounds, range) else tuple(rounds) for rounds in own]


def run_epsilons(scenario: Scenario, shape: Outline, trials: Sequence[int]) -> list[float]:
    """epsilon_guaranteed of each silo in the reported run: the largest over trials, finished or not; 0 where
    its plan is refused, since then nothing is released.
    """
    run = resolve(scenario, shape)
    largest = [0.0] * len(run.names)
    for trial in trials:
        with suppress(Refused):
            priced = admit(run.trace.plan, terms(run, run.names, _rounds(run, trial), True), LIMITS)
            largest = [max(old, new.epsilon_guaranteed) for old, new in zip(largest, priced, strict=True)]
    return largest


def private_score(
    resolved: Resolved, trial: int, granted: GrantedRun, silos: Sequence[SiloSplit], model: Tensor, run: str
) -> float:
    """sum_i p_i (silo i's noisy share of mistakes on the records that it scores with); `run` keys it."""
    reserve = resolved.scenario.data.reserve
    if reserve is None or reserve.use != "reserved":
        raise ValueError("scores are of records put aside")
    scorer = granted.scorer(
        [(silo.test_features, silo.test_target) for silo in silos],
        resolved.problem,
        SeededEntropy(resolved.scenario.seed, trial, resolved.names, [run] * len(resolved.names)),
        LIMITS,
        resolved.dtype,
    )
    return float(np.dot(resolved.weights, scorer.answer(model)))
