"""The public part f1: projection, subgradient, and the proximal map against brute-force minimisation."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused
from torch import Tensor

from fedsim.problems.composite import Composite
from fedsim.problems.regularisers import Box, Constraint, GroupLasso, L2Ball, Ridge, WholeSpace

STEP = 0.7
GROUPS = ((0, 3, 4), (1,), (5, 2))
D = 7  # the last coordinate is in no group
CENTRE = (0.5, -1.0, 0.0, 2.0, -0.3, 0.1, 1.0)
CONSTRAINTS: list[Constraint] = [WholeSpace(), L2Ball(0.9), Box(-0.4, 0.5)]

SUMS = [
    Composite(l1, l2, constraint, GroupLasso(group, GROUPS) if group else None, ridge)
    for l1, l2, group, ridge, constraint in product(
        [0.0, 0.3], [0.0, 0.9], [0.0, 0.25], [Ridge(0.0), Ridge(0.6, CENTRE), Ridge(0.6, -0.5)], CONSTRAINTS
    )
    if not (group and isinstance(constraint, Box))
]


def _lasso(f1: Composite) -> GroupLasso:
    return f1.group_lasso or GroupLasso(0.0, ())


def _name(f1: Composite) -> str:
    ridge = f"ridge{f1.ridge.centre}"[:9] if f1.ridge.weight else ""
    return f"{f1.l1}-{f1.l2}-{_lasso(f1).weight}-{ridge}-{type(f1.constraint).__name__}"


def _minimised(f1: Composite, v: np.ndarray) -> np.ndarray:
    """argmin of STEP f1(y) + |y - v|^2 / 2 by Dykstra's algorithm, from each part's own proximal map alone.

    It converges to the proximal map of the sum whatever the parts (Bauschke and Combettes, 2008), so it knows
    nothing of the compositions under test.
    """

    def soft(y: np.ndarray) -> np.ndarray:
        return np.sign(y) * np.maximum(np.abs(y) - STEP * f1.l1, 0)

    def shrink(y: np.ndarray) -> np.ndarray:
        y = y.copy()
        for g in map(list, GROUPS if _lasso(f1).weight else ()):
            y[g] *= max(0, 1 - STEP * _lasso(f1).weight * len(g) ** 0.5 / (np.linalg.norm(y[g]) + 1e-300))
        return y

    def pull(y: np.ndarray) -> np.ndarray:
        towards = STEP * f1.ridge.weight * np.array(f1.ridge.centre)
        return (y + towards) / (1 + STEP * (f1.l2 + f1.ridge.weight))

    def inside(y: np.ndarray) -> np.ndarray:
        match f1.constraint:
            case L2Ball(radius):
                return y * radius / max(radius, np.linalg.norm(y))
            case Box(lower, upper):
                return np.clip(y, lower, upper)
        return y

    parts = (soft, shrink, pull, inside)
    y, corrections = v, [np.zeros_like(v) for _ in parts]
    for _ in range(1000):
        for k, part in enumerate(parts):
            moved = y + corrections[k]
            y = part(moved)
            corrections[k] = moved - y
    return y


@pytest.mark.parametrize("f1", SUMS, ids=_name)
def test_prox_is_the_minimiser(f1: Composite) -> None:
    rows = np.random.default_rng(0).normal(size=(3, D)) * [[0.3], [1.0], [2.0]]
    found = f1.prox(torch.from_numpy(rows), STEP).numpy()
    for v, mine in zip(rows, found, strict=True):
        np.testing.assert_allclose(mine, _minimised(f1, v), atol=1e-6)


def _objective(f1: Composite, y: np.ndarray, v: np.ndarray) -> float:
    groups = sum(np.sqrt(len(g)) * np.linalg.norm(y[list(g)]) for g in GROUPS)
    value = f1.l1 * np.abs(y).sum() + f1.l2 / 2 * (y @ y) + _lasso(f1).weight * groups
    value += f1.ridge.weight / 2 * ((y - f1.ridge.centre) @ (y - f1.ridge.centre))
    return float(STEP * value + (y - v) @ (y - v) / 2)


@pytest.mark.parametrize("f1", SUMS, ids=_name)
@pytest.mark.parametrize("leading", [(), (1,), (25,), (2, 3)], ids=str)
def test_every_row_is_treated_alone(f1: Composite, leading: tuple[int, ...]) -> None:
    rows = torch.from_numpy(np.random.default_rng(2).normal(size=(*leading, D)))
    functions = [
        f1.project,
        f1.public_gradient,
        lambda w: f1.prox(w, STEP),
        lambda w: f1.value(w).unsqueeze(-1),
    ]
    for function in functions:
        together = function(rows)
        assert together.shape[:-1] == rows.shape[:-1]
        for row, result in zip(rows.reshape(-1, D), together.reshape(-1, together.shape[-1]), strict=True):
            assert torch.equal(function(row), result)


@pytest.mark.parametrize("f1", [f1 for f1 in SUMS if isinstance(f1.constraint, WholeSpace)], ids=_name)
def test_value_by_definition_and_public_gradient_is_a_subgradient(f1: Composite) -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        w, y = rng.normal(size=(2, D)) * (rng.random((2, D)) < 0.7)
        at_w, at_y = (_objective(f1, p, p) / STEP for p in (w, y))
        point = torch.from_numpy(w)
        assert float(f1.value(point)) == pytest.approx(at_w, rel=1e-12, abs=1e-12)
        assert at_y >= at_w + f1.public_gradient(point).numpy() @ (y - w) - 1e-12


def test_a_group_is_shortened_by_hand() -> None:
    """|(3, 4)| = 5, threshold 0.5 sqrt(2): factor 1 - sqrt(2) / 10; a lone 0.4 is below its 0.5."""
    f1 = Composite(group_lasso=GroupLasso(1.0, ((0, 1), (2,))))
    found = f1.prox(torch.tensor([3.0, 4.0, 0.4, 7.0], dtype=torch.float64), 0.5)
    factor = 1 - 2**0.5 / 10
    torch.testing.assert_close(found, torch.tensor([3 * factor, 4 * factor, 0.0, 7.0], dtype=torch.float64))


def test_a_group_of_zeros_stays_and_has_subgradient_zero() -> None:
    f1 = Composite(group_lasso=GroupLasso(1.0, ((0, 1),)))
    zero: Tensor = torch.zeros(2, dtype=torch.float64)
    assert (
        f1.prox(zero, 0.5).tolist()
        == f1.prox(zero, 0.0).tolist()
        == f1.public_gradient(zero).tolist()
        == [0, 0]
    )


def test_what_has_no_closed_form_is_refused() -> None:
    with refused("scenario.problem.constraint.name", "box", "closed-form"):
        Composite(constraint=Box(-1, 1), group_lasso=GroupLasso(0.1, ((0, 1),)))
    with refused("groups.1", [1, 2], "disjoint"):
        GroupLasso(0.1, ((0, 1), (1, 2)))


PROPERTY = settings(derandomize=True, max_examples=200)

every_constraint = pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda c: type(c).__name__)
coordinates = st.floats(-1e3, 1e3, allow_nan=False)
vectors = st.lists(coordinates, min_size=3, max_size=3).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


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


def test_value_and_subgradient_by_hand() -> None:
    f1 = Composite(l1=2.0, l2=3.0)
    w = torch.tensor([1.0, -2.0, 0.0])
    assert float(f1.value(w)) == 2 * 3 + 1.5 * 5
    assert f1.public_gradient(w).tolist() == [5.0, -8.0, 0.0]
