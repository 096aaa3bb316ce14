"""The `assumptions` section: constants that theorems need and nobody can read off the scenario."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsim.common.section import Section

Constant = Annotated[float, Field(gt=0, le=1e12)]


class AssumptionsSection(Section):
    """What is assumed of the objective; public, and as good as whoever states it."""

    L: Constant | None = Field(
        None, description="L: Lipschitz constant of a record's loss; default clip_norm"
    )
    beta: Constant | None = Field(
        None, description="beta: smoothness of a record's loss (logistic: max |x|^2 / 4)"
    )
    mu: Constant | None = Field(
        None, description="mu: strong convexity, or the proximal-PL constant, of the objective"
    )
    D: Constant | None = Field(
        None,
        description="D: diameter of the constraint set, or of where iterates stay; default that of a ball",
    )
    Delta: Constant | None = Field(None, description="Delta: F(w_0) - F*, a bound")
    phi: Constant | None = Field(
        None, description="phi: root mean square of a record's gradient about its silo's; default L"
    )
    upsilon: Constant | None = Field(
        None, description="upsilon: root mean square of silos' gradients about their mean; default L"
    )
