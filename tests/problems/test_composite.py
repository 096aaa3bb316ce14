"""The public part f1: proximal map, projection and subgradient."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsim.problems.composite import Box, Composite, Constraint, L2Ball, WholeSpace

CONSTRAINTS: list[Constraint] = [WholeSpace(), L2Ball(0.7), Box(-0.4, 0.5)]
PROPERTY = settings(derandomize=True, max_examples=200)

every_constraint = pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda c: type(c).__name__)
coordinates = st.floats(-1e3, 1e3, allow_nan=False)
vectors = st.lists(coordinates, min_size=3, max_size=3).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


@every_constraint
@pytest.mark.parametrize("leading", [(1,), (25,), (2, 3)])
def test_prox_projection_and_subgradient_act_on_each_row(
    constraint: Constraint, leading: tuple[int, ...]
) -> None:
    f1 = Composite(l1=0.1, l2=0.3, constraint=constraint)
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(*leading, 6)))
    functions = [f1.project, f1.public_gradient, lambda w: f1.prox(w, 0.8), f1.value]
    for function in functions:
        together = function(rows).reshape(rows[..., 0].numel(), -1)
        for row, result in zip(rows.reshape(-1, 6), together, strict=True):
            assert torch.equal(function(row).reshape(-1), result)


@every_constraint
@PROPERTY
@given(v=vectors, other=vectors)
def test_projection_is_the_nearest_point(constraint: Constraint, v: Tensor, other: Tensor) -> None:
    """It lies in the set, keeps the set's points, and (v - Pv).(y - Pv) <= 0 for every y of the set."""
    near, inside = constraint.project(v), _into(constraint, other)
    assert _holds(constraint, near)
    assert _holds(constraint, inside)
    scale = 1 + float(v.norm())
    assert torch.allclose(constraint.project(inside), inside, rtol=1e-12, atol=0)
    assert float((v - near) @ (inside - near)) <= 1e-9 * scale


def _holds(constraint: Constraint, w: Tensor) -> bool:
    match constraint:
        case WholeSpace():
            return True
        case L2Ball(radius):
            return float(w.norm()) <= radius * (1 + 1e-12)
        case Box(lower, upper):
            return bool(torch.all((w >= lower) & (w <= upper)))


def _into(constraint: Constraint, w: Tensor) -> Tensor:
    """Some point of the set, not by projection."""
    match constraint:
        case WholeSpace():
            return w
        case L2Ball(radius):
            return radius * w / (1 + w.norm())
        case Box(lower, upper):
            return lower + (upper - lower) * w.sigmoid()


@every_constraint
def test_projection_of_a_point_outside_moves_it(constraint: Constraint) -> None:
    far = torch.full((3,), 5.0, dtype=torch.float64)
    expected = {WholeSpace: 5.0, L2Ball: 0.7 / 3**0.5, Box: 0.5}[type(constraint)]
    torch.testing.assert_close(constraint.project(far), torch.full_like(far, expected))


@PROPERTY
@given(w=vectors, y=vectors, l1=st.floats(0, 10), l2=st.floats(0, 10))
def test_public_gradient_is_a_subgradient(w: Tensor, y: Tensor, l1: float, l2: float) -> None:
    f1 = Composite(l1, l2)
    lower = f1.value(w) + f1.public_gradient(w) @ (y - w)
    assert float(f1.value(y) - lower) >= -1e-9 * (1 + float(f1.value(y).abs() + lower.abs()))


def test_value_and_subgradient_by_hand() -> None:
    f1 = Composite(l1=2.0, l2=3.0)
    w = torch.tensor([1.0, -2.0, 0.0])
    assert float(f1.value(w)) == 2 * 3 + 1.5 * 5
    assert f1.public_gradient(w).tolist() == [5.0, -8.0, 0.0]
