"""The `prepare` section: what its stages need of the other sections, and the bounds that follow from them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedsim.common.errors import InputError
from fedsim.data.source import Outline
from fedsim.privacy.registry import MECHANISMS
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem
from fedsim.scenario.contributions import asked
from fedsim.scenario.model import Scenario

if TYPE_CHECKING:
    from fedsim.algorithms.prepared import Contributions, StageKind


def checked(
    scenario: Scenario, shape: Outline, problem: Problem
) -> tuple[tuple[StageKind | Contributions, ...], Problem, tuple[float, float] | None]:
    """The stages, each with its clip; problem and `Outline.squared_norms` of the records that they prepare.

    A standardised feature has mean square 1, and one of a range at most about that: they bound a record's
    squared norm by their number. InputError names a field that does not fit the stages, or a stage.
    """
    norms, features, found = shape.squared_norms, shape.num_features, list["StageKind | Contributions"]()
    if (rule := asked(scenario.privacy.unit)) is None and not scenario.prepare:
        return (), problem, norms
    from fedsim.algorithms.prepared import Contributions, PrincipalComponents, Ranges

    if rule is not None:
        found.append(Contributions(share=rule.share or 0, q=rule.q, largest=rule.largest))
    _check(scenario, problem, [stage.share for stage in (*found, *scenario.prepare)])
    for r, stage in enumerate(scenario.prepare):
        field = f"scenario.prepare.{r}"
        if isinstance(stage, Ranges):
            if r or norms is None or scenario.data.scaling != "declared" or scenario.data.transform:
                raise InputError(field, stage.name, "the first stage, with declared ranges and no transform")
            if not 0 < stage.quantiles[0] < stage.quantiles[1] < 1:
                raise InputError(f"{field}.quantiles", stage.quantiles, "two ascending numbers from 0 to 1")
        elif norms is not None:
            stage = replace(stage, clip=stage.clip or norms[0])
        elif not stage.clip:
            raise InputError(f"{field}.clip", 0, "a number above 0: no declared ranges bound records")
        if not isinstance(stage, PrincipalComponents):
            norms = float(features), float(features)
        elif stage.components >= features:
            raise InputError(f"{field}.components", stage.components, f"at most {features - 1} features")
        else:
            features = stage.components + 1
        found.append(stage)
    return tuple(found), replace(problem, num_features=features) if found else problem, norms


def _check(scenario: Scenario, problem: Problem, shares: list[float]) -> None:
    data, privacy, name = scenario.data, scenario.privacy, scenario.problem.name
    private, fitted = MECHANISMS[privacy.mechanism].private, next(iter(data.fitted), "")
    linear, isolated = isinstance(problem, GeneralisedLinear), scenario.runtime.plug_ins == "isolated"
    budgeted = privacy.calibration == "accountant" or privacy.noise_multiplier is not None
    other = private and (not budgeted or privacy.epsilon == "unlimited" or privacy.some_public)
    for field, value, wrong, right in (
        ("problem.name", name, not linear, "a linear model: stages and a private h need one"),
        (f"data.{fitted}", dict(data).get(fitted, 0), fitted, "left out: it fits without noise"),
        ("data.intercept", False, not data.intercept, "true: the constant feature has a map's offsets"),
        ("prepare", sum(shares), sum(shares) >= 1, "shares that sum to less than 1: training has the rest"),
        ("privacy.calibration", privacy.calibration, other, "accountant: shares are of the budget's mu^2"),
        ("runtime.plug_ins", "isolated", isolated, "in_process: stages run in one process with algorithms"),
    ):
        if shares and wrong:
            raise InputError(f"scenario.{field}", value, right)
