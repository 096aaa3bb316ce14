"""What a `sweep` section alone shows to be wrong, before any scenario is made of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from fedsim.common.errors import InputError
from fedsim.common.serialise import canonical
from fedsim.scenario.model import Choices, Grid, SweepSection, TuneSection
from fedsim.sweeps.candidates import ONE_OF, choices_of, count, tuned_grids

MOST_RUNS = 100_000
SWEEP = "scenario.sweep"
TUNE = f"{SWEEP}.tune"
_VARIABLE = (
    "seed",
    "data",
    "partition",
    "problem",
    "algorithm",
    "privacy",
    "participation",
    "assumptions",
    "runtime.dtype",
)
_NEVER_VARIED = ("name", "description", "variant", "variants", "trials", "report", "runtime", "sweep")
_NEVER_TUNED = ("data", "partition", "privacy", "seed")
"""Sections that say which records there are and what they may cost: the same for all private candidates."""


def check_section(section: SweepSection, trials: object) -> None:
    """Check the section of a scenario with so many trials (one, where the number is none).

    Raises:
        InputError: names the field, the value and what would be right.
    """
    if not section.grid and not section.cells and not section.tune:
        raise InputError(SWEEP, {}, "give a grid, cells or tune; it varies nothing")
    for name, grid in grids(section).items():
        for field, values in grid.items():
            _check_values(f"{name}.{field}", field, values)
    for index, cell in enumerate(section.cells):
        _check_cell(f"{SWEEP}.cells.{index}", cell, section.grid)
    for name, field, value in _varied(section):
        _check_own(name, field, value, section)
    if section.tune:
        _check_tune(section)
    _check_count(section, trials if isinstance(trials, int) else 1)


def grids(section: SweepSection) -> dict[str, Grid]:
    """The grids by the name of their place."""
    tuned = {f"{TUNE}.grid": section.tune.grid} if section.tune else {}
    return {f"{SWEEP}.grid": section.grid, **tuned}


def _varied(section: SweepSection) -> Iterator[tuple[str, str, Any]]:
    """(name of its place, field, value) of all that is varied and reported."""
    for field, values in section.grid.items():
        yield from ((f"{SWEEP}.grid.{field}", field, value) for value in values)
    for index, cell in enumerate(section.cells):
        yield from ((f"{SWEEP}.cells.{index}.{field}", field, value) for field, value in cell.items())


def has_candidates(section: SweepSection) -> bool:
    """Whether some value brings candidates of its own along."""
    return any(choices_of(name, value) != Choices() for name, _, value in _varied(section))


def place_of(field: str, section: SweepSection) -> str:
    """Where in the sweep's section a field is given its values."""
    for name, grid in grids(section).items():
        if field in grid:
            return f"{name}.{field}"
    if field in _fields(section):
        return f"{SWEEP}.cells.{field}"
    owner = next(one for one in _fields(section) if field.startswith(f"{one}."))
    return f"{place_of(owner, section)}.tune{field.removeprefix(owner)}"


def _fields(section: SweepSection) -> list[str]:
    return [*section.grid, *itertools.chain(*section.cells)]


def check_distinct(name: str, values: Sequence[Any], hint: str) -> None:
    """Refuse a value that stands in a list twice."""
    counts = Counter(map(canonical, values))
    twice = [value for value in values if counts[canonical(value)] > 1]
    if twice:
        raise InputError(name, twice[0], hint)


def where_fraction_is_given(error: InputError) -> InputError:
    """Name the sweep's field where the error is in the records put aside: a person mends it there."""
    if error.field == "scenario.data.reserve.fraction":
        return InputError(f"{TUNE}.private.fraction", error.value, error.hint)
    return error


def _check_values(name: str, field: str, values: Sequence[Any]) -> None:
    _check_field(name, field)
    if not values:
        raise InputError(name, values, "an empty grid; list at least one value")
    check_distinct(name, values, "stands in the list twice; each value once")


