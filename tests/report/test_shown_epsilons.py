"""A true epsilon of 1.00004 is 1.001 wherever a person reads it, and a lower bound of 0.99999 is 0.9999."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from support.report_runs import SMALL

from fedsim.api.run import Run
from fedsim.cli.output import print_silos, rendered
from fedsim.cli.privacy import show_conversions
from fedsim.cli.sweep import sweep_table
from fedsim.privacy.convert import Guarantee
from fedsim.report.audit import AttainedPart, AuditedSilo, AuditPart, ConfidencePart, audit_table
from fedsim.report.comparison import compared, source_of
from fedsim.report.page import render
from fedsim.report.sweep_figure import Point, Series, draw
from fedsim.results.run_directory import read
from fedsim.results.silo_rows import Conversions, GroupPrivacy, SiloConversions
from fedsim.sweeps.job import job_of
from fedsim.sweeps.run import run

TRUE, LEAST = 1.00004, 0.99999


@pytest.fixture
def costly(run_copy: Path) -> Path:
    """A run whose silos cost that, without a budget that would be shown in its place."""
    path = run_copy / "summary.json"
    tree = json.loads(path.read_text())
    for silo in tree["privacy"]["silos"]:
        silo |= {"epsilon_budget": None, "epsilon_guaranteed": TRUE, "epsilon_spent": TRUE}
        silo |= {"epsilon_claimed": TRUE, "epsilon_attainable": LEAST, "delta": TRUE / 1e5}
    path.write_text(json.dumps(tree))
    scenario = run_copy / "scenario.yaml"
    text = scenario.read_text()
    scenario.write_text(text[: text.index("  epsilon:")] + "  epsilon: unlimited\n")
    return run_copy


def printed(*things: object) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(*things)
    return capture.get()


def test_in_a_terminal(costly: Path) -> None:
    console = Console(width=100)
    with console.capture() as capture:
        print_silos(console, read(costly).summary.privacy.silos)
    (line,) = (line for line in capture.get().splitlines() if line.startswith("silo-00"))
    assert line.split()[2:6] == ["1.001e-05", "1.001", "0.9999", "1.001"]


def test_on_the_page_and_in_a_notebook(costly: Path, tmp_path: Path) -> None:
    run = read(costly)
    for text in (render(run, tmp_path), Run(run, costly)._repr_html_()):
        assert "<td>1.001e-05</td><td>1.001</td><td>0.9999</td><td>1.001</td><td>1.001</td>" in text


def test_in_a_comparison(costly: Path) -> None:
    from fedsim.cli.compare import _table

    assert "1.00004" in printed(_table(compared([source_of(costly)])))


def test_in_a_sweep() -> None:
    tree = SMALL | {"sweep": {"grid": {"privacy.epsilon": [1.0]}}}
    done = run(job_of(tree), workers=0).summary
    row = done.combinations[0].model_copy(update={"epsilon_guaranteed": TRUE})
    assert "1.001" in printed(sweep_table(done.model_copy(update={"combinations": [row]})))


def test_on_the_axis_of_a_figure() -> None:
    series = [Series("one", (Point(TRUE, 0.2), Point(4.0, 0.1)))]
    (axes,) = draw(series, "epsilon", "error", "", "").axes
    axes.figure.canvas.draw()
    assert "1.001" in [tick.get_text() for tick in axes.get_xticklabels()]


def test_in_an_audit() -> None:
    attained = AttainedPart(attained=LEAST, estimator="curve", runs=(1, 1), assumption_free=0.0)
    silo = AuditedSilo(
        name="a",
        claimed=TRUE,
        attained=LEAST,
        sensitivity_ratio=1.0,
        cross_silo_ratio=0.0,
        noise_ratio=1.0,
        worst_server=attained,
        findings=[],
    )
    confidence = ConfidencePart(bound=0.95, false_alarm=1e-4)
    found = AuditPart(broken=False, of_silos=1, confidence=confidence, silos=[silo])
    assert audit_table(found).rows[0][1:3] == ["1.01", "0.999 (99 %)"]
    assert "1.01" in printed(rendered(audit_table(found), "audit"))


def test_in_other_units_and_a_budget_to_set_is_rounded_down() -> None:
    pair = Guarantee(epsilon=TRUE, delta=1.01e-5)
    silo = SiloConversions(
        name="a",
        n=2,
        group_rule="rule",
        group=[GroupPrivacy(records=2, guarantee=pair)],
        user_level=pair,
        record_level_for_user_level_budget=Guarantee(epsilon=LEAST, delta=9.99e-6),
    )
    console = Console(width=100)
    with console.capture() as capture:
        show_conversions(console, Conversions(central=pair, silos=[silo]))
    assert capture.get().count("(1.001, 1.1e-05)") == 3
    assert "(0.9999, 9.9e-06)" in capture.get()


def test_an_infinite_cost_is_none(costly: Path) -> None:
    silo = read(costly).summary.privacy.silos[0].model_copy(update={"epsilon_guaranteed": None})
    console = Console(width=100)
    with console.capture() as capture:
        print_silos(console, [silo])
    assert "none" in capture.get()
