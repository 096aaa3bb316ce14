"""The `participation` section: which silos take part in a round; and fields with a value for each silo."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, cast

from pydantic import Field

from fedsim.common.choice import Choice, Shorthand
from fedsim.common.errors import InputError, suggest
from fedsim.data.table import FileTable, open_table
from fedsim.theory.participants import Available, Participants, RandomSize, Recorded

T = TypeVar("T")
PerSilo: TypeAlias = T | tuple[T, ...] | dict[str, T]
"""A value for each silo: one for all, a list in order of names, or a map by name."""
Chance = Annotated[float, Field(gt=0, le=1)]
_CHANCES = "chance of being there: one for all silos, a list in order of names, or a map by silo"


@dataclass(frozen=True)
class AllSilos:
    """Every silo in every round."""

    name: ClassVar[str] = "all"


@dataclass(frozen=True)
class UniformSilos:
    """A uniformly random set of silos in each round."""

    name: ClassVar[str] = "uniform"
    num_silos: Annotated[int, Field(ge=1, description="M: silos in a round")]


@dataclass(frozen=True)
class AvailableSilos:
    """Each silo is available independently, with its probability; a round without silos is drawn again.

    Attendance is not known in advance, so every silo's plan covers all rounds and only `epsilon_guaranteed`
    comes near the budget. Silos that are there more often count for more: the server's sum is unbiased only
    where the probabilities are equal, and a run says by how much it is not. Where an algorithm holds its
    silos over an epoch, attendance is drawn once an epoch.
    """

    name: ClassVar[str] = "availability"
    probability: Annotated[PerSilo[Chance], Field(description=_CHANCES)]


@dataclass(frozen=True)
class TracedSilos:
    """A file lists the silos of each round; rounds without silos pass without an update.

    Where an algorithm holds its silos over an epoch, those of them that the file lists answer.
    """

    name: ClassVar[str] = "trace"
    path: Annotated[
        Path,
        Field(
            description="CSV or Parquet: columns round (from 0) and silo, a row for each attendance; or a "
            "column for each silo, 1 where it is there and 0 where not, a row for each round"
        ),
    ]
    repeat: Annotated[
        bool, Field(description="begin again at the end of the file; otherwise it must suffice")
    ] = False
    known_in_advance: Annotated[
        bool,
        Field(
            description="silos know the file before admission, so each one's plan holds its own rounds only; "
            "otherwise the plan covers all rounds"
        ),
    ] = False


Participation = Annotated[
    AllSilos | UniformSilos | RandomSize | AvailableSilos | TracedSilos, Choice(), Shorthand()
]


def participants(chosen: Participation, names: Sequence[str]) -> Participants:
    """The law of participation for silos `names` in canonical order; InputError if it does not fit them."""
    match chosen:
        case UniformSilos(size) | RandomSize(high=size) if size > len(names):
            field = "num_silos" if isinstance(chosen, UniformSilos) else "max_silos"
            hint = f"at most {len(names)}, the number of silos"
            raise InputError(f"scenario.participation.{field}", size, hint)
        case UniformSilos(num_silos):
            return num_silos
        case RandomSize():
            return chosen
        case AvailableSilos(probability):
            return Available(per_silo("scenario.participation.probability", probability, names))
        case TracedSilos(path, repeat, known):
            return Recorded(read_attendance(path, names), repeat, known, str(path))
    return None


FIELD = "scenario.participation.path"
_THERE = {"0": False, "1": True, "false": False, "true": True}


def read_attendance(path: Path, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The positions among `names` of the silos in each round that has any, ascending; InputError names a
    wrong value. The table has columns `round` and `silo`, or a 0/1 column for each silo.
    """
    table = open_table(path, FIELD)
    sets = _rows(table, names) if {"round", "silo"} <= set(table.names) else _flags(table, names)
    attended = tuple(members for members in sets if members)
    if not attended:
        raise InputError(FIELD, str(path), "has no round with a silo in it")
    return attended


