"""Runs cells in one process, those that fold together as one, and measures their final models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.common.serialise import canonical
from fedsim.data.federation import Federation, SiloSplit
from fedsim.measure.evaluator import Evaluator, Tested, Unseen
from fedsim.measure.metrics import asked_of
from fedsim.protocol.limits import DIVERGED, LIMITS
from fedsim.report.outcome import variants
from fedsim.report.record import CellResult
from fedsim.scenario.load import check_unchanged, parse
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.failures import failure
from fedsim.simulation.host import SiloHost
from fedsim.simulation.run_digest import run_digest
from fedsim.simulation.selection import Grant, Scorer
from fedsim.simulation.side_by_side import Folded, run_fold, shared_key
from fedsim.simulation.sweeps.cell import Cell, CellOutcome, records_of, resolved_of
from fedsim.simulation.trial import Trial
from silos.vault.entropy import SeededEntropy
from silos.vault.owners import Owners

Measured = tuple[float, float | None, dict[str, float | None]]
_FOREVER = 1e9  # seconds
_NEVER = 10**9  # rounds between two evaluations: only the first and the last are made


def run_batch(cells: Sequence[Cell]) -> list[CellOutcome]:
    """Run cells; returns the outcome of each, in order. A failed cell does not stop the others.

    Cells that fold together (`fedsim.simulation.side_by_side`) run as one. Where one is refused they run in
    halves, so that it is found in a few steps.
    """
    try:
        return [_run_alone(cells[0])] if len(cells) == 1 else _run_folded(cells)
    except Exception as error:  # of several cells, it will be some cell's own when that runs alone
        if len(cells) == 1:
            return [failure(error)]
        trials = len({cell.trial for cell in cells})
        settings = len(cells) // trials
        middle = settings // 2 * trials if settings > 1 else len(cells) // 2  # each half is a product too
        return [*run_batch(cells[:middle]), *run_batch(cells[middle:])]


def _run_alone(cell: Cell) -> CellResult:
    start = time.perf_counter()
    resolved = _resolved(cell)
    data = records_of(resolved, cell.trial)
    if cell.fold_key is None:
        run = run_digest(resolved, data.digest, variants(resolved)[0], cell.selection)
    else:  # its noise is the same as where it is folded
        run = shared_key(resolved, data)
    grant = _granted(cell)
    trial = Trial(resolved, cell.trial, SiloHost(resolved, cell.trial, data, run, grant), Unseen(), data)
    trial.advance(_FOREVER)
    result = trial.result()
    (model,) = result.models.values()
    measured: Measured
    if cell.scored and grant is not None:
        measured = private_score(resolved, cell.trial, grant, data, model, run), None, {}
    else:
        measured = on_test_records(evaluator_of(resolved, data), model, not cell.train_loss)
    outcome = Folded(model, [statement.admitted for statement in result.statements])
    return _result(cell, resolved, data, outcome, measured, time.perf_counter() - start)


def _run_folded(cells: Sequence[Cell]) -> list[CellOutcome]:
    """Cells that are every setting in every trial, of one `fold_key`."""
    start = time.perf_counter()
    trials = sorted({cell.trial for cell in cells})
    settings = {canonical(cell.scenario): cell for cell in cells}
    keys = {cell.fold_key for cell in cells}
    if len(settings) * len(trials) != len(cells) or len(keys) != 1 or None in keys:
        raise ValueError("these cells do not fold together")
    for cell in cells:
        _granted(cell)
    resolved = {setting: _resolved(cell) for setting, cell in settings.items()}
    first = next(iter(resolved.values()))
    data = {trial: records_of(first, trial) for trial in trials}
    outcomes = dict(zip(resolved, run_fold(list(resolved.values()), data), strict=True))
    evaluate = {t: evaluator_of(first, own) for t, own in data.items()}
    seconds = (time.perf_counter() - start) / len(cells)
    result: list[CellOutcome] = []
    for cell in cells:
        setting, trial = canonical(cell.scenario), cell.trial
        outcome = outcomes[setting][trials.index(trial)]
        try:
            measured = on_test_records(evaluate[trial], outcome.model, not cell.train_loss)
            result.append(_result(cell, resolved[setting], data[trial], outcome, measured, seconds))
        except ValueError as error:
            result.append(failure(error))
    return result


def evaluator_of(resolved: Resolved, data: Federation, trial: int = 0) -> Evaluator:
    """Error, loss and other metrics on all silos' test records."""
    asked = asked_of(resolved, data.fitted.preparation)
    return Evaluator(resolved.problem, data.silos, resolved.dtype, asked, trial=trial)


