"""`fedsim.release`: statistics of the silos' records, each silo's within its budget."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.algorithms.release import Item, Release
from fedsim.api.asked import Asked, Asking, Column, Known, Read, Units, Value, number_of_persons
from fedsim.api.given import ScenarioLike, changes_of, objects, one_run
from fedsim.api.run import Run, silos_html
from fedsim.common.errors import InputError
from fedsim.common.files import check_free
from fedsim.common.process import one_thread
from fedsim.data.csv_table import TableData
from fedsim.data.dataset import Dataset
from fedsim.data.federation import Federation, load, outline
from fedsim.data.recipe import recipe_of
from fedsim.data.schema import NumberColumn, names_of, of_hats, read_schema
from fedsim.privacy.registry import MECHANISMS
from fedsim.problems.section import problem_section
from fedsim.protocol.clashes import check
from fedsim.protocol.statistics import TARGET
from fedsim.protocol.unit import Person
from fedsim.report import page
from fedsim.report.outcome import Outcome, Results, TrialResult
from fedsim.report.released import FILE, released_table
from fedsim.report.run_directory import data_of
from fedsim.report.tables import lines_html
from fedsim.scenario.algorithm import SECTIONS
from fedsim.scenario.evaluation import sum_noise
from fedsim.scenario.facts import facts_of
from fedsim.scenario.load import check_unchanged, digests_of
from fedsim.scenario.model import ReportSection, RuntimeSection, Scenario
from fedsim.scenario.participation import AllSilos
from fedsim.scenario.privacy import alike
from fedsim.scenario.resolve import Resolved, resolve, with_seed
from fedsim.simulation.host import SiloHost, preview
from fedsim.simulation.trial import rounds_of
from server.participation import schedule


@dataclass(frozen=True, eq=False, repr=False)
class Released:
    """The result of `fedsim.release`.

    Attributes:
        found: {name: values, with their standard errors}.
        run: what it cost each silo, in `summary.privacy.silos` and `ledger`; it has no model.
        unit: `record` or `person`.
        weighing: what weighs the same.
        spent: {what was asked: its share of mu^2}.
        notices: that `expected_persons` stands for another number than that of persons.
    """

    found: dict[str, list[Value]]
    run: Run
    unit: str
    weighing: str
    spent: dict[str, float]
    notices: list[str]

    @property
    def values(self) -> dict[str, dict[str, float]]:
        """{name: {what: value}}, in the columns' own units."""
        return {name: {each.what: each.value for each in own} for name, own in self.found.items()}

    @property
    def errors(self) -> dict[str, dict[str, float | None]]:
        """{name: {what: standard error}}, of the noise alone; None where there is none."""
        return {name: {each.what: each.standard_error for each in own} for name, own in self.found.items()}

    @property
    def tree(self) -> dict[str, Any]:
        """All of it, as `release.json` has it."""
        word = {"weighing": self.weighing}
        values = [{"of": name, **each._asdict(), **word} for name, own in self.found.items() for each in own]
        return {"unit": self.unit, **word, "spent": self.spent, "notices": self.notices, "values": values}

    def save(self, path: str | os.PathLike[str]) -> list[str]:
        """Write a run directory with `release.json` and a page; result and errors as of `Run.save`."""
        self.run.save(path)
        (Path(path) / FILE).write_text(json.dumps(self.tree, indent=2) + "\n", encoding="utf-8")
        page.write_page(Path(path))
        return page.listing(Path(path))

    def __repr__(self) -> str:
        return f"Released({sum(map(len, self.found.values()))} values of {self.run.summary.scenario})"

    def _repr_html_(self) -> str:
        table = released_table(self.tree)
        return lines_html([table.caption]) + table.html + silos_html(self.run.summary.privacy)


