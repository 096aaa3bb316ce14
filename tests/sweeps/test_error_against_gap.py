"""A sweep and a comparison draw the error against a gap between groups, a line for each epsilon."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import InputError
from fedsim.report.sweep_page import points
from fedsim.report.sweep_summary import read_summary
from fedsim.simulation.sweeps.run import Sweep

pytestmark = pytest.mark.usefixtures("drawn")

STEPS = [4.0, 0.5, 1.5]  # stand for a weight
PUBLISHED = """\
series,epsilon,error,parity_gap,odds_gap
theirs,1,0.20,0.10,
theirs,1,0.25,0.04,
theirs,,0.18,0.12,
theirs,1,0.22,,0.03
"""


def data() -> fedsim.Arrays:
    rng = np.random.default_rng(4)
    group = rng.integers(2, size=900)
    x = rng.uniform(-1, 1, (900, 3))
    x[:, 0] = np.clip(x[:, 0] + 0.6 * group - 0.3, -1, 1)
    target = (x @ [2.0, 1.0, -1.0] + rng.normal(0, 0.3, 900) > 0).astype(int)
    return fedsim.Arrays(x, target, ranges=(-1.0, 1.0), group=["women" if g else "men" for g in group])


def scenario(**report: Any) -> dict[str, Any]:
    return {
        "name": "gaps",
        "partition": {"name": "iid", "num_partitions": 3},
        "problem": {"name": "logistic_regression"},
        "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 4, "step_size": 1.0, "clip_norm": 1.0},
        "privacy": {"epsilon": 1.0, "delta": 1e-4},
        "runtime": {"name": "inprocess"},
        "trials": 2,
        "report": report,
        "sweep": {"grid": {"algorithm.step_size": STEPS, "privacy.epsilon": [1.0, 4.0]}},
    }


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Path]:
    folder = tmp_path_factory.mktemp("gaps") / "sweep"
    found = fedsim.sweep(scenario(against="parity_gap"), data=data(), out=folder, workers=0, progress=False)
    return found, folder


def test_a_line_is_an_epsilon_and_goes_along_the_other_number(swept: tuple[Sweep, Path]) -> None:
    summary = read_summary(swept[1])
    made = points(summary, "algorithm.step_size")
    by_step = {
        (row.varied["algorithm.step_size"], row.epsilon_budget): row
        for row in summary.combinations
        if row.private
    }
    for epsilon in (1.0, 4.0):
        line = [point for point in made if point.series == f"epsilon={epsilon:g}"]
        rows = [by_step[step, epsilon] for step in sorted(STEPS)]
        assert [(point.x, point.value) for point in line] == [(row.parity_gap, row.error) for row in rows]
        assert [point.across for point in line] == [row.parity_gap_interval90 for row in rows]
    pooled = next(one for one in summary.baselines[0].baselines if one.name == "pooled")
    assert next(p.x for p in made if p.series == pooled.label) == pooled.parity_gap
    assert (swept[1] / "error_vs_parity_gap.png").is_file()
    page = (swept[1] / "report.html").read_text()
    assert "Test error against parity gap" in page
    assert "odds gap" in page


def test_a_comparison_has_published_points_by_epsilon_and_leaves_out_those_without_the_gap(
    swept: tuple[Sweep, Path], tmp_path: Path
) -> None:
    (tmp_path / "p.csv").write_text(PUBLISHED)
    found = fedsim.compare([swept[1]], points=tmp_path / "p.csv", against="parity_gap")
    theirs = [(p.series, p.x, p.value) for p in found.points if p.source == "p.csv"]
    one = "theirs, epsilon=1"
    assert theirs == [(one, 0.1, 0.2), (one, 0.04, 0.25), ("theirs (non-private)", 0.12, 0.18)]
    ours = [p for p in found.points if p.source == "sweep" and p.series == "epsilon=4"]
    assert len(ours) == 3
    assert found.text.columns == ["from", "series", "parity gap", "error", "trials"]
    assert found.plot().axes[0].get_xlabel().startswith("parity gap")
    found.save(tmp_path / "comparison")
    with (tmp_path / "comparison" / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["parity_gap"]) for row in rows if row["series"] == one] == [0.1, 0.04]
    odds = fedsim.compare([swept[1]], points=tmp_path / "p.csv", against="odds_gap")
    assert [(p.x, p.value) for p in odds.points if p.source == "p.csv"] == [(0.03, 0.22)]


def test_runs_are_named_by_their_epsilon(tmp_path: Path) -> None:
    tree = scenario() | {"trials": 1}
    del tree["sweep"]
    runs = [fedsim.simulate(tree, data=data(), epsilon=e, progress=False) for e in (1.0, 4.0)]
    found = fedsim.compare({"a": runs[0], "b": runs[1]}, against="parity_gap")
    gaps = {p.series: p.x for p in found.points if p.source and "epsilon" in p.series}
    assert gaps == {
        f"noisy_minibatch_sgd, epsilon={e}": run.summary.metrics.parity_gap
        for e, run in zip((1, 4), runs, strict=True)
    }
    plain = fedsim.compare({"a": runs[0]})
    assert plain.points[0].series == "noisy_minibatch_sgd"


@pytest.mark.parametrize(
    ("against", "said"),
    [("parity_gp", "did you mean 'parity_gap'"), ("rmse", "has no root mean squared error")],
)
def test_another_metric_that_is_not_there_is_refused(
    swept: tuple[Sweep, Path], against: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        fedsim.compare([swept[1]], against=against)
    (tmp_path / "p.csv").write_text("series,epsilon,error\na,1,0.2\n")
    with pytest.raises(InputError, match="no column 'parity_gap'"):
        fedsim.compare([swept[1]], points=tmp_path / "p.csv", against="parity_gap")


def test_a_gap_without_an_attribute_is_refused_in_either_field() -> None:
    x, y = np.zeros((30, 1)), np.arange(30) % 2
    for field in ("metric", "against"):
        with pytest.raises(InputError, match=rf"report\.{field}: 'odds_gap'.*data\.attribute"):
            fedsim.sweep(
                scenario(**{field: "odds_gap"}), data=fedsim.Arrays(x, y, ranges=(-1.0, 1.0)), workers=0
            )


def test_candidates_are_chosen_by_a_gap_in_the_open_and_not_privately() -> None:
    tree = scenario(metric="parity_gap")
    tree["sweep"] = {"tune": {"grid": {"algorithm.step_size": STEPS}}}
    private = {"criterion": "private_metric", "private": {"metric": "parity_gap"}}
    tuned = {"sweep": {"tune": tree["sweep"]["tune"] | private}}
    with pytest.raises(InputError, match=r"private\.metric: 'parity_gap'"):
        fedsim.sweep(tree | tuned, data=data(), workers=0, progress=False)
    found = fedsim.sweep(tree, data=data(), workers=0, progress=False).summary
    rows = [row for row in found.tuning.candidates if row.private]
    assert len(rows) == 3
    assert found.tuning.criterion == "final_metric"
    (chosen,) = [row for row in rows if row.selected]
    assert chosen.final_metric == min(row.final_metric for row in rows)
