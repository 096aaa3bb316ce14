"""`fedsim sweep` and `fedsim compare` from end to end, in one process."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.refusals import lacking
from support.scenarios import BASE, grown, invoke, refusal, write

from fedsim.api.run import load_run
from fedsim.report.arrow import cells_of
from fedsim.report.record import CellResult, CellSource, Record

pytestmark = pytest.mark.usefixtures("drawn")

TUNE = {"grid": {"algorithm.step_size": [0.01, 1.0]}, "repetitions": 2}
SWEEP = {"grid": {"privacy.epsilon": [0.5, 8]}, "tune": TUNE}


def keys_of(directory: Path) -> list[str]:
    """The keys of a sweep's cells; those of baselines are in the same record."""
    with Record.open(directory / "record.sqlite", lambda _: None) as record:
        return [key for key in record.keys if record.rows(CellResult, key)]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    output = invoke("sweep", write(folder, BASE | {"sweep": SWEEP}), "--out", folder / "out")
    assert "18 cells run, 0 from the cache, 0 failed" in output
    assert "18/18 cells" in output
    assert "best so far" in output
    return folder / "out"


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    invoke("simulate", write(folder, BASE), "--out", folder / "one")
    return folder / "one"


def test_the_directory_holds_cells_results_and_figures(swept: Path) -> None:
    names = {path.name for path in swept.iterdir()}
    assert {"record.sqlite", "scenario.yaml", "summary.json"} <= names
    assert (swept / "error_vs_epsilon.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (swept / "error_vs_epsilon.svg").read_bytes()
    assert len(keys_of(swept)) == 18


def test_the_summary_says_what_came_out_and_how_it_was_chosen(swept: Path) -> None:
    summary = json.loads((swept / "summary.json").read_text())
    budgets = [one["epsilon_budget"] for one in summary["combinations"]]
    assert budgets == [0.5, 8, None]
    for one in summary["combinations"]:
        assert one["trials"] == 2
        low, high = one["error_interval90"]
        assert low <= one["error"] <= high
        if one["private"]:
            assert 0.97 * one["epsilon_budget"] <= one["epsilon_guaranteed"] <= one["epsilon_budget"]
    tuning = summary["tuning"]
    assert tuning["private"] is False
    for one in summary["combinations"]:
        rows = [
            r for r in tuning["candidates"] if (r["varied"], r["private"]) == (one["varied"], one["private"])
        ]
        assert [len(row["values"]) for row in rows] == [2, 2]
        least = min(rows, key=lambda row: row["final_train_loss"])
        assert [row for row in rows if row["selected"]] == [least]
        assert one["chosen"] == least["candidate"]
    assert "the choice of algorithm.step_size" in summary["privacy"]["not_private"][0]
    assert len(summary["code"]["source"]) == 64


def test_its_reported_trials_are_exported(swept: Path, tmp_path: Path) -> None:
    output = invoke("export", swept, "--to", "parquet", "--out", tmp_path / "tables")
    assert "tables/ (cells.parquet)" in " ".join(output.split())
    table = pq.read_table(tmp_path / "tables" / "cells.parquet")
    assert table.equals(cells_of(swept))
    columns = ["privacy.epsilon", "algorithm.step_size", "private", "trial", "error", "loss"]
    assert table.column_names[:6] == columns
    assert "is of a sweep" in refusal("export", swept, "--to", "torch", "--out", tmp_path / "model.pt")


def test_an_unlimited_epsilon_is_summarised_and_compared_by_what_it_costs(tmp_path: Path) -> None:
    sigma = {"epsilon": "unlimited", "calibration": "sigma", "noise_multiplier": 2.0}
    path = write(tmp_path, BASE | {"privacy": sigma, "sweep": {"grid": {"algorithm.step_size": [0.1, 1.0]}}})
    output = invoke("sweep", path, "--out", tmp_path / "swept")
    found = json.loads((tmp_path / "swept" / "summary.json").read_text())["combinations"]
    assert [one["epsilon_budget"] for one in found] == [None] * len(found)
    cost = next(one["epsilon_guaranteed"] for one in found if one["private"])
    output = invoke("simulate", write(tmp_path, BASE | {"privacy": sigma}), "--out", tmp_path / "run")
    output = invoke("compare", tmp_path / "swept", tmp_path / "run", "--out", tmp_path / "compared")
    assert output.count(f"{cost:.4g}") >= 3


def test_a_reported_trial_is_the_one_that_simulate_runs_at_other_noise(swept: Path, tmp_path: Path) -> None:
    """A sweep's cells share noise, and `simulate` with none of them; without noise they are equal."""
    rows = cells_of(swept).to_pylist()
    assert len(rows) == 6
    row = next(row for row in rows if row["privacy.epsilon"] == 8 and row["trial"] == 3)
    tree = BASE | {"privacy": {"epsilon": 8}, "trials": 4}
    tree["algorithm"] = BASE["algorithm"] | {"step_size": row["algorithm.step_size"]}
    invoke("simulate", write(tmp_path, tree), "--out", tmp_path / "run")
    metrics = load_run(tmp_path / "run").metrics.to_pylist()
    for variant, epsilon in (("private", 8), ("nonprivate", None)):
        same = [r for r in rows if r["privacy.epsilon"] == epsilon and r["trial"] == 3]
        (last,) = [m for m in metrics if (m["trial"], m["round"], m["variant"]) == (3, 4, variant)]
        if same[0]["algorithm.step_size"] == row["algorithm.step_size"]:
            assert (same[0]["loss"] == last["loss"]) == (variant == "nonprivate")


def test_a_sweep_is_gone_on_with_and_a_bad_entry_is_run_again(swept: Path) -> None:
    scenario = swept.parent / "scenario.yaml"
    output = invoke("sweep", scenario, "--out", swept)
    assert "0 cells run, 18 from the cache" in output
    key = keys_of(swept)[0]
    with closing(sqlite3.connect(swept / "record.sqlite", isolation_level=None)) as log:
        log.execute("UPDATE entries SET payload = substr(payload, 1, 100) WHERE kind = ?", [f"rows {key}"])
    output = invoke("sweep", scenario, "--out", swept)
    assert "1 cells run, 17 from the cache" in output
    assert f"entry {key} is damaged" in output
    output = invoke("sweep", scenario, "--out", swept)
    assert "0 cells run, 18 from the cache" in output


def test_a_failed_cell_is_reported_reproducible_and_stops_nothing(tmp_path: Path) -> None:
    huge = {"name": "synthetic", "rows": 10**13, "features": 3}
    linear = {"name": "synthetic", "link": "linear", "rows": 100, "features": 3}
    sweep = {
        "cells": [
            {"data": huge},
            {"data": linear, "problem": "linear_regression", "algorithm.step_size": 1e5,
             "algorithm.num_rounds": 90, "privacy": {"mechanism": "none"}},
            {"privacy.epsilon": 1e-7, "privacy.delta": 1e-12},
            {"privacy.epsilon": 2},
        ]
    }  # fmt: skip
    tree = BASE | {"trials": 1, "report": {"nonprivate_baseline": False}, "sweep": sweep}
    output = invoke("sweep", write(tmp_path, tree), "--out", tmp_path / "out", code=1)
    assert "4 cells run, 0 from the cache, 3 failed" in output
    assert lacking(output, "out of memory | lower the step size | plan costs") == []
    assert "Traceback" not in output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["status"] == "finished with failures"
    assert [one["trials"] for one in summary["combinations"]] == [0, 0, 0, 1]
    assert [one["kind"] for one in summary["failures"]].count("out of memory") == 1
    failed = sorted((tmp_path / "out" / "failed").glob("*.yaml"))
    assert len(failed) == 3
    (diverging,) = [file for file in failed if "lower the step size" in file.read_text()]
    assert "lower the step size" in refusal("simulate", diverging, "--out", tmp_path / "again")


def test_a_candidate_that_diverges_is_the_worst_and_no_failure(tmp_path: Path) -> None:
    tune = {"grid": {"algorithm.step_size": [1e5, 0.1]}, "repetitions": 2}
    tree = BASE | {"trials": 1, "problem": "linear_regression", "privacy": {"mechanism": "none"}}
    tree |= {"data": {"name": "synthetic", "link": "linear", "rows": 100, "features": 3}}
    tree |= {"algorithm": BASE["algorithm"] | {"num_rounds": 90}, "sweep": {"tune": tune}}
    output = invoke("sweep", write(tmp_path, tree), "--out", tmp_path / "out")
    assert output.count("diverged in 2 tuning runs") == 1
    assert "0 failed" in output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["status"], summary["failures"]) == ("finished", [])
    assert summary["combinations"][0]["chosen"] == {"algorithm.step_size": 0.1}
    tree["sweep"]["tune"]["grid"] = {"algorithm.step_size": [1e5, 1e6]}
    assert "4 failed" in invoke("sweep", write(tmp_path, tree), "--out", tmp_path / "all", code=1)