def release(
    scenario: ScenarioLike,
    request: Mapping[str, Asked | Sequence[Asked]],
    epsilon: float | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    data: Dataset | None = None,
    out: str | os.PathLike[str] | None = None,
    **short: Any,
) -> Released:
    """Release statistics of all records of the scenario's silos, once, in simulation.

    >>> from fedsim import Histogram, Mean
    >>> found = release("quickstart", {"age": Mean(), "sex": Histogram()}, epsilon=0.5)
    >>> max(silo.epsilon_guaranteed for silo in found.run.summary.privacy.silos) <= 0.5
    True

    The scenario's data, partition and privacy count; its model, how records are prepared for it and the bound
    of unit person do not: every person weighs the same. Relation `add_remove` releases their number too.

    Args:
        scenario: see `fedsim.simulate`, as for `overrides`, `data` and `short`.
        request: {column: what is asked of it}; `Moments` and `Components` have any name. All
            that is asked costs the same mu^2.
        epsilon: each silo's budget for all of it; default: the scenario's.
        out: a new directory for the run.

    Raises:
        InputError: names the field, the value and what would be right.
        Refused: a silo cannot afford it.
    """
    changes = changes_of(overrides, short) | ({} if epsilon is None else {"privacy.epsilon": epsilon})
    given = with_seed(one_run(scenario, changes))
    if out is not None:
        check_free(Path(out))
    if data is None:
        check_unchanged(given)
    made = _released(*_planned(given.model_copy(update=objects(None, data, changes)), request))
    if out is not None:
        made.save(out)
    return made


_NOTHING: Any = dict.fromkeys(("nonprivate_baseline", "baselines", "clipping", "excess_risk"), False)
Readers = list[tuple[str, str, slice, Read]]
"""Of what is asked its name, its kind, the places of its items and what reads their answers."""


def _planned(given: Scenario, request: Mapping[str, Asked | Sequence[Asked]]) -> tuple[Resolved, Readers]:
    """The run, on features as they are, and what reads its answers."""
    if not (mechanism := MECHANISMS[given.privacy.mechanism]).private:
        hint = "one with noise: values leave the silos"
        raise InputError("scenario.privacy.mechanism", mechanism.name, hint)
    check(facts_of(given), "release", given.value)
    asked, privacy, unit = _asked(request), given.privacy, given.privacy.unit
    if isinstance(unit, Person):
        privacy = privacy.model_copy(update={"unit": replace(unit, bound="mean", h=None)})
    plain = {"scaling": "none", "intercept": False, "test_fraction": 0.0}  # `_held` adds the constant one
    fitted = ("transform", "pca", "record_norm", "preprocessing_cost")
    data = given.data.model_copy(update=plain | dict.fromkeys(fitted))
    if isinstance(data, TableData) and (curved := of_hats(columns := read_schema(data.columns))):
        numbers = {name: column.straight for name, column in curved.items()}
        data = data.model_copy(update={"columns": {**columns, **numbers}})
    shape = outline(data, given.partition, given.seed, given.privacy.unit)
    shape = replace(shape, num_features=shape.num_features + 1)
    alone = len(shape.sizes) == 1 and not mechanism.sums_only
    known = Known(_columns(data), sum(privacy.sizes(shape)), alone, unit)
    items, readers = _asking(asked, known, privacy.expected_persons is not None)
    problem = {0: "linear_regression", 2: "logistic_regression"}.get(shape.num_classes, "softmax_regression")
    sections = {
        "data": data,
        "privacy": privacy,
        "public": None,
        "problem": problem_section({"name": problem, "silo_weights": "size"}),
        "algorithm": SECTIONS["release"].model_validate({"name": "release", "items": items}),
        "participation": AllSilos(),
        "runtime": RuntimeSection(name="inprocess", shuffler=given.runtime.shuffler),
        "report": ReportSection(**_NOTHING),
        "trials": 1,
        "evaluate": None,
        "prepare": (),
    }
    resolved = resolve(given.model_copy(update=sections), shape)
    if resolved.sums is not None:  # a record counts once: no silo can count less for a smaller budget
        resolved = replace(resolved, budgets=alike(resolved.budgets))
    return resolved, readers


def _asked(request: Mapping[str, Asked | Sequence[Asked]]) -> list[tuple[str, Asked]]:
    lists = {name: own if isinstance(own, Sequence) else [own] for name, own in request.items()}
    asked = [(name, each) for name, own in lists.items() for each in own]
    wrong = [each for _, each in asked if not isinstance(each, Asked)]
    if wrong or not asked:
        raise InputError("release", wrong, 'ask for something, such as {"age": fedsim.Mean()}')
    return asked


