"""A sweep as it is asked for: every run that it needs, checked before the first is made."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fedsim.common.errors import InputError, Refused
from fedsim.common.files import RECORD
from fedsim.privacy.registry import MECHANISMS
from fedsim.problems.kinds import gives_probabilities
from fedsim.protocol.clashes import check
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Terms
from fedsim.report.record import CellSource, Record
from fedsim.scenario.facts import facts_of
from fedsim.scenario.metric import applicable
from fedsim.scenario.model import PrivateSection, Scenario, TuneSection
from fedsim.scenario.resolve import Resolved, is_known, with_nonce
from fedsim.simulation.host import silos_rounds
from fedsim.simulation.selection import MISTAKES, Parts, Score
from fedsim.simulation.sweeps.cell import resolved_of
from fedsim.simulation.sweeps.combinations import Candidate, Combination, base_and_section, combinations
from fedsim.simulation.sweeps.section import TUNE, where_fraction_is_given


class Place(NamedTuple):
    """The use of a cell: a trial of a candidate of a combination."""

    combination: int
    candidate: int
    trial: int


@dataclass(frozen=True)
class Job:
    """A sweep to run."""

    tree: Mapping[str, Any]  # the scenario with its `sweep` section, as nested mappings
    combinations: Sequence[Combination]  # what is reported
    tune: TuneSection | None = None  # what is chosen for each, and how
    selections: Mapping[int, Selection] = field(default_factory=dict)  # private tuning, by combination

    @property
    def scenario(self) -> Scenario:
        """The first combination's scenario; name, trials, runtime and report are the same in all."""
        return self.combinations[0].scenario

    @property
    def cells(self) -> int:
        """The number of cells, equal ones counted each."""
        return len(self.tuning_places()) + len(self.combinations) * self.scenario.trials

    @property
    def varied(self) -> list[str]:
        """Every field that some combination names."""
        return list(dict.fromkeys(field for c in self.combinations for field in c.varied))

    @property
    def tuned(self) -> list[str]:
        """Every field that some candidate chooses."""
        return list(dict.fromkeys(f for c in self.combinations for one in c.candidates for f in one.chosen))

    @property
    def tuning_note(self) -> str:
        """The privately tuned fields, in one line for terminal, page and figure; else empty."""
        if self.tune is None or self.tune.private is None:
            return ""
        fields = ", ".join(field.split(".")[-1] for field in self.tuned)
        return f"{fields} tuned privately, on {self.tune.private.fraction:.0%} of each silo's records"

    def candidate(self, place: Place) -> Candidate:
        """The candidate of a place."""
        return self.combinations[place.combination].candidates[place.candidate]

    def title(self, place: Place) -> str:
        """The title of a place's combination and candidate."""
        return self.combinations[place.combination].title(place.candidate)

    def tuning_places(self) -> list[Place]:
        """Every run that tuning needs; a combination with one candidate has nothing to choose."""
        return [
            Place(number, candidate, trial)
            for number, combination in enumerate(self.combinations)
            if len(combination.candidates) > 1
            for candidate in range(len(combination.candidates))
            for trial in self._tuning_trials(candidate)
        ]

    @property
    def reported_trials(self) -> range:
        """Trials after those of tuning: no split that chose is reported, and no noise is drawn twice."""
        first = 0
        if self.tune:
            most = max(len(combination.candidates) for combination in self.combinations)
            first = self._tuning_trials(most - 1).stop
        return range(first, first + self.scenario.trials)

    def _tuning_trials(self, candidate: int) -> range:
        """The trials that score a candidate: the same for all, or in private tuning no two share one."""
        if self.tune is None:
            return range(0)
        return trials_of(candidate if self.tune.private else 0, self.tune.repetitions)


def job_of(tree: Mapping[str, Any], out: Path | None = None) -> Job:
    """The job of a scenario with a `sweep` section, as nested mappings. InputError names the field, the value
    and what would be right.

    Where the sweep's directory `out` has cells, their seed and nonce are those of a scenario that gives none;
    a nonce only where all code is known by its contents.
    """
    return _job_of(tree, {} if out is None else drawn_in(out))