def _resolved(cell: Cell) -> Resolved:
    scenario = parse(cell.scenario)
    check_unchanged(scenario)
    quiet = {"evaluate_every": _NEVER, "nonprivate_baseline": False, "clipping": False}
    report = scenario.report.model_copy(update=quiet)
    scenario = scenario.model_copy(update={"report": report, "evaluate": None})
    return resolved_of(scenario)


def _granted(cell: Cell) -> Grant | None:
    """Permission to use the records; None where none are put aside. Refused if they are, and the cell has no
    grant, or one for something else.
    """
    grant = cell.grant
    if grant is None and cell.scenario["data"].get("reserve") is None:
        return None
    if grant is None:
        raise Refused("records are put aside for private tuning: a run on any part of them needs a grant")
    if grant.run != cell.run_id:
        raise Refused(f"the grant is for another run than this one, trial {cell.trial}")
    return grant


def _result(
    cell: Cell, resolved: Resolved, data: Federation, outcome: Folded, measured: Measured, seconds: float
) -> CellResult:
    """`measured`: error or score, loss, and other metrics."""
    error, loss, more = measured
    priced = [each for each in outcome.admitted if not each.terms.public]
    worst = max(priced, key=lambda admitted: admitted.epsilon_guaranteed)
    trained = train_loss(resolved, data.silos, outcome.model) if cell.train_loss else None
    cost = worst.epsilon_guaranteed, worst.terms.name, worst.noise_multiplier
    return CellResult(error, loss, trained, *cost, resolved.problem.error_name, seconds, more)


def on_test_records(evaluate: Evaluator, model: Tensor, all_metrics: bool) -> Tested:
    """Error, loss and if asked all metrics on test records; not private. ValueError if one is not finite."""
    error, loss, _ = tested = evaluate(model, last=all_metrics)
    if not (isfinite(error) and isfinite(loss)):
        values = f"test error {error:g} and loss {loss:g}"
        raise ValueError(f"the final model has {values} {DIVERGED}")
    return tested


def train_loss(resolved: Resolved, silos: Sequence[SiloSplit], w: Tensor) -> float:
    """sum_i p_i (mean loss of silo i's training records) at w, (d,), without the regulariser; not private."""
    total = 0.0
    for weight, silo in zip(resolved.weights, silos, strict=True):
        scores = resolved.problem.scores(torch.as_tensor(silo.train.features).to(resolved.dtype), w)
        target = torch.as_tensor(silo.train.target).to(resolved.dtype)
        total += weight * float(resolved.problem.losses(scores, target).mean())
    return total


def private_score(
    resolved: Resolved, trial: int, grant: Grant, data: Federation, model: Tensor, run: str
) -> float:
    """The metric of sum_i p_i (silo i's noisy mean of terms on the records that it scores with). The grant
    names the score, and each silo's noise, which `run` keys.
    """
    reserve = resolved.scenario.data.reserve
    if reserve is None or reserve.use != "reserved":
        raise ValueError("scores are of records put aside")
    problem, names, seed = resolved.problem, resolved.names, resolved.scenario.seed
    entropy = SeededEntropy(seed, trial, names, [run] * len(names))
    held, seeded = data.silos.test, (seed, trial, data.silos.names)
    owners = Owners.of(resolved.scenario.privacy.unit, (rows.owners for rows in held), seeded)
    scorer = Scorer(held, problem, grant.score_noise, entropy, LIMITS, resolved.dtype, grant.score, owners)
    return grant.score.value(np.dot(resolved.weights, scorer.answer(model)), resolved.outline.num_classes)