def _rows(table: FileTable, names: Sequence[str]) -> list[tuple[int, ...]]:
    """A row for each attendance."""
    place = {name: i for i, name in enumerate(names)}
    there: dict[int, set[int]] = defaultdict(set)
    for line, (when, who) in enumerate(zip(*_texts(table, ["round", "silo"]), strict=True), 1):
        if who not in place:
            raise InputError(FIELD, who, f"row {line} of {table.title}: no such silo; {suggest(who, names)}")
        there[_round(when, line, table)].add(place[who])
    return [tuple(sorted(there[r])) for r in sorted(there)]


def _flags(table: FileTable, names: Sequence[str]) -> list[tuple[int, ...]]:
    """A 0/1 column for each silo, beside an optional `round` that counts from 0."""
    for name in table.names:
        if name != "round" and name not in names:
            hint = f"{table.title} has a column that is no silo; {suggest(name, names)}"
            raise InputError(FIELD, name, hint)
    for name in names:
        table.require(name, FIELD)
    if "round" in table.names:
        for line, when in enumerate(_texts(table, ["round"])[0], 1):
            if _round(when, line, table) != line - 1:
                raise InputError(FIELD, when, f"row {line} of {table.title}: rounds must be 0, 1, 2, ...")
    return [
        tuple(i for i, cell in enumerate(cells) if _flag(cell, line, names[i], table))
        for line, cells in enumerate(zip(*_texts(table, list(names)), strict=True), 1)
    ]


def _texts(table: FileTable, columns: list[str]) -> list[list[str]]:
    read = table.read(columns)
    cells = [read[name].to_pylist() for name in columns]
    return [["" if cell is None else str(cell).strip() for cell in column] for column in cells]


def _round(text: str, line: int, table: FileTable) -> int:
    if not text.isdecimal():
        raise InputError(FIELD, text, f"row {line} of {table.title}: a round must be a whole number from 0")
    return int(text)


def _flag(text: str, line: int, name: str, table: FileTable) -> bool:
    if text.lower() not in _THERE:
        raise InputError(FIELD, text, f"row {line} of {table.title}, silo {name}: must be 0 or 1")
    return _THERE[text.lower()]


def per_silo(field: str, value: Any, names: Sequence[str]) -> tuple[float, ...]:
    """The values in order of `names`; `value` is a `PerSilo[float]`. InputError if a silo has no value, or
    a value no silo.

    >>> per_silo("scenario.privacy.epsilon", {"north": 1.0, "south": 2.0}, ["south", "north"])
    (2.0, 1.0)
    """
    if isinstance(value, float | int):
        return (float(value),) * len(names)
    if isinstance(value, dict):
        known = set(names)
        if unknown := [name for name in value if name not in known]:
            hint = f"no such silo; silos: {_shortened(names)}"
            raise InputError(f"{field}.{unknown[0]}", value[unknown[0]], hint)
        if missing := [name for name in names if name not in value]:
            raise InputError(field, value, f"no value for {_shortened(missing)}")
        return tuple(value[name] for name in names)
    if len(value) != len(names):
        hint = f"one value a silo: {len(names)}, not {len(value)}; their order: {_shortened(names)}"
        raise InputError(field, list(value), hint)
    return tuple(value)


def for_some(value: T, names: Sequence[str], chosen: Collection[str]) -> T:
    """A `PerSilo` of silos `names`, of the chosen ones alone; what is none, or does not fit, as it is.

    >>> for_some((1.0, 2.0), ["north", "south"], ["south"])
    (2.0,)
    """
    if isinstance(value, dict):
        return cast(T, {name: each for name, each in value.items() if name in chosen or name not in names})
    if isinstance(value, tuple) and len(value) == len(names):
        return cast(T, tuple(each for name, each in zip(names, value, strict=True) if name in chosen))
    return value


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