def drawn_in(out: Path) -> Mapping[str, Any]:
    """The scenario of a cell in a sweep's directory; empty where there is none."""
    file = out.resolve() / RECORD
    if not file.is_file():
        return {}
    try:
        with Record.open(file, lambda line: None, durable=False) as record:
            return next((cell.scenario for cell in record.rows(CellSource)), {})
    except OSError:  # it is refused when the sweep begins
        return {}


def _job_of(tree: Mapping[str, Any], drawn: Mapping[str, Any]) -> Job:
    if tree.get("seed") is None:
        return _job_of({**tree, "seed": drawn.get("seed", secrets.randbits(63))}, drawn)
    points, (_, section) = combinations(tree), base_and_section(tree)
    nonce = next((n for c in points for one in c.candidates if (n := with_nonce(one.scenario).nonce)), None)
    if nonce != tree.get("nonce"):  # one for all cells: they differ in what else keys them
        known = all(is_known(one.scenario) for c in points for one in c.candidates)
        return _job_of({**tree, "nonce": (drawn.get("nonce") if known else None) or nonce}, drawn)
    for combination in points:
        own = combination.scenario
        check(facts_of(own), "sweep", own.value)
        for number, candidate in enumerate(combination.candidates):
            try:
                resolved_of(candidate.scenario)
            except InputError as error:
                hint = f"{error.hint} (in {combination.title(number)})"
                raise where_fraction_is_given(InputError(error.field, error.value, hint)) from None
    return Job(tree, points, section.tune, selections(points, section.tune))


_CANDIDATE = {"problem", "algorithm", "privacy", "participation"}
_PLACES: dict[str, Any] = {"participation": {"path"}}  # what lies there is in the run's own digest

_ANY = 1.0  # a plan does not depend on the noise, as every dry run checks


@dataclass(frozen=True)
class Selection:
    """Private tuning of one combination."""

    scenarios: tuple[Scenario, ...]  # of each candidate, on the records put aside, at the silos' noise
    parts: Parts  # what the silos agreed to, in canonical order, and hand out
    repetitions: int  # runs of each candidate

    @cached_property
    def digest(self) -> str:
        """Keys the noise of its runs and scores, beside each run itself: no other selection shares it."""
        trees = [s.model_dump(mode="json", include=_CANDIDATE, exclude=_PLACES) for s in self.scenarios]
        noise = [silo["scores"].noise_multiplier for silo in self.parts.silos]
        other = [self.parts.score] * (self.parts.score != MISTAKES)
        return hashlib.sha256(json.dumps([trees, self.repetitions, noise, *other]).encode()).hexdigest()


def selections(items: Sequence[Combination], tune: TuneSection | None) -> dict[int, Selection]:
    """The private tuning of each combination, by its number; none where nothing is tuned privately.
    InputError if a combination cannot be tuned so, or a silo cannot afford it; names both.
    """
    if tune is None or tune.private is None:
        return {}
    if not any(combination.private for combination in items):
        hint = "a choice that is private needs runs that are: leave private out, or give mechanism gaussian"
        raise InputError(f"{TUNE}.private", tune.model_dump()["private"], hint)
    several = {number: one for number, one in enumerate(items) if len(one.candidates) > 1}
    return {number: _selection(one, tune) for number, one in several.items()}


def _selection(combination: Combination, tune: TuneSection) -> Selection:
    scenario, name = combination.scenario, combination.title()
    try:
        check(facts_of(scenario, **{"private tuning": combination.private}), "tuning", scenario.value)
    except InputError as error:
        raise InputError(error.field, error.value, f"{error.hint} (in {name})") from None
    try:
        return _agreed([candidate.scenario for candidate in combination.candidates], tune)
    except InputError as error:  # the candidates are right on the rest of the records
        hint = f"{error.hint} (on the records that tuning puts aside, in {name})"
        raise InputError(error.field, error.value, hint) from None
    except Refused as refusal:
        hint = f"{refusal}; lower repetitions, candidates or rounds, or raise epsilon (in {name})"
        raise InputError(f"{TUNE}.private", tune.model_dump()["private"], hint) from None


