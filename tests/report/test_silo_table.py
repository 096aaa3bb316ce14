"""Promises are rounded up, and the tightest silos are the ones shown."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fedsim.report.silo_table import rounded_up, shown_value, silo_table, slack

from fedsim.results.read import SiloRow


def row(name: str, budget: float | None, guaranteed: float | None, claimed: float | None = None) -> SiloRow:
    return SiloRow(
        name=name,
        n=10,
        epsilon_budget=budget,
        delta=1e-5,
        epsilon_guaranteed=guaranteed,
        epsilon_claimed=claimed,
        epsilon_spent=guaranteed,
        noise_multiplier=1.5,
        releases=3,
    )


def test_rounding_never_flatters() -> None:
    rng = np.random.default_rng(0)
    for value in 10 ** rng.uniform(-12, 6, size=2000):
        shown = float(f"{rounded_up(value):.4g}")
        assert value <= shown <= value * 1.001
    assert [rounded_up(v) for v in (1.0, 0.99991, 1.00001, 9.9999, 0.0, math.inf)] == [
        1,
        1,
        1.001,
        10,
        0,
        math.inf,
    ]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("epsilon_guaranteed", 1.00001, "1.001"),
        ("noise_multiplier", 1.00001, "1"),
        ("epsilon_budget", None, "unlimited"),
        ("epsilon_guaranteed", None, "none"),
        ("n", 12345, "12,345"),
    ],
)
def test_a_cell(key: str, value: float | None, text: str) -> None:
    assert shown_value(key, value) == text


def test_the_tightest_come_first_and_an_unbounded_cost_before_all() -> None:
    silos = [row(f"s{i}", 1.0, i / 100) for i in range(98)]
    silos += [row("boundless", 1.0, None), row("unlimited", None, 9.0)]
    table = silo_table(silos)
    assert [cells[0] for cells in table.rows] == ["boundless", *(f"s{i}" for i in range(97, 78, -1))]
    assert table.total[0] == "all 100 silos"
    assert table.total[1] == "1 to unlimited"
    assert slack(silos[-1]) == 1


def test_claims_have_a_column_only_where_there_are_any() -> None:
    assert not any("claimed" in title for title in silo_table([row("a", 1.0, 1.0)]).columns)
    table = silo_table([row("a", 1.0, 1.0, claimed=0.5), row("b", 1.0, 1.0)])
    place = next(i for i, title in enumerate(table.columns) if "claimed" in title)
    assert [cells[place] for cells in table.rows] == ["0.5", "none"]
    assert table.total == []
