"""A sweep's `summary.json` and `cells.parquet`: what each combination came to, and how it was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fedsim.results.privacy_statement import ADJACENCY, CHOICE, GUARANTEE, UNIT, not_private
from fedsim.results.silo_rows import finite
from fedsim.results.summarise import interval90
from fedsim.scenario.sweep import TuneSection
from fedsim.simulation.fold import fold_key
from fedsim.sweeps.candidates import Selection
from fedsim.sweeps.cells import CellResult, outline_of
from fedsim.sweeps.combinations import Combination
from fedsim.sweeps.engine import Row, SweepResults, mean, reported_trials
from fedsim.sweeps.keys import canonical, cell_of, code_version
from fedsim.sweeps.private import CHOICE_BUT, ledger
from fedsim.sweeps.statement import how

FORMAT = "fedsim sweep 1"

SHARED = (
    "runs that differ in step size, clip norm and epsilon alone, taken together, in this sweep or another: "
    "they share noise (common random numbers), so that two of them can show what the noise of each hides"
)


@dataclass(frozen=True)
class Sweep:
    """A sweep that has been run: what was asked, and what came of it."""

    name: str
    trials: int
    combinations: Sequence[Combination]
    tune: TuneSection | None
    results: SweepResults
    wall_seconds: float
    selections: Mapping[int, Selection] = field(default_factory=dict)


def summarise(sweep: Sweep) -> dict[str, Any]:
    """`summary.json` as plain values; numbers that do not exist (or are infinite) are None."""
    results = sweep.results
    return {
        "format": FORMAT,
        "scenario": sweep.name,
        "status": "finished with failures" if results.failures else "finished",
        "trials": sweep.trials,
        "runs": {"made": results.ran, "from_cache": results.cached, "failed": len(results.failures)},
        "wall_seconds": round(sweep.wall_seconds, 3),
        "error": next((row.result.error_name for row in results.rows), None),
        "varied": list(dict.fromkeys(field for c in sweep.combinations for field in c.varied)),
        "combinations": [_combination(sweep, number) for number in range(len(sweep.combinations))],
        "failures": [
            {
                "varied": sweep.combinations[place.combination].varied,
                "chosen": sweep.combinations[place.combination].candidates[place.candidate].chosen,
                "trial": place.trial,
                "kind": failure.kind,
                "message": failure.message,
            }
            for place, _, failure in results.failures
        ],
        "tuning": _tuning(sweep),
        "privacy": _privacy(sweep),
        "code": code_version(),
    }


def _combination(sweep: Sweep, number: int) -> dict[str, Any]:
    combination, chosen = sweep.combinations[number], sweep.results.chosen.get(number)
    results = [row.result for row in sweep.results.rows if row.place.combination == number]
    values: dict[str, Any] = {"trials": len(results)}
    for name in ("test_error", "test_loss"):
        found = np.array([getattr(result, name) for result in results])
        values[name] = float(found.mean()) if len(found) else None
        values[f"{name}_interval90"] = interval90(found)
    worst = max(results, key=lambda result: result.epsilon, default=None)
    return {
        "varied": combination.varied,
        "private": combination.private,
        "chosen": combination.candidates[chosen].chosen if chosen is not None else None,
        "epsilon_budget": _budget(combination),
        "epsilon_guaranteed": _guaranteed(worst, sweep.selections.get(number)),
        "costliest_silo": None if worst is None or not combination.private else worst.silo,
        "noise_multiplier": None if worst is None else worst.noise_multiplier,
        **values,
        "seconds_per_run": float(np.mean([result.seconds for result in results])) if results else None,
    }


def _guaranteed(worst: CellResult | None, selection: Selection | None) -> float | None:
    """Of tuning and run together; None if nothing was reported, or nothing bounds it."""
    if worst is None:
        return None
    tuning = [silo.epsilon for silo in selection.silos] if selection else []
    return finite(max([worst.epsilon, *tuning]))


def _budget(combination: Combination) -> float | None:
    """The largest of the silos' budgets; None without a guarantee, or without a limit."""
    epsilon = combination.candidates[0].scenario.privacy.epsilon
    if not combination.private or epsilon is None or epsilon == "unlimited":
        return None
    if isinstance(epsilon, float | int):
        return float(epsilon)
    return float(max(epsilon.values() if isinstance(epsilon, dict) else epsilon))