def _agreed(candidates: Sequence[Scenario], tune: TuneSection) -> Selection:
    """Let every silo price all runs of all candidates together: `fedsim.simulation.selection` states the
    guarantee.

    The candidates are the scenarios as they would be reported, on the rest of the records; they differ in no
    field of `data`, `partition`, `privacy` or `seed`. InputError if one cannot be tuned so; Refused names the
    silo that cannot afford it.
    """
    settled = [resolved_of(candidate) for candidate in candidates]
    budget = settled[0]
    if budget.outline.num_classes == 0:
        hint = "private tuning scores predicted classes, so the target must be a class, not a number"
        raise InputError("scenario.problem.name", candidates[0].problem.name, hint)
    score = _score(tune, settled)
    unknown = (_ANY,) * len(budget.names)
    # What is automatic is so for the reported run: its noise, and not the candidates', follows from a budget.
    pairs = zip(candidates, settled, strict=True)
    fixed = [c if each.derived is None else each.scenario for c, each in pairs]
    drafts = [_on_reserve(candidate, budget.deltas, unknown) for candidate in fixed]
    runs = [resolved_of(draft) for draft in drafts]
    terms = zip(budget.names, runs[0].sizes, budget.epsilons, budget.deltas, strict=True)
    silos, answered = [Terms(*each, rounds=()) for each in terms], []
    for c, run in enumerate(runs):
        census = cache(run.trace.plan.census)
        answered += [[census(own) for own in silos_rounds(run, t)] for t in trials_of(c, tune.repetitions)]
    parts = Parts(list(zip(*answered, strict=True)), silos, LIMITS, score)
    found = (silo["candidates"].noise_multiplier for silo in parts.silos)
    noise = tuple(z or _ANY for z in found)  # 0 where it takes part in nothing
    scenarios = tuple(_on_reserve(candidate, budget.deltas, noise) for candidate in fixed)
    return Selection(scenarios, parts, tune.repetitions)


def _score(tune: TuneSection, candidates: Sequence[Resolved]) -> Score:
    """What candidates are scored by. InputError if silos cannot compute it for one of them."""
    private = tune.private or PrivateSection()
    for each in candidates:
        problem, classes = each.problem, each.outline.num_classes
        ranked = classes == 2 and gives_probabilities(problem)
        if private.metric not in applicable(problem, classes) or (private.metric == "auc" and not ranked):
            what = f"{type(problem).__name__} of {classes} classes"
            hint = f"cannot score {what}: auc needs two classes, and all but error probabilities"
            raise InputError(f"{TUNE}.private.metric", private.metric, hint)
    return Score(private.metric, private.bins, private.bound)


def trials_of(candidate: int, repetitions: int) -> range:
    """A candidate's trials; no two candidates share one.

    In simulation, equal runs of one trial have equal noise, and answers with equal noise do not compose.
    """
    return range(candidate * repetitions, (candidate + 1) * repetitions)


def _on_reserve(scenario: Scenario, deltas: Sequence[float], noise: Sequence[float]) -> Scenario:
    """The scenario on the records put aside, at given noise multipliers; without a mechanism, none."""
    reserve = scenario.data.reserve
    if reserve is None:
        raise ValueError("nothing is put aside")
    data = scenario.data.model_copy(update={"reserve": reserve.model_copy(update={"use": "reserved"})})
    privacy = scenario.privacy
    if MECHANISMS[privacy.mechanism].private:
        given = {"delta": tuple(deltas), "calibration": "sigma", "noise_multiplier": tuple(noise)}
        privacy = privacy.model_copy(update=given)
    return scenario.model_copy(update={"data": data, "privacy": privacy})
