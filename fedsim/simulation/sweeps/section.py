"""The `sweep` section: checks before any scenario is made of it, and the candidates that it lists."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from pydantic import ValidationError

from fedsim.common.errors import InputError
from fedsim.common.plugins import short
from fedsim.common.section import complaint
from fedsim.common.serialise import canonical
from fedsim.report.summary import Label, Setting
from fedsim.scenario.model import Choices, Grid, SweepSection, TuneSection

MOST_RUNS = 100_000
SWEEP = "scenario.sweep"
TUNE = f"{SWEEP}.tune"
_VARIABLE = (
    *("seed", "data", "partition", "problem", "algorithm", "privacy", "participation", "assumptions"),
    "runtime.dtype",
)
_WORDS = ("name", "description", "purpose")
_NEVER_VARIED = (*_WORDS, "variant", "variants", "trials", "report", "runtime", "sweep")
_NEVER_TUNED = ("data", "partition", "privacy", "seed")
"""Sections that say which records there are and what they may cost: the same for all private candidates."""
UNIT = ("unit", "expected_persons")
"""Of the privacy section, what says whose records count as one: a run without noise has it too."""


def check_section(section: SweepSection, trials: object) -> None:
    """Check the section of a scenario with so many trials (one, where the number is none). InputError names
    the field, the value and what would be right.
    """
    if not section.grid and not section.cells and not section.tune:
        raise InputError(SWEEP, {}, "give a grid, cells or tune; it varies nothing")
    for name, grid in grids(section).items():
        for field, values in grid.items():
            _check_values(f"{name}.{field}", field, values)
    for index, cell in enumerate(section.cells):
        if not cell:
            raise InputError(f"{SWEEP}.cells.{index}", cell, "an empty cell; give at least one field")
        for field, value in cell.items():
            _check_field(f"{SWEEP}.cells.{index}.{field}", field)
            _check_once(f"{SWEEP}.cells.{index}.{field}", field, value, section.grid)
    for name, field, value in _varied(section):
        _check_own(name, field, value, section)
    if tune := section.tune:
        if not tune.grid and not has_candidates(section):
            hint = "name the fields to choose, each with its candidate values, here or in `tune` of a section"
            raise InputError(f"{TUNE}.grid", {}, f"{hint} that is varied")
        _check_private(tune, section)
        for field, values in tune.grid.items():
            _check_once(f"{TUNE}.grid.{field}", field, values, _fields(section))
    _check_count(section, trials if isinstance(trials, int) else 1)


def grids(section: SweepSection) -> dict[str, Grid]:
    """The grids by the name of their place."""
    return {f"{SWEEP}.grid": section.grid, **({f"{TUNE}.grid": section.tune.grid} if section.tune else {})}


def _varied(section: SweepSection) -> Iterator[tuple[str, str, Any]]:
    """(name of its place, field, value) of all that is varied and reported."""
    for field, values in section.grid.items():
        yield from ((f"{SWEEP}.grid.{field}", field, value) for value in values)
    for index, cell in enumerate(section.cells):
        yield from ((f"{SWEEP}.cells.{index}.{field}", field, value) for field, value in cell.items())


def has_candidates(section: SweepSection) -> bool:
    """Whether some varied value lists candidates."""
    return any(choices_of(name, value) != Choices() for name, _, value in _varied(section))


def place_of(field: str, section: SweepSection) -> str:
    """The place in the sweep's section that gives a field its values."""
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
    """Name the sweep's field where the error is in the records put aside: it is to be mended there."""
    if error.field == "scenario.data.reserve.fraction":
        return InputError(f"{TUNE}.private.fraction", error.value, error.hint)
    return error


def _check_values(name: str, field: str, values: Sequence[Any]) -> None:
    _check_field(name, field)
    if not values:
        raise InputError(name, values, "an empty grid; list at least one value")
    check_distinct(name, values, "stands in the list twice; each value once")


def _check_field(name: str, field: str) -> None:
    if field.split(".")[0] in _NEVER_VARIED and field not in _VARIABLE:
        hint = f"cannot be varied; what can: {', '.join(_VARIABLE)} and what is in them"
        raise InputError(name, field, hint)


def _check_once(name: str, field: str, value: object, others: Mapping[str, Any] | Sequence[str]) -> None:
    if field in others:
        raise InputError(name, value, "the field is varied in two places; leave one of them out")


def _check_own(name: str, field: str, value: object, section: SweepSection) -> None:
    """Candidates that the value brings along."""
    elsewhere = [*_fields(section), *(section.tune.grid if section.tune else [])]
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


def _check_private(tune: TuneSection, section: SweepSection) -> None:
    by_score = str(tune.criterion).startswith("private_")
    if tune.private is None and by_score:
        raise InputError(f"{TUNE}.criterion", tune.criterion, "needs tune.private, such as {fraction: 0.2}")
    if tune.private is None:
        return
    if not by_score:
        hint = "is computed without noise; with tune.private use private_error or private_metric"
        raise InputError(f"{TUNE}.criterion", tune.criterion, hint)
    if tune.criterion == "private_error" and tune.private.metric != "error":
        hint = "private_error is the share of mistakes; criterion private_metric chooses by this metric"
        raise InputError(f"{TUNE}.private.metric", tune.private.metric, hint)
    own = [each for each in _varied(section) if choices_of(each[0], each[2]) != Choices()]
    for name, field, values in [*((f"{TUNE}.grid.{f}", f, v) for f, v in tune.grid.items()), *own]:
        if field.split(".")[0] in _NEVER_TUNED:
            fixed = ", ".join(_NEVER_TUNED)
            hint = f"private tuning cannot choose what is in {fixed}: it sets records or budgets"
            raise InputError(name, values, hint)


