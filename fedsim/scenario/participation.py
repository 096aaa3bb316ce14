"""The `participation` section: who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from fedsim.common.choice import Choice, Shorthand
from fedsim.common.errors import InputError
from fedsim.protocol.participants import Available, Participants, RandomSize, Recorded
from fedsim.scenario.attendance import read_attendance
from fedsim.scenario.per_silo import PerSilo, per_silo

Attendance = Annotated[float, Field(gt=0, le=1)]


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
    """Each silo is there on its own with its probability; a round that nobody attends is asked for again.

    Nobody knows beforehand who comes, so every silo's plan covers all rounds and only `epsilon_guaranteed`
    comes near the budget. Silos that are there more often count for more: the server's sum is unbiased only
    where the probabilities are equal, and a run says by how much it is not. Where an algorithm holds its
    silos over an epoch, attendance is drawn once an epoch.
    """

    name: ClassVar[str] = "availability"
    probability: Annotated[
        PerSilo[Attendance],
        Field(
            description="chance of being there: one for all silos, a list in order of names, or a map by silo"
        ),
    ]


@dataclass(frozen=True)
class TracedSilos:
    """A file says who is there in each round; rounds with nobody there pass without an update.

    Where an algorithm holds its silos over an epoch, those of them that the file has there answer.
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
    """Who takes part, silos known: `names` in canonical order.

    Raises:
        InputError: more silos are asked for than there are, or a table or list does not fit them.
    """
    match chosen:
        case UniformSilos(num_silos):
            _check_size("num_silos", num_silos, names)
            return num_silos
        case RandomSize(high=most):
            _check_size("max_silos", most, names)
            return chosen
        case AvailableSilos(probability):
            return Available(per_silo("scenario.participation.probability", probability, names))
        case TracedSilos(path, repeat, known):
            return Recorded(read_attendance(path, names), repeat, known, str(path))
    return None


def _check_size(field: str, size: int, names: Sequence[str]) -> None:
    if size > len(names):
        expected = f"at most {len(names)}, the number of silos"
        raise InputError(f"scenario.participation.{field}", size, expected)