def _tuning(sweep: Sweep) -> dict[str, Any] | None:
    if sweep.tune is None:
        return None
    rows = []
    for (number, place), values in sweep.results.criterion.items():
        combination = sweep.combinations[number]
        rows.append(
            {
                "varied": combination.varied,
                "private": combination.private,
                "candidate": combination.candidates[place].chosen,
                sweep.tune.criterion: mean(values),
                "values": values,
                "selected": sweep.results.chosen.get(number) == place,
            }
        )
    return {
        "criterion": sweep.tune.criterion,
        "repetitions": sweep.tune.repetitions,
        "private": sweep.tune.private is not None,
        "candidates": rows,
    }


def _privacy(sweep: Sweep) -> dict[str, Any]:
    tune = sweep.tune
    notes = [tuning_note(tune)] if tune and not tune.private else []
    for combination in sweep.combinations:
        if combination.private:
            notes += not_private(combination.candidates[0].scenario)
        else:
            notes.append("all of the runs marked non-private, which neither clip nor add noise")
    repeated = (
        "the sweep as a whole: each run is one use of the records, and its guarantee is that of one run"
    )
    alone = "of each private run taken alone"
    if tune and tune.private:
        notes = [note.replace(CHOICE, CHOICE_BUT) for note in notes]
        repeated += " together with what was released to tune it"
        alone += " or, where it was tuned, with its tuning (see tuning)"
    reported = reported_trials(tune, sweep.trials)
    spent = tune and ledger(sweep.combinations, sweep.results.chosen, sweep.selections, tune, reported)
    return {
        "unit": UNIT,
        "adjacency": ADJACENCY,
        "guarantee": f"{alone}: {GUARANTEE}",
        **how([combination.candidates[0].scenario for combination in sweep.combinations], outline_of),
        "not_private": list(dict.fromkeys([*notes, repeated, *_about_noise(sweep)])),
        **({"tuning": spent} if spent else {}),
    }


def _about_noise(sweep: Sweep) -> list[str]:
    """What the noise of a sweep's runs does not hide."""
    private = [one.scenario for c in sweep.combinations if c.private for one in c.candidates]
    shared = any(fold_key(cell_of(scenario, 0, False).scenario) is not None for scenario in private)
    fields = {field for c in sweep.combinations for field in (*c.varied, *c.candidates[0].chosen)}
    seeds = "the noise of runs whose seed is varied: the seeds stand here"
    return [SHARED] * shared + [seeds] * ("seed" in fields)


def tuning_note(tune: TuneSection) -> str:
    """What a reader must know about chosen fields."""
    looked = "training" if tune.criterion == "final_train_loss" else "test"
    return (
        f"the choice of {', '.join(tune.grid)}: for each combination the values of least mean "
        f"{tune.criterion} over {tune.repetitions} runs, computed from all silos' {looked} "
        "records without noise"
    )


def cells_table(sweep: Sweep) -> pa.Table:
    """One row per combination and trial: varied and chosen fields as columns, then what was measured."""
    varied = list(dict.fromkeys(field for c in sweep.combinations for field in c.varied))
    chosen = list(sweep.tune.grid) if sweep.tune else []
    rows = [_row(sweep, row, varied, chosen) for row in sweep.results.rows]
    names = list(rows[0]) if rows else []
    return pa.table({name: _column([row[name] for row in rows]) for name in names})


def _row(sweep: Sweep, row: Row, varied: Sequence[str], chosen: Sequence[str]) -> dict[str, Any]:
    combination = sweep.combinations[row.place.combination]
    picked: Mapping[str, Any] = combination.candidates[row.place.candidate].chosen
    result = row.result
    return {
        **{field: combination.varied.get(field) for field in varied},
        **{field: picked.get(field) for field in chosen},
        "private": combination.private,
        "trial": row.place.trial,
        "test_error": result.test_error,
        "test_loss": result.test_loss,
        "epsilon_guaranteed": finite(result.epsilon),
        "worst_silo": result.silo if combination.private else None,
        "noise_multiplier": result.noise_multiplier,
        "seconds": result.seconds,
        "cached": row.cached,
        "key": row.key,
    }


def _column(values: Sequence[Any]) -> pa.Array:
    """Values of one type as they are; whole sections, and a mixture, as texts."""
    try:
        if not any(isinstance(value, dict | list) for value in values):
            return pa.array(values)
    except pa.ArrowException:
        pass
    return pa.array([v if v is None or isinstance(v, str) else canonical(v) for v in values], pa.string())
