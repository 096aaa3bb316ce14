"""Theorem 140: what takes the place of common numbers where silos differ, and what is then not printed."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scenarios import invoke, write
from support.theorem_scenarios import tree as made_of

from fedsim.privacy.calibrate import Budget
from fedsim.scenario.by_theorem import CHOICES
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.theory import bound_table, bounds
from fedsim.theory.choice import Case
from fedsim.theory.convex_choice import noisy_minibatch_sgd
from fedsim.theory.participants import (
    Available,
    Participants,
    RandomSize,
    Recorded,
    drawn_evenly,
    effective_m,
    law,
    mean_shares,
    planned_share,
)
from fedsim.theory.symbols import Symbols

CONSTANTS: dict[str, Any] = {
    "L": 2.0,
    "beta": 1.5,
    "mu": 0.2,
    "D": 3.0,
    "Delta": 4.0,
    "phi": 2.0,
    "upsilon": 1.0,
    "moment": 3.0,
    "moment_bound": 2.0,
}


def tree(**changed: Any) -> dict[str, Any]:
    algorithm = {"name": "noisy_minibatch_sgd", "num_rounds": 3, "step_size": 0.1, "clip_norm": 2.0}
    return made_of(4, 750, algorithm=algorithm, assumptions=CONSTANTS) | changed


def setting(**changed: Any) -> Symbols:
    return resolve(parse(tree(**changed))).symbols


def by_hand(silos: list[tuple[int, float, float]], M_r: list[tuple[int, float]]) -> float:
    """min(Xi / M', xi_max / M), from its definition."""
    xi = sorted((math.log(1 / delta) / (n * eps) ** 2 for n, eps, delta in silos), reverse=True)
    Xi = math.sqrt(sum(p * np.mean(xi[:m]) ** 2 for m, p in M_r))
    M_prime = 1 / math.sqrt(sum(p / m**2 for m, p in M_r))
    M = 1 / sum(p / m for m, p in M_r)
    return min(Xi / M_prime, xi[0] / M)


def test_silos_that_are_alike_have_the_balanced_theorem_to_the_last_bit() -> None:
    s = setting()
    assert (s.claims, s.differ, s.heaviest) == ((), (), 1.0)
    assert s.xi == math.log(1e5) / (2.0 * 750) ** 2 / 4
    alike = Symbols(n=750, N=4, M=s.M, d=6, epsilon=2.0, delta=1e-5, **CONSTANTS)
    assert bound_table.applying(s) == bound_table.applying(alike)


@pytest.mark.parametrize("name", CHOICES)
def test_equal_silos_written_out_are_the_balanced_theorem(name: str) -> None:
    # The same setting through the general formulas: every claim listed, and a random M_r of one value.
    balanced = Symbols(n=10_000, N=8, M=8, d=6, epsilon=8.0, delta=1e-5, **CONSTANTS)
    listed = replace(balanced, claims=(Budget(10_000, 8.0, 1e-5),) * 8, law=((8, 1.0),))
    assert listed.xi == pytest.approx(balanced.xi, rel=1e-12)
    assert listed.signal == pytest.approx(balanced.signal, rel=1e-12)
    one, other = (CHOICES[name](Case(s, s.clip or 0.0)).values for s in (balanced, listed))
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert other[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), key
    for (bound, value, _), (_, same, _) in zip(
        bound_table.applying(balanced), bound_table.applying(listed), strict=True
    ):
        assert same == pytest.approx(value, rel=1e-9), bound.source


def test_unequal_budgets_and_participation_are_xi_by_hand() -> None:
    budgets = [0.5, 1.0, 2.0, 4.0]
    deltas = [1e-5, 1e-6, 1e-5, 1e-7]
    privacy = {"epsilon": budgets, "delta": deltas}
    silos = list(zip([750] * 4, budgets, deltas, strict=True))
    laws: dict[str, list[tuple[int, float]]] = {
        "all": [(4, 1.0)],
        "two": [(2, 1.0)],
        "one to three": [(1, 1 / 3), (2, 1 / 3), (3, 1 / 3)],
    }
    participation = {
        "all": "all",
        "two": {"name": "uniform", "num_silos": 2},
        "one to three": {"name": "random_size", "min_silos": 1, "max_silos": 3},
    }
    for name, M_r in laws.items():
        s = setting(privacy=privacy, participation=participation[name])
        assert s.xi == pytest.approx(by_hand(silos, M_r), rel=1e-12), name
        assert (s.differ, s.epsilon, s.delta, s.n) == (("eps_i", "delta_i"), 0.5, 1e-7, 750)
        convex = {
            bound.source: value for bound, value, _ in bound_table.applying(s) if bound.functions == "convex"
        }
        M = 1 / sum(p / m for m, p in M_r)
        expected = 2.0 * 3.0 * (1 / math.sqrt(750 * M) + math.sqrt(6 * by_hand(silos, M_r)))
        assert convex["noisy MB-SGD, Theorem 34"] == pytest.approx(expected, rel=1e-9)


def test_the_smallest_number_and_budget_alone_would_be_worse() -> None:
    uneven = setting(privacy={"epsilon": [0.1, 8.0, 8.0, 8.0], "delta": 1e-5})
    worst = setting(privacy={"epsilon": 0.1, "delta": 1e-5})
    assert uneven.xi < worst.xi / 3.9
    assert bounds.convex_erm(uneven, uneven.xi, 2.0, 3.0) < bounds.convex_erm(worst, worst.xi, 2.0, 3.0) / 1.9


def test_weights_scale_the_constants() -> None:
    weighted = setting(problem={"name": "logistic_regression", "silo_weights": [1, 1, 1, 3]})
    # p = (1/6, 1/6, 1/6, 1/2): max N p_i = 2, min N p_i = 2/3.
    assert weighted.differ == ("p_i",)
    assert (weighted.L, weighted.beta, weighted.phi) == pytest.approx((4.0, 3.0, 4.0))
    assert weighted.mu == pytest.approx(0.2 * 2 / 3)
    assert weighted.clip == pytest.approx(2.0)
    assert weighted.record_beta == pytest.approx(1.5)
    # N p_i grad F_i - grad F = N p_i (grad F_i - grad F) + (N p_i - 1) grad F; rms of N p_i - 1 is sqrt(1/3).
    assert weighted.upsilon == pytest.approx(min(4.0, 2 * 1.0 + math.sqrt(1 / 3) * 2.0))
    sizes = setting(problem={"name": "logistic_regression", "silo_weights": "size"})
    assert sizes == setting()  # equal sizes


@pytest.mark.parametrize(
    "changed",
    [
        {"privacy": {"epsilon": [1, 2, 2, 2], "delta": 1e-5}},
        {"privacy": {"epsilon": 1, "delta": [1e-5, 1e-5, 1e-5, 1e-6]}},
        {"problem": {"name": "logistic_regression", "silo_weights": [1, 1, 1, 3]}},
        {"partition": {"name": "size", "partition_sizes": [900, 1000, 1000, 1100]}},
    ],
    ids=["eps_i", "delta_i", "p_i", "n_i"],
)
def test_lower_and_central_bounds_are_not_printed_for_silos_that_differ(
    changed: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    s = setting(**changed)
    shown = {(bound.side, bound.trust) for bound, value, _ in bound_table.applying(s) if value is not None}
    assert shown == {("upper", "ISRL")}
    reasons = {why for bound, _, why in bound_table.applying(s) if bound.side == "lower"}
    symbol = request.node.callspec.id
    assert all("stated for silos alike" in why and symbol in why for why in reasons)


def subsets(participants: Participants, N: int) -> list[tuple[float, tuple[int, ...]]]:
    """Every set that a round can have with its probability, by enumeration."""
    everyone = range(N)
    drawn = {m: list(itertools.combinations(everyone, m)) for m in range(1, N + 1)}
    match participants:
        case None:
            return [(1.0, tuple(everyone))]
        case int():
            return [(1 / len(drawn[participants]), each) for each in drawn[participants]]
        case RandomSize(low, high):
            sizes = range(low, high + 1)
            return [(1 / len(sizes) / len(drawn[m]), each) for m in sizes for each in drawn[m]]
        case Recorded(attendance):
            return [(1 / len(attendance), each) for each in attendance]
        case Available(p):
            found = []
            for m in drawn:
                for each in drawn[m]:
                    chance = math.prod(p[i] if i in each else 1 - p[i] for i in everyone)
                    found.append((chance, each))
            total = sum(chance for chance, _ in found)
            return [(chance / total, each) for chance, each in found]


WAYS: dict[str, Participants] = {
    "all": None,
    "three": 3,
    "random": RandomSize(2, 5),
    "available": Available((0.6,) * 5),
    "recorded": Recorded(((0, 1), (2,), (0, 2, 3, 4)), True, True, "file"),
}


@pytest.mark.parametrize("name", WAYS)
def test_presence_is_what_enumeration_says(name: str) -> None:
    way, sets = WAYS[name], subsets(WAYS[name], 5)
    sizes: dict[int, float] = {}
    for chance, members in sets:
        sizes[len(members)] = sizes.get(len(members), 0.0) + chance
    assert dict(law(way, 5)) == pytest.approx(sizes)
    shares = [sum(c / len(members) ** 2 for c, members in sets if i in members) for i in range(5)]
    assert mean_shares(way, 5) == pytest.approx(shares)
    assert sum(mean_shares(way, 5)) == pytest.approx(1 / effective_m(way, 5))
    often = [sum(c for c, members in sets if i in members) for i in range(5)]
    known = name not in ("available",)  # else every round is planned for
    assert planned_share(way, 5) == pytest.approx(often if known else [1.0] * 5)
    assert drawn_evenly(way) == (name != "recorded")


@given(
    st.lists(
        st.tuples(st.integers(1, 10**5), st.floats(0.1, 10), st.floats(1e-9, 0.3)), min_size=2, max_size=6
    ),
    st.integers(1, 6),
)
def test_xi_lies_between_the_mildest_and_the_worst_silo_alone(
    silos: list[tuple[int, float, float]], active: int
) -> None:
    M = min(active, len(silos))
    claims = tuple(itertools.starmap(Budget, silos))
    s = Symbols(min(n for n, *_ in silos), len(silos), M, 3, 1.0, 0.1, claims=claims, law=((M, 1.0),))
    each = [math.log(1 / delta) / (n * eps) ** 2 / M for n, eps, delta in silos]
    assert min(each) * (1 - 1e-9) <= s.xi <= max(each) * (1 + 1e-9)
    assert s.xi == pytest.approx(by_hand(silos, [(M, 1.0)]))


def test_batches_are_the_same_share_of_every_silo_and_no_smaller_than_its_proof_needs() -> None:
    silos = (Budget(1000, 1.0, 1e-5), Budget(4000, 6.0, 1e-6))
    s = Symbols(1000, 2, 2, 6, 1.0, 1e-6, claims=silos, law=((2, 1.0),), **(CONSTANTS | {"mu": None}))
    values = noisy_minibatch_sgd(Case(s, s.clip or 0.0)).values
    R, fraction = values["num_rounds"], values["batch"]["fraction"]
    for silo in silos:
        needed = silo.epsilon * silo.n / (4 * math.sqrt(2 * R * math.log(2 / silo.delta)))
        assert round(fraction * silo.n) >= needed


def test_the_command_says_what_differs(tmp_path: Path) -> None:
    output = invoke("bounds", write(tmp_path, tree(privacy={"epsilon": [1, 2, 2, 2], "delta": 1e-5})))
    assert "eps_i differ: n is the smallest, noise is xi = min(Xi / M', xi_max / M)" in output
    assert "Not shown, stated for silos alike, here eps_i differ: convex (Theorem 35)" in output
