"""The first line of a run with a claim: what is true, silo by silo."""

from __future__ import annotations

from typing import Any

from fedsim.results.privacy_statement import true_epsilons
from fedsim.results.summary import SiloRow


def row(name: str, **epsilons: Any) -> SiloRow:
    numbers = {"n": 10, "epsilon_budget": None, "delta": 1e-3, "noise_multiplier": 1.0, "releases": 1}
    return SiloRow(name=name, **numbers, **epsilons)


def rows(count: int, **epsilons: Any) -> list[SiloRow]:
    return [row(f"silo-{at}", **epsilons) for at in range(count)]


def test_nothing_is_said_without_a_claim() -> None:
    assert true_epsilons(rows(3, epsilon_guaranteed=1.0)) == []


def test_silos_that_cost_the_same_stand_together_and_numbers_never_flatter() -> None:
    alike = rows(25, epsilon_claimed=12.0, epsilon_attainable=33.0789, epsilon_guaranteed=47.2741)
    expected = "between 33.07 and 47.28 (silo-0, silo-1, silo-2, silo-3 and 21 more)"
    assert true_epsilons(alike) == [f"claimed epsilon 12, true epsilon {expected}"]
    one = row("other", epsilon_claimed=12.0, epsilon_guaranteed=12.9121)
    assert true_epsilons([*alike, one])[0].endswith("21 more); 12.92 (other)")


def test_each_claim_has_a_line_and_none_is_infinite_cost() -> None:
    first = row("a", epsilon_claimed=3.0, epsilon_guaranteed=2.5)
    second = row("b", epsilon_claimed=6.0, epsilon_guaranteed=None)
    assert true_epsilons([first, second]) == [
        "claimed epsilon 3, true epsilon 2.5 (a)",
        "claimed epsilon 6, true epsilon without bound (b)",
    ]


def test_of_many_different_costs_the_largest_is_said() -> None:
    costs = [row(f"silo-{at}", epsilon_claimed=1.0, epsilon_guaranteed=1.00001 + at) for at in range(9)]
    assert true_epsilons(costs) == ["claimed epsilon 1, true epsilon up to 9.001 in 9 silos"]
    costs.append(row("free", epsilon_claimed=1.0, epsilon_guaranteed=None))
    assert true_epsilons(costs) == ["claimed epsilon 1, true epsilon up to inf in 10 silos"]
