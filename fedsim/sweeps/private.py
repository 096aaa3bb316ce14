"""Private tuning in a sweep: what can be tuned so, who agrees to it, and what the ledger says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedsim.common.errors import InputError, Refused
from fedsim.results.silo_rows import finite
from fedsim.scenario.sweep import SweepSection, TuneSection
from fedsim.sweeps.candidates import Selection, prepare, run_epsilons
from fedsim.sweeps.cells import outline_of
from fedsim.sweeps.naming import title
from silos.selection import AdmittedSelection

if TYPE_CHECKING:
    from fedsim.sweeps.combinations import Combination

_TUNE = "scenario.sweep.tune"
_FIXED = ("data", "partition", "privacy", "seed")
"""Sections that say which records there are and what they may cost: the same for all candidates."""

GUARANTEE = (
    "for each silo, all that it releases to tune one combination and one reported run with what was chosen "
    "are together (epsilon_total, delta)-DP with respect to replacing one of its records: a record trains "
    "candidates, scores them or is in the reported run, never two of these, so that epsilon_total is the "
    "largest of the three"
)

CHOICE_BUT = "the choice of all that was not tuned, candidate values included, where data was looked at"


def check_private(section: SweepSection) -> None:
    """Check what the section alone shows to be wrong.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    tune = section.tune
    if tune is None or (tune.private is None and tune.criterion != "private_error"):
        return
    if tune.private is None:
        raise InputError(f"{_TUNE}.criterion", tune.criterion, "needs tune.private, such as {fraction: 0.2}")
    if tune.criterion != "private_error":
        expected = "is computed without noise; with tune.private use private_error"
        raise InputError(f"{_TUNE}.criterion", tune.criterion, expected)
    for field, values in tune.grid.items():
        if field.split(".")[0] in _FIXED:
            expected = (
                f"private tuning cannot choose what is in {', '.join(_FIXED)}: it sets records or budgets"
            )
            raise InputError(f"{_TUNE}.grid.{field}", values, expected)


def selections(found: Sequence[Combination], tune: TuneSection | None) -> dict[int, Selection]:
    """How each combination is tuned, by its number; none where nothing is tuned privately.

    Raises:
        InputError: a combination cannot be tuned so, or a silo cannot afford it; names both.
    """
    if tune is None or tune.private is None:
        return {}
    if not any(combination.private for combination in found):
        expected = (
            "a choice that is private needs runs that are: leave private out, or give mechanism gaussian"
        )
        raise InputError(f"{_TUNE}.private", tune.model_dump()["private"], expected)
    chosen = {}
    for number, combination in enumerate(found):
        if len(combination.candidates) > 1:
            chosen[number] = _selection(combination, tune)
    return chosen


def _selection(combination: Combination, tune: TuneSection) -> Selection:
    scenarios = [candidate.scenario for candidate in combination.candidates]
    privacy, name = scenarios[0].privacy, title(combination.varied, combination.private)
    if combination.private and privacy.calibration != "accountant":
        expected = (
            f"private tuning needs calibration accountant, which finds the noise for a budget (in {name})"
        )
        raise InputError("scenario.privacy.calibration", privacy.calibration, expected)
    try:
        return prepare(scenarios, outline_of, tune.repetitions)
    except InputError as error:  # the candidates are right on the rest of the records
        expected = f"{error.expected} (on the records that tuning puts aside, in {name})"
        raise InputError(error.field, error.value, expected) from None
    except Refused as refusal:
        expected = f"{refusal}; lower repetitions, candidates or rounds, or raise epsilon (in {name})"
        raise InputError(f"{_TUNE}.private", tune.model_dump()["private"], expected) from None


def where_fraction_is_given(error: InputError) -> InputError:
    """An error in what is put aside is one of the sweep section, which is where a person can mend it."""
    if error.field == "scenario.data.reserve.fraction":
        return InputError(f"{_TUNE}.private.fraction", error.value, error.expected)
    return error


def ledger(
    found: Sequence[Combination],
    chosen: Mapping[int, int | None],
    selections: Mapping[int, Selection],
    tune: TuneSection,
    trials: Sequence[int],
) -> dict[str, Any] | None:
    """`privacy.tuning` of a summary: what choosing cost each silo, beside what the reported run costs it."""
    if tune.private is None:
        return None
    rows = []
    for number, selection in selections.items():
        if not found[number].private:
            continue
        place = chosen.get(number)
        runs: Sequence[float | None] = [None] * len(selection.silos)
        shape = outline_of(found[number].candidates[0].scenario)
        if place is not None:
            runs = run_epsilons(found[number].candidates[place].scenario, shape, trials)
        rows.append(
            {
                "varied": found[number].varied,
                "runs": len(selection.scenarios) * selection.repetitions,
                "silos": [
                    _row(silo, shape.sizes[silo.terms.name], run)
                    for silo, run in zip(selection.silos, runs, strict=True)
                ],
            }
        )
    return {
        "note": note(tune),
        "guarantee": GUARANTEE,
        "mechanism": "gaussian: every candidate's run, and its number of misclassified records",
        "fraction": tune.private.fraction,
        "combinations": rows,
    }


def _row(silo: AdmittedSelection, n_run: int, run: float | None) -> dict[str, Any]:
    """`run` is None where nothing was reported."""
    return {
        "name": silo.terms.name,
        "n_tune": 2 * silo.terms.half,
        "n_run": n_run,
        "delta": silo.terms.delta,
        "epsilon_budget": finite(silo.terms.epsilon),
        "noise_multiplier": silo.noise_multiplier,
        "score_noise_multiplier": silo.score_noise_multiplier,
        "epsilon_training": finite(silo.epsilon_training),
        "epsilon_scores": finite(silo.epsilon_scores),
        "epsilon_tuning": finite(silo.epsilon),
        "epsilon_run": None if run is None else finite(run),
        "epsilon_total": finite(max(silo.epsilon, 0.0 if run is None else run)),
    }


def note(tune: TuneSection) -> str:
    """One line for the terminal, the page and the figure."""
    fields = ", ".join(field.split(".")[-1] for field in tune.grid)
    share = tune.private.fraction if tune.private else 0.0
    return f"{fields} tuned privately, on {share:.0%} of each silo's records"