def _asking(asked: list[tuple[str, Asked]], known: Known, private: bool) -> tuple[list[Item], Readers]:
    """All that is asked, at the same share of mu^2 each; last, where it is private, the number of persons."""
    asking, items, readers = list[tuple[str, str, Asking]](), list[Item](), Readers()
    for name, each in asked:
        try:
            asking.append((name, type(each).__name__.lower(), each.ask(name, known)))
        except TypeError:  # a text for a number
            raise InputError(f"release.{name}", vars(each), "has options that it cannot have") from None
    if private:
        asking.append(("persons", "number", number_of_persons(known.n)))
    for name, kind, (own, read) in asking:
        readers.append((name, kind, slice(len(items), len(items) + len(own)), read))
        items += [item._replace(noise_ratio=math.sqrt(len(asking) * len(own))) for item in own]
    return items, readers


def _columns(data: Dataset) -> dict[str, Column]:
    """All columns, the target last; no record is read for it."""
    source, found, first = data.open(), dict[str, Column](), 0
    recipe = recipe_of(data, source, source.design(np.zeros(0, np.int64)))
    for name, kind in recipe.columns.items():
        found[name], first = Column(name, first, kind), first + len(names_of(name, kind, intercept=False))
    return found | {recipe.target: Column(recipe.target, TARGET, recipe.predicts)}


def _held(records: Federation, data: Dataset) -> Federation:
    """Records with each feature held to its declared range, and the constant one: a function of a record."""
    train = records.silos.train
    held = train.rows.features.copy()
    for column in _columns(data).values():
        if column.first != TARGET and isinstance(kind := column.kind, NumberColumn):
            held[:, column.first] = np.clip(held[:, column.first], kind.lower, kind.upper)
    held = np.hstack([held, np.ones((len(held), 1))])
    train = replace(train, rows=train.rows._replace(features=held))
    return replace(records, silos=replace(records.silos, train=train))


def _released(resolved: Resolved, readers: Readers) -> Released:
    scenario, start, admitted = resolved.scenario, time.perf_counter(), preview(resolved)
    rounds = schedule(len(resolved.names), resolved.active, resolved.trace.holds, scenario.seed, 0)
    with one_thread():
        records = load(scenario.data, scenario.partition, scenario.seed, 0, scenario.privacy.unit)
        records = _held(records, scenario.data)
        hosts = SiloHost(resolved, 0, records)
        *_, last = rounds_of(resolved, 0, hosts, records.digest, "private", rounds)
    assert isinstance(resolved.algorithm, Release)
    unit, plan = sum_noise(resolved, admitted) / sum(resolved.sizes), resolved.trace.plan
    noise = [
        unit * item.noise_ratio * item.clip * plan.spread(ask.queries[0])
        for item, (ask,) in zip(resolved.algorithm.items, plan.rounds, strict=True)
    ]
    sizes = [size for ((_, size),) in resolved.trace.messages]
    answers = np.split(last.answer.numpy(), np.cumsum(sizes)[:-1])
    found, spent, units = dict[str, list[Value]](), dict[str, float](), Units()
    if private := scenario.privacy.expected_persons is not None:
        (share,), error = answers[-1].tolist(), noise[-1]
        units = Units(max(share, error), error)
    for name, kind, own, read in readers:
        found.setdefault(name, []).extend(read(answers[own], noise[own], units))
        spent[f"{name} {kind}"] = spent.get(f"{name} {kind}", 0.0) + 1 / len(readers)
    results, seconds = Results(), time.perf_counter() - start
    results.finish(TrialResult(0, {}, hosts.statements("private")))
    outcome = Outcome(resolved, results, seconds, admitted=admitted, files=digests_of(scenario))
    notices, n = list[str](), sum(resolved.sizes)
    if private and abs(share - 1) > max(3 * error, 0.05):
        number = f"The released number of persons is {n * share:,.0f}, standard error {n * error:,.0f}"
        notices.append(f"{number}; expected_persons add up to {n:,}: declare about as many as there are")
    of, run = scenario.privacy.unit, Run(data_of(outcome))
    return Released(found, run, of.name, of.weighing, spent, notices)
