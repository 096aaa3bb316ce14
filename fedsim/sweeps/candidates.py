"""Candidates that a varied section brings along: `tune`, in its own fields, and `one_of`, alternatives.

    algorithm:
      - label: SPIDER
        num_rounds: 35
        tune: {step_size: [0.1, 1]}
        one_of: [{name: spider_alternate}, {name: prox_spider, tune: {period: [1, 2]}}]

stands for two candidates of `spider_alternate` and four of `prox_spider`. Values and alternatives have short
names, by which tables and figures call them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from pydantic import ValidationError

from fedsim.common.errors import InputError
from fedsim.common.section import complaint
from fedsim.common.serialise import canonical
from fedsim.report.sweep_summary import Label, Setting
from fedsim.scenario.model import Choices, Grid, SweepSection

ONE_OF = "one_of"


class Way(NamedTuple):
    """One way to fill in a combination.

    Args:
        setting: the fields that it sets, sections without their candidates.
        chosen: those that were tuned, and `FIELD.one_of` with the name of the alternative.
    """

    setting: Setting
    chosen: Setting


def ways(setting: Setting) -> Iterator[Way]:
    """Every choice that the values of a setting leave; one where they leave none."""
    for parts in itertools.product(*(list(_ways_of(*each)) for each in setting.items())):
        yield Way(_merged(part.setting for part in parts), _merged(part.chosen for part in parts))


def _ways_of(field: str, value: Any) -> Iterator[Way]:
    own = choices_of(field, value)
    if own == Choices():
        yield Way({field: value}, {})
        return
    names = of_field(f"{field}.{ONE_OF}", own.one_of)
    for alternative in own.one_of or [{}]:
        picked = {f"{field}.{ONE_OF}": names[canonical(alternative)]} if own.one_of else {}
        section = {k: v for k, v in (value | alternative).items() if k not in Choices.model_fields}
        for point in product(own.tune | choices_of(field, alternative).tune):
            tuned = {f"{field}.{key}": one for key, one in point.items()}
            yield Way({field: section} | tuned, picked | tuned)


def product(grid: Grid) -> Iterator[Setting]:
    """Every combination of a grid's values."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _merged(parts: Iterable[Setting]) -> Setting:
    return {key: value for part in parts for key, value in part.items()}


def choices_of(field: str, value: Any) -> Choices:
    """The candidates in a value of that field of the sweep; none in one that is no mapping.

    Raises:
        InputError: they are not written as they must be.
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
    """How many `ways` a value has."""
    common, *each = (prod(map(len, grid.values())) for grid in tuned_grids(field, value).values())
    return common * (sum(each) if each else 1)


def labels(section: SweepSection) -> dict[str, dict[str, Label]]:
    """For each varied field {canonical value: label}; labels of one field are distinct.

    Raises:
        InputError: two values were given one label.
    """
    values: dict[str, list[Any]] = {field: list(listed) for field, listed in section.grid.items()}
    for cell in section.cells:
        for field, value in cell.items():
            known = {canonical(v) for v in values.setdefault(field, [])}
            if canonical(value) not in known:
                values[field].append(value)
    return {field: of_field(field, listed) for field, listed in values.items()}


def of_field(field: str, values: Sequence[Any]) -> dict[str, Label]:
    """{canonical value: label} of one field's values.

    Raises:
        InputError: as `labels`.
    """
    named = [_own(value) for value in values]
    clashing = {name for name in named if named.count(name) > 1}
    found = {
        canonical(value): _with_differences(value, values) if name in clashing else name
        for value, name in zip(values, named, strict=True)
    }
    if len(set(map(canonical, found.values()))) < len(found):
        raise InputError(
            f"scenario.sweep.grid.{field}", sorted(map(str, clashing)), "give each value a label of its own"
        )
    return found


def _own(value: Any) -> Label:
    """The label given, the section's name or those of its alternatives, or the value itself."""
    if isinstance(value, dict):
        if "one_of" in value and "label" not in value:
            return " or ".join(str(_own(one)) for one in value["one_of"])
        return str(value.get("label", value.get("name", value.get("sampler", canonical(value)))))
    return value if isinstance(value, str | float | int | bool | None) else canonical(value)


def _with_differences(value: Any, values: Sequence[Any]) -> Label:
    """`local_sgd local_steps=5`: the name, and the fields in which values of this name differ."""
    if not isinstance(value, dict) or "label" in value:
        return _own(value)
    namesakes = [other for other in values if isinstance(other, dict) and _own(other) == _own(value)]
    differing = [
        k
        for k in value
        if k not in Choices.model_fields and any(other.get(k) != value[k] for other in namesakes)
    ]
    parts = [f"{k}={value[k] if not isinstance(value[k], dict) else canonical(value[k])}" for k in differing]
    return " ".join([str(_own(value)), *parts])
