"""Candidates that a varied section brings along: `tune`, in its own fields, and `one_of`, alternatives.

    algorithm:
      - label: SPIDER
        num_rounds: 35
        tune: {step_size: [0.1, 1]}
        one_of: [{name: spider_alternate}, {name: prox_spider, tune: {period: [1, 2]}}]

stands for two candidates of `spider_alternate` and four of `prox_spider`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from pydantic import ValidationError

from fedsim.common.canonical import canonical
from fedsim.common.complaints import complaint
from fedsim.curves.sweep_summary import Setting
from fedsim.scenario.sweep import Choices, Grid
from fedsim.sweeps.labels import of_field

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
