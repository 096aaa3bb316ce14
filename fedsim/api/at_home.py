"""A silo's model at home in a simulation: `Run.at_home`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import torch

from fedsim.api.given import one_run, resolved_of
from fedsim.common.errors import InputError
from fedsim.common.files import SCENARIO
from fedsim.measure.objective import pair
from fedsim.problems.at_home import Federation, Part, at_home, unfit
from fedsim.report.outcome import Outcome
from fedsim.report.predictor import Predictor, predictor_of
from fedsim.report.record import LedgerRow
from fedsim.simulation.trial import read

if TYPE_CHECKING:
    from fedsim.report.run_directory import RunData


@dataclass(frozen=True, eq=False)
class HomeModel(Predictor):
    """A model of one silo that is **not private**: made of its records without noise, it stays in the silo.

    `parts` are the three models that it mixes, each with its loss out of fold, its standard error and weight.
    """

    parts: tuple[Part, ...]


def home_model(run: RunData, silo: str, trial: int | None) -> HomeModel:
    """See `fedsim.Run.at_home`."""
    if run.summary.deployment is not None:
        hint = "a simulation: in a deployment a silo's operator makes it, by fedsim silo fit"
        raise InputError("run", run.summary.scenario, hint)
    source = run.source
    resolved = source.resolved if isinstance(source, Outcome) else resolved_of(one_run(source / SCENARIO))
    there = predictor_of(run, trial, nonprivate=not run.summary.privacy.private)
    models = run.models["private" if run.summary.privacy.private else "nonprivate"]
    number = next(iter(models)) if trial is None else trial
    if silo not in resolved.names:
        raise InputError("silo", silo, f"must be one of {', '.join(resolved.names)}")
    place = resolved.names.index(silo)
    rows = read(resolved, number).silos[place]
    (x, y), owners = pair(rows), None if rows.train.owners is None else torch.as_tensor(rows.train.owners)
    if why := unfit(resolved.problem, y, owners):
        raise InputError("silo", silo, f"has no fit at home: {why}")
    asked = {(row.trial, row.silo) for row in run.rows(LedgerRow)}
    noise = inf if run.summary.noise_cost is None else run.summary.noise_cost
    public = Federation(there.parameters, len(y) / resolved.weights[place], noise, (number, silo) in asked)
    found = at_home(resolved.problem, x, y, public, owners)
    return HomeModel(there.problem, found.w, there.fitted, there.num_classes, found.parts)
