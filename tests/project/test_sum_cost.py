"""The benchmark of sums: its cases are of the sizes that they state, and it compares two checkouts."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_cases_are_of_the_sizes_that_they_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from sum_cost import CASES, graph, made

    from fedsim.problems.network_form import Graph

    sizes = {"MLP of 4 M, float64": 4.2e6, "CNN of 1 M, float32": 1.0e6, "CNN of 9 M, float64": 9.4e6}
    for name, size in sizes.items():
        _, silos, w = made(CASES[name])
        assert w.numel() == pytest.approx(size, rel=0.02)
        assert (len(silos), silos[0][0].shape) == (5, (64, 3072))
    problem = graph()
    assert isinstance(problem.form(problem.dtype), Graph)  # type: ignore[union-attr]


def test_two_checkouts_take_turns() -> None:
    """It runs two of the same, so that a ratio is printed; what it is says nothing here."""
    cases = ["logistic", "plug-in's graph"]
    command = [sys.executable, str(ROOT / "benchmarks" / "sum_cost.py"), str(ROOT), "--quick"]
    found = subprocess.run(
        [*command, *(f"--case={case}" for case in cases)], capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    rows = found.stdout.splitlines()[2:]
    assert [row[:38].strip() for row in rows] == cases
    for row in rows:
        medians, ratio = [float(row[38:].split()[i]) for i in (0, 2)], float(row[38:].split()[4])
        assert ratio == pytest.approx(medians[0] / medians[1], rel=0.02)
