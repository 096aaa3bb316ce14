"""What a file may give for a field of a batch or a unit: its bounds, and what it is, for pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from fedsim.protocol import unit

Fraction = Annotated[float, Field(ge=1e-9, le=1, description="share of the silo's records in a batch")]
Place = Annotated[float, Field(ge=0, le=1, description="share of the silo's records before it")]

_Count = Annotated[int, Field(ge=1, le=10_000)]
_Share = Annotated[float, Field(gt=0, le=1)]
Profile = Annotated[dict[_Count, _Share] | None, Field(description="declared: share of persons by records")]
Share = Annotated[_Share | None, Field(lt=1, description="of mu^2, for a histogram of records")]
Q = Annotated[_Share, Field(description="quantile: share of persons whose records all count")]
Largest = Annotated[_Count, Field(ge=2, description="with a histogram: that h may be")]


def _kind_of_h(value: Any) -> str:
    """So that an error is of the one kind that was meant."""
    return "none" if value is None else "rule" if isinstance(value, unit.Rule | Mapping) else "number"


Bound = Annotated[unit.Bound, Field(description="how a person's records become one term")]
H = Annotated[
    Annotated[
        Annotated[unit.Rule, Tag("rule")]
        | Annotated[int, Field(ge=1, le=1_000_000), Tag("number")]
        | Annotated[None, Tag("none")],
        Discriminator(_kind_of_h),
    ],
    Field(description="limit, smooth: records of a person that count, or {choose: a rule for them}"),
]
Relation = Annotated[
    Literal["replace_person", "replace_values", "add_remove"],
    Field(description="what neighbouring data sets differ in"),
]
SilosPerPerson = Annotated[
    int, Field(ge=1, le=1000, description="silos that one person has records in at most")
]
ExpectedPersons = Annotated[
    int | None, Field(ge=1, description="add_remove: the public number that stands for that of its persons")
]
LeastSilosPerPerson = Annotated[
    int, Field(ge=1, le=1000, description="the least that a plan must leave room for")
]
