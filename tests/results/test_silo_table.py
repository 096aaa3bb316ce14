"""Promises are rounded up, and the tightest silos are the ones shown."""

from __future__ import annotations

import pytest

from fedsim.results.summary import SiloRow
from fedsim.results.text_tables import TextTable, given, plain, silo_table, slack


def row(name: str, budget: float | None, guaranteed: float | None, **more: float) -> SiloRow:
    return SiloRow(
        name=name,
        n=12345,
        epsilon_budget=budget,
        delta=1.00001e-5,
        epsilon_guaranteed=guaranteed,
        epsilon_spent=guaranteed,
        noise_multiplier=1.50001,
        releases=3,
        **more,
    )


def column(table: TextTable, title: str) -> list[str]:
    place = table.columns.index(title)
    return [cells[place] for cells in (*table.rows, *([table.total] if table.total else []))]


def test_figures_are_rounded_to_the_side_that_does_not_flatter() -> None:
    bounds = {"epsilon_claimed": 1.00004, "epsilon_dp_accounting": 1.00004, "epsilon_attainable": 0.99999}
    table = silo_table([row("a", 1.00004, 1.00004, **bounds)], 60)
    shown = dict(zip(table.short, table.rows[0], strict=True))
    assert shown == {
        "silo": "a",
        "n": "12,345",
        "budget": "1.00004",
        "delta": "1.001e-05",
        "guaranteed": "1.001",
        "at least": "0.9999",
        "claimed": "1.001",
        "verified": "1.001",
        "spent": "1.001",
        "noise\nmult.": "1.5",
        "releases": "3",
    }


@pytest.mark.parametrize(
    ("shown", "text"),
    [(given(None), "unlimited"), (given(1.5), "1.5"), (plain(None), "none"), (plain(2), "2")],
)
def test_numbers_that_are_no_promise(shown: str, text: str) -> None:
    assert shown == text


def test_the_tightest_come_first_and_an_unbounded_cost_before_all() -> None:
    silos = [row(f"s{i}", 1.0, i / 100) for i in range(98)]
    silos += [row("boundless", 1.0, None), row("unlimited", None, 9.0)]
    table = silo_table(silos, 60)
    assert [cells[0] for cells in table.rows] == ["boundless", *(f"s{i}" for i in range(97, 78, -1))]
    assert table.total[0] == "all 100 silos"
    assert column(table, "budget epsilon")[-1] == "1 to unlimited"
    assert column(table, "guaranteed epsilon (true)")[-1] == "0 to none"
    assert slack(silos[-1]) == 1


def test_claims_have_a_column_only_where_there_are_any() -> None:
    assert "claimed epsilon" not in silo_table([row("a", 1.0, 1.0)], 60).columns
    table = silo_table([row("a", 1.0, 1.0, epsilon_claimed=0.5), row("b", 1.0, 1.0)], 60)
    assert column(table, "claimed epsilon") == ["0.5", "none"]
    assert table.total == []