def _check_cell(name: str, cell: Mapping[str, Any], grid: Grid) -> None:
    if not cell:
        raise InputError(name, cell, "an empty cell; give at least one field")
    for field, value in cell.items():
        _check_field(f"{name}.{field}", field)
        _check_once(f"{name}.{field}", field, value, grid)


def _check_field(name: str, field: str) -> None:
    if field.split(".")[0] in _NEVER_VARIED and field not in _VARIABLE:
        hint = f"cannot be varied; what can: {', '.join(_VARIABLE)} and what is in them"
        raise InputError(name, field, hint)


def _check_once(name: str, field: str, value: object, others: Mapping[str, Any] | Sequence[str]) -> None:
    if field in others:
        raise InputError(name, value, "the field is varied in two places; leave one of them out")


def _check_own(name: str, field: str, value: object, section: SweepSection) -> None:
    """Candidates that the value brings along."""
    elsewhere = [
        *section.grid,
        *itertools.chain(*section.cells),
        *(section.tune.grid if section.tune else []),
    ]
    common, alternatives = choices_of(name, value).tune, choices_of(name, value).one_of
    check_distinct(f"{name}.{ONE_OF}", alternatives, "stands in the list twice; each alternative once")
    for index, one in enumerate(alternatives):
        within = choices_of(f"{name}.{ONE_OF}.{index}", one)
        if within.one_of:
            hint = "list all alternatives in one list"
            raise InputError(f"{name}.{ONE_OF}.{index}.{ONE_OF}", within.one_of, hint)
        for key, values in within.tune.items():
            _check_once(f"{name}.{ONE_OF}.{index}.tune.{key}", key, values, common)
    for place, grid in tuned_grids(name, value).items():
        for key, values in grid.items():
            _check_values(f"{place}.{key}", f"{field}.{key}", values)
            _check_once(f"{place}.{key}", f"{field}.{key}", values, elsewhere)


def _check_tune(section: SweepSection) -> None:
    tune = section.tune or TuneSection()
    if not tune.grid and not has_candidates(section):
        hint = "name the fields to choose, each with its candidate values, here or in `tune` of a section"
        raise InputError(f"{TUNE}.grid", {}, f"{hint} that is varied")
    _check_private(tune, section)
    for field, values in tune.grid.items():
        _check_once(f"{TUNE}.grid.{field}", field, values, _fields(section))


def _check_private(tune: TuneSection, section: SweepSection) -> None:
    by_score = tune.criterion == "private_error"
    if tune.private is None and by_score:
        raise InputError(f"{TUNE}.criterion", tune.criterion, "needs tune.private, such as {fraction: 0.2}")
    if tune.private is None:
        return
    if not by_score:
        hint = "is computed without noise; with tune.private use private_error"
        raise InputError(f"{TUNE}.criterion", tune.criterion, hint)
    own = [each for each in _varied(section) if choices_of(each[0], each[2]) != Choices()]
    for name, field, values in [*((f"{TUNE}.grid.{f}", f, v) for f, v in tune.grid.items()), *own]:
        if field.split(".")[0] in _NEVER_TUNED:
            fixed = ", ".join(_NEVER_TUNED)
            hint = f"private tuning cannot choose what is in {fixed}: it sets records or budgets"
            raise InputError(name, values, hint)


def _check_count(section: SweepSection, trials: int) -> None:
    """At most so many runs, counted before any is made."""
    outer = prod(map(len, section.grid.values())) * max(1, len(section.cells))
    runs = outer * trials
    if section.tune:
        runs += _candidates(section) * prod(map(len, section.tune.grid.values())) * section.tune.repetitions
    if runs > MOST_RUNS:
        raise InputError(SWEEP, f"{runs} runs", f"more than {MOST_RUNS}; vary less, or in several sweeps")


def _candidates(section: SweepSection) -> int:
    """Of all combinations together, those of the common grid left out."""
    gridded = prod(sum(count(field, value) for value in values) for field, values in section.grid.items())
    return gridded * sum(prod(count(*each) for each in cell.items()) for cell in section.cells or [{}])
