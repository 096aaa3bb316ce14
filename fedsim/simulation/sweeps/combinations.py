"""The scenarios of a `sweep` section, each named by its varied fields."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.common.errors import InputError
from fedsim.common.serialise import canonical
from fedsim.privacy.registry import MECHANISMS, NONE
from fedsim.protocol.unit import Person, Rule
from fedsim.report.summary import Label, Setting
from fedsim.report.sweep_summary import title
from fedsim.scenario.load import parse, parse_sweep, place
from fedsim.scenario.model import Scenario, SweepSection, TuneSection, with_criterion
from fedsim.simulation.sweeps.section import (
    SWEEP,
    UNIT,
    check_distinct,
    check_section,
    has_candidates,
    labels,
    place_of,
    product,
    ways,
)


@dataclass(frozen=True)
class Candidate:
    """One choice of the tuned fields and the scenario it makes."""

    chosen: Setting
    scenario: Scenario


@dataclass(frozen=True)
class Combination:
    """One point of the outer grid: one candidate, or several of which tuning chooses one.

    `varied` has the label of each varied field; a non-private baseline has those that it depends on.
    """

    varied: dict[str, Label]
    private: bool
    candidates: tuple[Candidate, ...]

    @property
    def scenario(self) -> Scenario:
        """The scenario of the first candidate."""
        return self.candidates[0].scenario

    def title(self, candidate: int | None = None) -> str:
        """Its name in tables and messages, or that of one of its candidates."""
        chosen = {} if candidate is None else self.candidates[candidate].chosen
        return title(self.varied | chosen, self.private)


def combinations(tree: Mapping[str, Any]) -> list[Combination]:
    """Every combination of the scenario `tree`, then the non-private baselines, each of them once. InputError
    for a field that does not exist or is no matter of a sweep, an empty grid, a value given twice, or too
    many runs.
    """
    base, section = base_and_section(tree)
    check_section(section, tree.get("trials", 1))
    outer = [cell | setting for cell in section.cells or [{}] for setting in product(section.grid)]
    inner = list(product(section.tune.grid if section.tune else {}))
    check_distinct(f"{SWEEP}.cells", outer, "duplicate cells; each combination once")
    names = labels(section)
    points = [_combination(base, section, names, setting, inner) for setting in outer]
    if any(c.private and c.scenario.report.nonprivate_baseline for c in points):
        points += [_without_privacy(c) for c in points if c.private]
    unique: dict[str, Combination] = {}
    for one in points:  # what differs only in fields that a run without noise does not have is the same
        same = one if one.private else _without_privacy(one)
        unique.setdefault(json.dumps([c.scenario.model_dump_json() for c in same.candidates]), same)
    return list(unique.values())


def base_and_section(tree: Mapping[str, Any]) -> tuple[dict[str, Any], SweepSection]:
    """The scenario without its sweep, and the sweep alone: a base may lack what the sweep gives."""
    if not tree.get("sweep"):
        hint = "give a grid, cells or tune; `fedsim simulate` runs one scenario"
        raise InputError(SWEEP, tree.get("sweep"), hint)
    base, section = {key: value for key, value in tree.items() if key != "sweep"}, parse_sweep(tree["sweep"])
    if section.tune is None and not has_candidates(section):
        return base, section
    report = base.get("report")
    metric = report.get("metric") if isinstance(report, Mapping) else None
    tune = with_criterion(section.tune or TuneSection(), metric)
    return base, section.model_copy(update={"tune": tune})


def _combination(
    base: Mapping[str, Any],
    section: SweepSection,
    names: Mapping[str, Mapping[str, Label]],
    setting: Setting,
    inner: Sequence[Setting],
) -> Combination:
    candidates = tuple(
        Candidate(chosen | common, scenario_of(base, fields | common, section))
        for fields, chosen in ways(setting)
        for common in inner
    )
    varied = {field: names[field][canonical(value)] for field, value in setting.items()}
    return Combination(varied, MECHANISMS[candidates[0].scenario.privacy.mechanism].private, candidates)


def scenario_of(base: Mapping[str, Any], setting: Setting, section: SweepSection) -> Scenario:
    """The base with the fields of `setting`, whole sections before what is inside them. InputError names the
    swept field where the fault is in one, else the scenario's own.
    """
    tree = copy.deepcopy(dict(base))
    for field in sorted(setting, key=lambda field: field.count(".")):
        value = copy.deepcopy(setting[field])
        if isinstance(value, dict):
            value.pop("label", None)
        place(tree, field, value)
    if section.tune and section.tune.private:
        given = tree["data"].get("reserve") if isinstance(tree.get("data"), dict) else None
        if given is not None:
            raise InputError("scenario.data.reserve", given, f"leave it out; {SWEEP}.tune.private sets it")
        place(tree, "data.reserve", {"fraction": section.tune.private.fraction})
    try:
        return parse(tree)
    except InputError as error:
        raise _renamed(error, setting, section) from None


def _renamed(error: InputError, setting: Setting, section: SweepSection) -> InputError:
    """Name the sweep's field where the error is in a varied one: it is to be mended there."""
    wrong = error.field.removeprefix("scenario.")
    for field in sorted(setting, key=len, reverse=True):
        if _within(wrong, field) or _within(field, wrong):
            inside = wrong.removeprefix(field) if _within(wrong, field) else ""
            value = error.value if inside else setting[field]
            hint = error.hint if inside or wrong == field else f"{wrong}: {error.hint}"
            return InputError(f"{place_of(field, section)}{inside}", value, hint)
    return error


def _within(field: str, parent: str) -> bool:
    return field == parent or field.startswith(parent + ".")


def _without_privacy(combination: Combination) -> Combination:
    """The same with neither clipping nor noise, of the same units; of the privacy section it depends on no
    other field. InputError if a theorem chooses numbers by epsilon.
    """
    used = (candidate.scenario.algorithm for candidate in combination.candidates)
    if any("theorem" in (each.parameters, getattr(each, "clip_norm", None)) for each in used):
        hint = "must be false in a sweep with parameters or clip_norm theorem, which depend on epsilon"
        raise InputError("scenario.report.nonprivate_baseline", True, hint)
    candidates = []
    for candidate in combination.candidates:
        known, tree = candidate.scenario, candidate.scenario.model_dump(mode="json")
        of = known.privacy.unit
        if isinstance(of, Person) and isinstance(of.h, Rule):  # which budgets may decide
            from fedsim.simulation.sweeps.cell import resolved_of  # loads torch

            known = resolved_of(known).scenario
        own = known.privacy.model_dump(mode="json")
        unit = {field: own[field] for field in UNIT if field in own}
        scenario = parse(tree | {"privacy": {"mechanism": NONE.name, **unit}})
        chosen = {field: value for field, value in candidate.chosen.items() if not _is_noise(field)}
        candidates.append(Candidate(chosen, scenario))
    varied = {field: v for field, v in combination.varied.items() if not _is_noise(field)}
    unique = {canonical([c.chosen, c.scenario.model_dump(mode="json")]): c for c in candidates}
    return Combination(varied, False, tuple(unique.values()))


def _is_noise(field: str) -> bool:
    """Whether a run without privacy does without it: all of its section but the units."""
    return _within(field, "privacy") and not any(_within(field, f"privacy.{own}") for own in UNIT)
