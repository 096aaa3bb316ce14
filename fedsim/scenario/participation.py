"""The `participation` section: who takes part in a round."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedsim.scenario.section import Section

Attendance = Annotated[float, Field(gt=0, le=1)]


class AllSilos(Section):
    """Every silo in every round."""

    name: Literal["all"]


class UniformSilos(Section):
    """A uniformly random set of silos in each round."""

    name: Literal["uniform"]
    num_silos: int = Field(ge=1, description="M: silos in a round")


class RandomSizeSilos(Section):
    """A uniformly random set of silos in each round, its size random too."""

    name: Literal["random_size"]
    min_silos: int = Field(ge=1, description="least M_r: silos in a round are uniform on min..max")
    max_silos: int = Field(ge=1, description="largest M_r")


class AvailableSilos(Section):
    """Each silo is there on its own with its probability; a round that nobody attends is asked for again.

    Nobody knows before, so every silo's plan covers all rounds and only `epsilon_guaranteed` comes near the
    budget. Silos that are there more often count for more: the server's sum is unbiased only where the
    probabilities are equal, and a run says by how much it is not. Where an algorithm holds its silos over an
    epoch, attendance is drawn once an epoch.
    """

    name: Literal["availability"]
    probability: Attendance | tuple[Attendance, ...] | dict[str, Attendance] = Field(
        description="chance of being there: one for all silos, a list in order of names, or a map by silo"
    )


class TracedSilos(Section):
    """A file says who is there in each round; rounds with nobody there pass without an update.

    Where an algorithm holds its silos over an epoch, those of them that the file has there answer.
    """

    name: Literal["trace"]
    path: Path = Field(
        description="CSV or Parquet: columns round (from 0) and silo, a row for each attendance; or a column "
        "for each silo, 1 where it is there and 0 where not, a row for each round"
    )
    repeat: bool = Field(False, description="begin again at the end of the file; otherwise it must suffice")
    known_in_advance: bool = Field(
        False,
        description="silos know the file before admission, so each one's plan holds its own rounds only; "
        "otherwise the plan covers all rounds",
    )


ParticipationConfig = AllSilos | UniformSilos | RandomSizeSilos | AvailableSilos | TracedSilos