def test_a_sweep_of_which_everything_fails_says_so(tmp_path: Path) -> None:
    sweep = {"grid": {"privacy.epsilon": [1e-7]}, "tune": TUNE}
    tree = BASE | {"report": {"nonprivate_baseline": False}, "sweep": sweep}
    tree["privacy"] = {"epsilon": 1, "delta": 1e-12}
    output = invoke("sweep", write(tmp_path, tree), "--out", tmp_path / "out", code=1)
    assert "4 failed" in output
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["combinations"][0]["chosen"] is None


def test_bad_input_is_one_line_and_leaves_nothing(run_directory: Path, tmp_path: Path) -> None:
    scenario, out = write(tmp_path, BASE | {"sweep": SWEEP}), tmp_path / "out"
    for words, command in {
        "privacy.epsilon | one value a silo: 3": ("sweep", "--set", "sweep.grid.privacy.epsilon=[[1, 2], 3]"),
        "scenario.sweep | give a grid": ("sweep", "--set", "sweep=null"),
        "fedsim sweep": ("simulate",),
    }.items():
        assert lacking(refusal(command[0], scenario, "--out", out, *command[1:]), words) == []
        assert not out.exists()
    assert "holds a run" in refusal("sweep", scenario, "--out", run_directory)
    _ = invoke("simulate", scenario, "--out", out, "--set", "sweep=null")


