"""What is allowed and hardly meant is said: in the summary, in the terminal once, on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.report_runs import SMALL
from typer.testing import CliRunner

import fedsim
from fedsim.api.given import resolved_of
from fedsim.cli.main import app
from fedsim.results.privacy_statement import not_private
from fedsim.results.run_directory import read
from fedsim.results.summarise import of_scenario
from fedsim.scenario.model import Scenario

NONE = {"mechanism": "none", "epsilon": 2.0}


def said(**changes: Any) -> list[str]:
    return of_scenario(resolved_of(Scenario.model_validate(SMALL | changes)))


@pytest.mark.parametrize(("delta", "silos"), [(1 / 32, 0), (0.034, 3), ([0.001, 0.05, 1 / 40], 1)])
def test_a_delta_above_one_over_n_is_named(delta: object, silos: int) -> None:
    lines = said(privacy={"epsilon": 1.0, "delta": delta})  # each silo trains on 32 records
    assert len(lines) == (silos > 0)
    assert not silos or f"above 1/n in {silos} of 3 silos" in lines[0]


def test_baselines_and_warnings_made_of_records_are_said_not_to_be_private() -> None:
    said = not_private(Scenario.model_validate(SMALL))
    assert any(line.startswith("baselines, and warnings about records") for line in said)


def test_a_budget_that_nothing_keeps_to_is_named() -> None:
    assert said(privacy=NONE) == ["privacy.epsilon is ignored: mechanism none neither clips nor adds noise"]
    assert said(privacy={"mechanism": "none"}) == []


def test_a_warning_stands_once_in_the_terminal_and_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(
        yaml.safe_dump(SMALL | {"privacy": NONE, "report": {"baselines": False}})
    )
    out = tmp_path / "run"
    result = CliRunner().invoke(app, ["simulate", str(tmp_path / "scenario.yaml"), "--out", str(out)])
    assert result.output.count("warning: privacy.epsilon is ignored") == 1
    assert read(out).summary.warnings == said(privacy=NONE)
    assert (out / "report.html").read_text().count("Warning: privacy.epsilon is ignored") == 1


def test_records_that_a_partition_leaves_out_are_counted() -> None:
    partition = {"name": "size", "partition_sizes": [30, 28]}  # of 120
    (line,) = said(partition=partition, privacy={"epsilon": 1.0})
    assert line == "partition size leaves out 62 of 120 records (52%): no silo has them"


def test_targets_that_are_all_alike_are_named() -> None:
    features = np.random.default_rng(0).normal(size=(40, 2))
    data = fedsim.Arrays(features, np.ones(40, dtype=int), classes=2)
    run = fedsim.simulate(
        SMALL | {"report": {"nonprivate_twin": False, "baselines": False}}, data=data, progress=False
    )
    training, test = run.summary.warnings  # once, of two trials
    assert training.startswith("all 31 training records have one and the same target")
    assert test.startswith("all 9 test records")
    run = fedsim.simulate(SMALL, data=fedsim.Arrays(features, np.arange(40) % 2), progress=False)
    assert run.summary.warnings == []


def test_a_declared_range_that_misses_its_column_is_named(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{'ab'[i % 2]},{20 + i},{i % 7},{i % 2}" for i in range(60))
    (tmp_path / "table.csv").write_text(f"number,sex,age,dose,sick\n{rows}\n")
    number = {"kind": "number", "lower": 0, "upper": 1}
    schema = {
        "age": number,
        "dose": number | {"upper": 6},
        "sick": {"kind": "category", "categories": [0, 1]},
    }
    data = {"name": "csv", "path": str(tmp_path / "table.csv"), "target": "sick", "schema": schema}
    run = fedsim.simulate(SMALL | {"trials": 1, "data": data}, progress=False)
    held = "the declared range [0, 1] of age holds 0 of 60 values: the others count as its ends"
    assert [line for line in run.summary.warnings if "declared range" in line] == [held]
    summary = fedsim.simulate(SMALL | {"data": data | {"scaling": "none"}}, progress=False).summary
    assert not any("declared range" in line for line in summary.warnings)
