"""From the `problem` section to f1: features become coordinates of w, and sizes are checked."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.common.errors import InputError
from fedsim.problems.composite import Composite
from fedsim.problems.regularisers import GroupLasso, Ridge
from fedsim.scenario.model import ContiguousGroups, GroupLassoSection, ProblemSection


def composite(section: ProblemSection, features: int, outputs: int) -> Composite:
    """f1 for parameters W (features, outputs), flat in row-major order.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    chosen = section.regulariser
    return Composite(
        chosen.l1,
        chosen.l2,
        section.constraint,
        _group_lasso(chosen.group_lasso, features, outputs),
        _ridge(section.ridge, features * outputs),
    )


def _group_lasso(section: GroupLassoSection | None, features: int, outputs: int) -> GroupLasso:
    """A group of features holds their rows of W: the coefficients of all outputs."""
    if section is None:
        return GroupLasso()
    if isinstance(section.groups, ContiguousGroups):
        size = section.groups.size
        groups: Sequence[Sequence[int]] = [
            range(start, min(start + size, features)) for start in range(0, features, size)
        ]
    else:
        groups = section.groups
        _check_groups(groups, features)
    rows = [[j * outputs + k for j in group for k in range(outputs)] for group in groups]
    return GroupLasso(section.weight, tuple(map(tuple, rows)))


def _check_groups(groups: Sequence[Sequence[int]], features: int) -> None:
    home: dict[int, int] = {}
    for i, group in enumerate(groups):
        for j in group:
            field = f"scenario.problem.regulariser.group_lasso.groups.{i}"
            if j >= features:
                raise InputError(field, j, f"features are 0 to {features - 1}")
            if j in home:
                expected = f"groups must be disjoint, but feature {j} is in group {home[j]} already"
                raise InputError(field, list(group), expected)
            home[j] = i


def _ridge(chosen: Ridge | None, dimension: int) -> Ridge:
    if chosen is None:
        return Ridge(0.0)
    if isinstance(chosen.centre, tuple) and len(chosen.centre) != dimension:
        expected = f"one number, or one for each of the {dimension} parameters, not {len(chosen.centre)}"
        raise InputError("scenario.problem.ridge.centre", list(chosen.centre), expected)
    return chosen