def test_a_killed_sweep_goes_on_without_doing_finished_cells_again(tmp_path: Path) -> None:
    tree = BASE | {"trials": 200, "sweep": {"grid": {"privacy.epsilon": [1, 2]}}}
    tree["algorithm"] = BASE["algorithm"] | {"num_rounds": 150}
    scenario, out = write(tmp_path, tree), tmp_path / "out"
    command = [sys.executable, "-m", "fedsim.cli.main", "sweep", str(scenario), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not grown(out):
        assert process.poll() is None
        time.sleep(0.02)
    assert "another sweep is at work" in refusal("sweep", scenario, "--out", out)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with Record.open(out / "record.sqlite", pytest.fail) as record:
        finished, last = record.keys[1:], max(row.trial for row in record.rows(CellSource))
    assert 5 <= len(finished) < 600
    assert not (out / "summary.json").exists()
    assert "has not ended" in refusal("compare", out)
    invoke("sweep", scenario, "--out", out, "--set", f"trials={last + 2}")
    runs = json.loads((out / "summary.json").read_text())["runs"]
    assert (runs["from_cache"], runs["failed"]) == (len(finished), 0)
    assert runs["made"] > 0
    keys = Record.read(out / "record.sqlite").keys
    assert keys[1 : len(finished) + 1] == finished
    assert len(keys) == len(set(keys))


def test_compare_puts_runs_sweeps_and_points_into_one_table_and_figure(
    swept: Path, run_directory: Path, tmp_path: Path
) -> None:
    points = tmp_path / "points.csv"
    points.write_text("series,epsilon,error,low,high\nfigure 3,1,0.2,0.1,0.3\nfigure 3,,0.05,,\n")
    invoke("compare", swept, run_directory, "--points", points, "--out", tmp_path / "compared")
    lines = (tmp_path / "compared" / "comparison.csv").read_text().splitlines()
    assert lines[0] == "source,series,epsilon,error,low,high,trials"
    assert [line.split(",")[0] for line in lines[1:]] == ["out"] * 6 + ["one"] * 4 + ["points.csv"] * 2
    levels = [""] * 4  # without privacy, and three baselines; of the run one is at the same level
    at = ["0.5", "8.0", *levels, "1.0", *levels[1:], "1.0", ""]
    assert [line.split(",")[2] for line in lines[1:]] == at
    summary = json.loads((run_directory / "summary.json").read_text())
    assert float(lines[7].split(",")[3]) == summary["metrics"]["error"]
    assert (tmp_path / "compared" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "compared" / "comparison.svg").read_bytes()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("series,eps,error\na,1,2\n", "no column 'epsilon'"),
        ("series,epsilon,error\n", "no points"),
        ("series,epsilon,error\na,1,often\n", "'often': a finite number"),
        ("series,epsilon,error\na,-1,0.2\n", "above 0"),
        ("series,epsilon,error,low,high\na,1,0.2,0.3,0.4\n", "between low and high"),
    ],
)
def test_bad_points_are_named(text: str, expected: str, run_directory: Path, tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text(text)
    output = refusal("compare", run_directory, "--points", points, "--out", tmp_path / "out")
    assert "points.csv" in output
    assert expected in output
    assert not (tmp_path / "out").exists()