def _check_count(section: SweepSection, trials: int) -> None:
    """At most so many runs, counted before any is made."""
    runs = prod(map(len, section.grid.values())) * max(1, len(section.cells)) * trials
    if section.tune:  # the candidates of all combinations, and those of the common grid
        gridded = prod(sum(count(field, value) for value in values) for field, values in section.grid.items())
        own = gridded * sum(prod(count(*each) for each in cell.items()) for cell in section.cells or [{}])
        runs += own * prod(map(len, section.tune.grid.values())) * section.tune.repetitions
    if runs > MOST_RUNS:
        raise InputError(SWEEP, f"{runs} runs", f"more than {MOST_RUNS}; vary less, or in several sweeps")


ONE_OF = "one_of"


def ways(setting: Setting) -> Iterator[tuple[Setting, Setting]]:
    """Every choice that the values of a setting leave; one where they leave none.

    Each is the fields that it sets, sections without their candidates, and those of them that were tuned,
    with the name of the alternative as `FIELD.one_of`.
    """
    for parts in itertools.product(*(list(_ways_of(*each)) for each in setting.items())):
        yield _merged(fields for fields, _ in parts), _merged(chosen for _, chosen in parts)


def _ways_of(field: str, value: Any) -> Iterator[tuple[Setting, Setting]]:
    own = choices_of(field, value)
    if own == Choices():
        yield {field: value}, {}
        return
    names = of_field(f"{field}.{ONE_OF}", own.one_of)
    for alternative in own.one_of or [{}]:
        picked = {f"{field}.{ONE_OF}": names[canonical(alternative)]} if own.one_of else {}
        section = {k: v for k, v in (value | alternative).items() if k not in Choices.model_fields}
        for point in product(own.tune | choices_of(field, alternative).tune):
            tuned = {f"{field}.{key}": one for key, one in point.items()}
            yield {field: section} | tuned, picked | tuned


def product(grid: Grid) -> Iterator[Setting]:
    """Every combination of a grid's values."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _merged(parts: Iterable[Setting]) -> Setting:
    return {key: value for part in parts for key, value in part.items()}


def choices_of(field: str, value: Any) -> Choices:
    """The candidates in a value of that field of the sweep; none in one that is no mapping. InputError if
    they are not written as they must be.
    """
    if not isinstance(value, Mapping):
        return Choices()
    try:
        return Choices.model_validate({key: value[key] for key in Choices.model_fields if key in value})
    except ValidationError as error:
        raise complaint(error, value, field, Choices) from None


def tuned_grids(field: str, value: Any) -> dict[str, Grid]:
    """Every grid in a value of that field of the sweep, by the name of its place."""
    own = choices_of(field, value)
    alternatives = enumerate(own.one_of)
    return {f"{field}.tune": own.tune} | {
        f"{field}.{ONE_OF}.{i}.tune": choices_of(f"{field}.{ONE_OF}.{i}", one).tune for i, one in alternatives
    }


def count(field: str, value: Any) -> int:
    """The number of `ways` of a value."""
    common, *each = (prod(map(len, grid.values())) for grid in tuned_grids(field, value).values())
    return common * (sum(each) if each else 1)


def labels(section: SweepSection) -> dict[str, dict[str, Label]]:
    """For each varied field {canonical value: label}; labels of one field are distinct. InputError if two
    values were given one label.
    """
    values: dict[str, dict[str, Any]] = {}
    for _, field, value in _varied(section):
        values.setdefault(field, {}).setdefault(canonical(value), value)
    return {field: of_field(field, list(each.values())) for field, each in values.items()}


def of_field(field: str, values: Sequence[Any]) -> dict[str, Label]:
    """{canonical value: label} of one field's values. InputError as `labels`."""
    named = [_own(value) for value in values]
    clashing = {name for name in named if named.count(name) > 1}
    result = {
        canonical(value): _with_differences(value, values) if name in clashing else name
        for value, name in zip(values, named, strict=True)
    }
    if len(set(map(canonical, result.values()))) < len(result):
        hint = "give each value a label of its own"
        raise InputError(f"scenario.sweep.grid.{field}", sorted(map(str, clashing)), hint)
    return result


def _own(value: Any) -> Label:
    """The label given, the section's name or those of its alternatives, or the value itself."""
    if isinstance(value, dict):
        if "one_of" in value and "label" not in value:
            return " or ".join(str(_own(one)) for one in value["one_of"])
        return short(str(value.get("label", value.get("name", value.get("sampler", canonical(value))))))
    if isinstance(value, str):
        return short(value)
    return value if isinstance(value, float | int | bool | None) else canonical(value)


def _with_differences(value: Any, values: Sequence[Any]) -> Label:
    """`local_sgd local_steps=5`: the name, and the fields in which values of this name differ."""
    if not isinstance(value, dict) or "label" in value:
        return _own(value)
    namesakes = [other for other in values if isinstance(other, dict) and _own(other) == _own(value)]
    own = [k for k in value if k not in Choices.model_fields]
    differing = [k for k in own if any(other.get(k) != value[k] for other in namesakes)]
    parts = [f"{k}={value[k] if not isinstance(value[k], dict) else canonical(value[k])}" for k in differing]
    return " ".join([str(_own(value)), *parts])
