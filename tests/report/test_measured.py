"""What the run directory keeps for the page: errors per silo, and what the rounds had cost."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from support.scenarios import SMALL, edited, simulate

from fedsim.api.run import Run, load_run
from fedsim.cli.output import print_silos, rendered
from fedsim.cli.privacy import show_conversions
from fedsim.cli.simulate import sweep_table
from fedsim.data.federation import SiloSplit
from fedsim.measure.evaluator import Evaluator
from fedsim.privacy import gaussian
from fedsim.privacy.convert import Guarantee
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression
from fedsim.protocol.batch import FULL, Subsample
from fedsim.protocol.plan import Admitted, Ask, Plan, QueryShape, Statement, Terms
from fedsim.protocol.rows import Rows
from fedsim.report import plots
from fedsim.report.audit import AttainedPart, AuditedSilo, AuditPart, ConfidencePart, audit_table
from fedsim.report.comparison import compared, source_of
from fedsim.report.conversions import Conversions, GroupPrivacy, SiloConversions
from fedsim.report.page import render
from fedsim.report.record import SiloSpend
from fedsim.report.run_directory import read
from fedsim.report.silo_rows import chosen, prefixes
from fedsim.report.style import frame, frame_lines, legend_below, settle, styled
from fedsim.report.summarise import interval90
from fedsim.report.sweep_figure import Point, draw
from fedsim.report.texts import result_line
from fedsim.simulation.sweeps.job import job_of
from fedsim.simulation.sweeps.run import run

pytestmark = pytest.mark.usefixtures("drawn")


def evaluator(problem: GeneralisedLinear, targets: list[list[float]]) -> Evaluator:
    """Silos whose records have one feature, 1, so that every score is w."""
    empty = np.zeros((0, 1))
    silos = [
        SiloSplit(f"silo-{i}", Rows(empty, empty[:, 0]), Rows(np.ones((len(y), 1)), np.array(y)))
        for i, y in enumerate(targets)
    ]
    return Evaluator(problem, silos, torch.float64)


def test_a_silos_error_is_that_of_its_own_records() -> None:
    evaluate = evaluator(LogisticRegression(1), [[1.0, 1.0, 0.0, 0.0], [1.0], []])
    rows = evaluate.by_silo("private", torch.tensor([2.0], dtype=torch.float64))
    assert [row.silo for row in rows] == ["silo-0", "silo-1", "silo-2"]
    assert [row.error for row in rows] == [0.5, 0.0, None]
    assert [row.test_records for row in rows] == [4, 1, 0]
    assert rows[1].loss == pytest.approx(math.log1p(math.exp(-2)))
    assert rows[2].loss is None


def test_an_error_relative_to_a_silos_mean_needs_targets_that_differ() -> None:
    evaluate = evaluator(LinearRegression(1), [[1.0, 3.0], [2.0, 2.0], [5.0]])
    rows = evaluate.by_silo("private", torch.tensor([3.0], dtype=torch.float64))
    assert rows[0].error == pytest.approx(math.sqrt(2))
    assert [row.error for row in rows[1:]] == [None, None]
    assert [row.loss for row in rows] == pytest.approx([1.0, 0.5, 2.0])


def test_the_silos_average_to_the_error_of_the_run(small_run: Path) -> None:
    run = load_run(small_run)
    assert b"simulation_only" in run.silos.arrow.schema.metadata
    rows, metrics = run.silos.to_pylist(), run.metrics.to_pylist()
    assert len(rows) == 2 * 2 * 3
    for trial in range(2):
        for variant in ("private", "nonprivate"):
            final = [m for m in metrics if (m["trial"], m["variant"]) == (trial, variant)][-1]
            own = [r for r in rows if (r["trial"], r["variant"]) == (trial, variant)]
            wrong = sum(r["error"] * r["test_records"] for r in own)
            assert wrong / sum(r["test_records"] for r in own) == pytest.approx(final["error"])


def test_the_spend_of_full_batches_is_the_gaussian_closed_form(small_run: Path) -> None:
    rows = load_run(small_run).spend.to_pylist()
    silos = json.loads((small_run / "summary.json").read_text())["privacy"]["silos"]
    assert {silo["name"] for silo in silos} == {row["silo"] for row in rows}
    for silo in silos:
        own = [row for row in rows if row["silo"] == silo["name"]]
        assert [row["round"] for row in own] == list(range(7))
        for row in own[1:]:
            mu = math.sqrt(row["round"]) / silo["noise_multiplier"]
            assert row["epsilon_spent"] == pytest.approx(float(gaussian.epsilon(mu, silo["delta"])), rel=1e-9)
        assert own[0]["epsilon_spent"] == 0
        assert own[-1]["epsilon_spent"] == silo["epsilon_spent"]
        assert {row["budget"] for row in own} == {silo["epsilon_budget"]}


def test_only_rounds_taken_part_in_cost(tmp_path: Path) -> None:
    tree = SMALL | {"trials": 1, "participation": {"name": "uniform", "num_silos": 1}}
    run = simulate(tmp_path, tree)
    rows, ledger = load_run(run).spend.to_pylist(), load_run(run).ledger.to_pylist()
    for silo in {row["silo"] for row in rows}:
        paid = [row["round"] + 1 for row in ledger if row["silo"] == silo]
        assert [row["round"] for row in rows if row["silo"] == silo] == [0, *paid]


def test_a_run_without_privacy_has_no_spend_and_says_so(tmp_path: Path) -> None:
    run = simulate(tmp_path, SMALL | {"trials": 1, "privacy": {"mechanism": "none"}})
    assert len(load_run(run).spend) == 0
    text = (run / "report.html").read_text()
    assert "No privacy: mechanism none" in text
    assert text.count("<svg") == 7  # errors, excess risk, gradient mapping, calibration, effects


def test_prefixes_are_few_end_with_everything_and_count_like_the_plan() -> None:
    first = Ask(FULL, (QueryShape("gradient", 1, 1.0),))
    second = Ask(Subsample(0.5), (QueryShape("gradient", 1, 2.0),) * 2)
    plan = Plan(tuple((first, second) if r % 3 else (first,) for r in range(200)))
    rounds = list(range(0, 200, 2))
    found = prefixes(plan, rounds, 40)
    assert len(found) == 40
    assert found[-1] == (199, plan.census(rounds))
    for upto, census in found:
        assert census == plan.census([r for r in rounds if r < upto])
    assert prefixes(plan, [], 40) == []


def test_the_silos_chosen_span_the_budgets() -> None:
    budgets = [float(7 * i % 100) for i in range(100)]
    said = [
        Statement(Admitted(Terms(f"s{i}", 10, budget, 0.1, []), 1.0, 1.0, 0), 1.0, [], [])
        for i, budget in enumerate(budgets)
    ]
    picked = [s.admitted.terms.epsilon for s in chosen(said)]
    assert sorted(picked) == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    assert fmean(picked) == 49.5
    assert chosen(said[:3]) == said[:3]


# Few trials are shown one by one; what is equal is drawn once; what the clip takes has a figure.


def test_two_trials_are_points_and_no_band(small_run: Path) -> None:
    run = read(small_run)
    figure = plots.against_rounds(run, "error")
    assert figure is not None
    axes = figure.axes[0]
    assert not axes.collections  # no band
    assert sum(line.get_marker() == "." for line in axes.lines) == 4  # of two trials, private and not
    assert "90 %" not in result_line(run.summary)
    assert "in brackets from the lowest to the highest" in result_line(run.summary)
    assert "90 %" not in (small_run / "report.html").read_text()


def test_of_few_trials_an_interval_is_all_of_them() -> None:
    assert interval90(np.array([0.3, 0.1, 0.2])) == (0.1, 0.3)
    low, high = interval90(np.arange(101) / 100)
    assert (low, high) == pytest.approx((0.05, 0.95))


def test_equal_curves_of_spend_are_drawn_once_with_their_number(small_run: Path) -> None:
    rows = [
        SiloSpend(f"silo-{k}", r, scale * r / 5, 4.0)
        for k, scale in enumerate((1.0, 1.0001, 3.0, 1.0))
        for r in (0, 5)
    ]
    run = replace(read(small_run), load_rows=lambda _: rows)
    figure = plots.spend(run)
    assert figure is not None
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert names == {"3 silos, as silo-0", "silo-2", "budget"}


def test_what_the_clip_takes_is_drawn_between_none_and_all(small_run: Path) -> None:
    figure = plots.figure_of(read(small_run), "clipping")
    assert figure is not None
    names = {str(line.get_label()): np.asarray(line.get_ydata()) for line in figure.axes[0].lines}
    assert 0 <= names["share clipped"].min() <= names["share clipped"].max() <= 1
    assert figure.axes[0].get_ylim()[0] == 0
    assert "query for it" in (small_run / "report.html").read_text()


# Axes show what was measured, and say where they begin.

CASES: dict[str, tuple[list[float], list[float], tuple[float, float], str]] = {
    "from zero": ([0.1, 0.5], [], (0.0, 0.532), ""),
    "in the upper half": ([0.2, 0.3], [], (0.192, 0.308), "axis from 0.192, not 0"),
    "all alike": ([0.2, 0.2], [], (0.184, 0.216), "axis from 0.184, not 0"),
    "below zero": ([-0.5, 0.5], [], (-0.58, 0.58), ""),
    "a start far above the rest": (
        [0.6, 0.08, 0.1],
        [0.08, 0.1],
        (0.0784, 0.1016),
        "axis from 0.0784 to 0.102;\nthe start is at 0.6",
    ),
    "a start that can be seen": ([0.6, 0.2, 0.4], [0.2, 0.4], (0.0, 0.632), ""),
    "nothing": ([], [], (0.0, 1.08), ""),
}


@pytest.mark.parametrize("case", CASES)
def test_an_axis_shows_its_values_and_says_where_it_begins(case: str) -> None:
    values, late, limits, said = CASES[case]
    axes = Figure().subplots()
    assert frame(axes, "y", values, late) == said
    assert axes.get_ylim() == pytest.approx(limits, rel=0.01)


def test_the_label_of_an_axis_without_its_start_is_whole() -> None:
    with styled() as (figure, axes):
        axes.plot(np.arange(20), [0.612, *np.linspace(0.1016, 0.0784, 19)], label="private")
        axes.set(xlabel="rounds", ylabel="error")
        frame_lines(axes)
        legend_below(figure, axes)
        settle(figure)
        shown = axes.yaxis.label.get_window_extent()
        assert "the start is at" in axes.get_ylabel()
        assert 0 <= shown.y0 < shown.y1 <= figure.bbox.height


# A true epsilon of 1.00004 is 1.001 wherever a person reads it, and a lower bound of 0.99999 is 0.9999.

TRUE, LEAST = 1.00004, 0.99999


@pytest.fixture
def costly(run_copy: Path) -> Path:
    """A run whose silos cost that, without a budget that would be shown in its place."""
    with edited(run_copy) as tree:
        for silo in tree["privacy"]["silos"]:
            silo |= {"epsilon_budget": None, "epsilon_guaranteed": TRUE, "epsilon_spent": TRUE}
            silo |= {"epsilon_claimed": TRUE, "epsilon_attainable": LEAST, "delta": TRUE / 1e5}
    scenario = run_copy / "scenario.yaml"
    text = scenario.read_text()
    scenario.write_text(text[: text.index("  epsilon:")] + "  epsilon: unlimited\n")
    return run_copy


def captured(show: Callable[[Console], object]) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        show(console)
    return capture.get()


def printed(thing: object) -> str:
    return captured(lambda console: console.print(thing))


def test_in_a_terminal(costly: Path) -> None:
    shown = captured(lambda console: print_silos(console, read(costly).summary.privacy))
    (line,) = (line for line in shown.splitlines() if line.startswith("silo-00"))
    assert line.split()[2:6] == ["1.001e-05", "1.001", "0.9999", "1.001"]


def test_on_the_page_and_in_a_notebook(costly: Path, tmp_path: Path) -> None:
    run = read(costly)
    for text in (render(run, tmp_path), Run(run)._repr_html_()):
        assert "<td>1.001e-05</td><td>1.001</td><td>0.9999</td><td>1.001</td><td>1.001</td>" in text


def test_in_a_comparison(costly: Path) -> None:
    from fedsim.cli.runs import _table

    assert "1.00004" in printed(_table(compared([source_of(costly)])))


def test_in_a_sweep() -> None:
    tree = SMALL | {"sweep": {"grid": {"privacy.epsilon": [1.0]}}}
    done = run(job_of(tree), workers=0).summary
    row = done.combinations[0].model_copy(update={"epsilon_guaranteed": TRUE})
    assert "1.001" in printed(sweep_table(done.model_copy(update={"combinations": [row]})))


def test_on_the_axis_of_a_figure() -> None:
    points = [Point("one", TRUE, 0.2), Point("one", 4.0, 0.1)]
    (axes,) = draw(points, ["epsilon"], "error", "", "").axes
    axes.figure.canvas.draw()
    assert "1.001" in [tick.get_text() for tick in axes.get_xticklabels()]


def test_in_an_audit() -> None:
    attained = AttainedPart(attained=LEAST, estimator="curve", runs=(1, 1), assumption_free=0.0)
    ratios = {"sensitivity_ratio": 1.0, "cross_silo_ratio": 0.0, "noise_ratio": 1.0}
    silo = AuditedSilo(name="a", claimed=TRUE, attained=LEAST, worst_server=attained, findings=[], **ratios)
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
    found = Conversions(central_of="one record", central=pair, silos=[silo])
    shown = captured(lambda console: show_conversions(console, found))
    assert shown.count("(1.001, 1.1e-05)") == 3
    assert "(0.9999, 9.9e-06)" in shown


def test_an_infinite_cost_is_none(costly: Path) -> None:
    privacy = read(costly).summary.privacy
    silo = privacy.silos[0].model_copy(update={"epsilon_guaranteed": None})
    free = privacy.model_copy(update={"silos": [silo], "persons": None})
    assert "none" in captured(lambda console: print_silos(console, free))
