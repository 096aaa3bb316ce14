"""A directory that is no whole run of this version is refused by name, and stays as it was."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refusals import lacking
from support.scenarios import SMALL, invoke, refusal, write

import fedsim
from fedsim.api.given import resolved_of
from fedsim.report.privacy_statement import OWN, how, not_private, plug_ins, true_epsilons, trusted
from fedsim.report.record import Record
from fedsim.report.run_directory import read
from fedsim.report.summarise import of_scenario
from fedsim.report.summary import Privacy, SiloRow
from fedsim.report.tables import TextTable
from fedsim.report.texts import budget_text, number_text, silo_table, slack
from fedsim.scenario.load import parse
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import resolve


def edit(directory: Path, **values: object) -> None:
    path = directory / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cut(name: str) -> Callable[[Path], None]:
    def halve(directory: Path) -> None:
        path = directory / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return halve


def remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def changed(directory: Path) -> None:
    with closing(sqlite3.connect(directory / "record.sqlite", isolation_level=None)) as log:
        log.execute("UPDATE entries SET payload = replace(payload, '1', '2') WHERE kind = 'rows trial 1'")


def unended(directory: Path) -> None:
    with Record.open(directory / "record.sqlite", pytest.fail) as record:
        record.append("ended", [])


def foreign(directory: Path) -> None:
    with Record.open(directory / "record.sqlite", pytest.fail) as record:
        assert record.store is not None
        record.store.append("rows ended", json.dumps({"ended": [["finished", "of a column that is new"]]}))


DAMAGE: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no summary": (remove("summary.json"), "has not ended | fedsim simulate --resume"),
    "no run": (
        lambda d: ((d / "record.sqlite").unlink(), (d / "summary.json").unlink()),
        "summary.json is missing; `fedsim simulate` and `fedsim sweep` write it",
    ),
    "of a sweep, and half of it": (
        lambda d: (d / "summary.json").write_text('{"format": 5, "combinations": []}'),
        "summary.json | scenario: field required",
    ),
    "no record": (remove("record.sqlite"), "record.sqlite | is missing"),
    "no scenario": (remove("scenario.yaml"), "scenario.yaml | is missing"),
    "half a summary": (cut("summary.json"), "summary.json | not valid JSON | line"),
    "half a record": (cut("record.sqlite"), "record.sqlite | damaged"),
    "a changed entry": (changed, "trial 1 is damaged"),
    "an entry of another version": (foreign, "ended is damaged or of another version"),
    "a run that goes on": (unended, "has not ended | fedsim simulate --resume"),
    "a run that was killed": (
        lambda d: (unended(d), (d / "summary.json").unlink()),
        "has not ended | fedsim simulate --resume",
    ),
    "an interrupted run of before": (
        lambda d: ((d / "record.sqlite").rename(d / "unfinished"), (d / "summary.json").unlink()),
        "of an earlier version of fedsim (unfinished), and stays as it is",
    ),
    "a sweep of before": (
        lambda d: ((d / "record.sqlite").rename(d / "cells.sqlite"), (d / "summary.json").unlink()),
        "of an earlier version of fedsim (cells.sqlite), and stays as it is",
    ),
    "no scenario's text": (
        lambda d: (d / "scenario.yaml").write_text("- a"),
        "scenario.yaml | not a scenario",
    ),
    "not text": (lambda d: (d / "scenario.yaml").write_bytes(b"\xff\xfe\x00"), "scenario.yaml | damaged"),
    "a directory in a file's place": (
        lambda d: ((d / "record.sqlite").unlink(), (d / "record.sqlite").mkdir()),
        "record.sqlite",
    ),
    "a later format": (
        lambda d: edit(d, format=99, versions={"fedsim-isrl": "9.9"}),
        "summary.json | format 99 | fedsim 9.9 | format 5",
    ),
    "before formats": (lambda d: edit(d, format=None), "format None | reads format 5"),
    "a list": (lambda d: (d / "summary.json").write_text("[]"), "summary.json | format None"),
    "a wrong field": (lambda d: edit(d, rounds="many"), "summary.json | rounds | integer"),
    "a missing part": (lambda d: edit(d, privacy={}), "summary.json | privacy.unit | required"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_run_is_refused_by_file_and_nothing_is_written(case: str, run_copy: Path) -> None:
    damage, expected = DAMAGE[case]
    damage(run_copy)
    before = {file: file.read_bytes() for file in run_copy.rglob("*") if file.is_file()}
    line = refusal("report", run_copy)
    assert line.startswith("error: RUN")
    assert lacking(line, expected) == []
    assert {file: file.read_bytes() for file in run_copy.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_path_that_is_no_directory_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    if kind == "file":
        path.write_text("x")
    assert "no such directory" in refusal("report", path)


# The first line of a run with a claim: what is true, silo by silo.


def row(name: str, **epsilons: Any) -> SiloRow:
    numbers = {"n": 12345, "epsilon_budget": None, "delta": 1.00001e-5, "noise_multiplier": 1.50001}
    return SiloRow(name=name, **numbers | epsilons, releases=3)


def rows(count: int, **epsilons: Any) -> list[SiloRow]:
    return [row(f"silo-{at}", **epsilons) for at in range(count)]


def test_silos_that_cost_the_same_stand_together_and_numbers_never_flatter() -> None:
    assert true_epsilons(rows(3, epsilon_guaranteed=1.0)) == []  # without a claim
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


# Promises are rounded up, and the tightest silos are the ones shown.


def silo_row(name: str, budget: float | None, cost: float | None, **more: float) -> SiloRow:
    return row(name, epsilon_budget=budget, epsilon_guaranteed=cost, epsilon_spent=cost, **more)


def table_of(*silos: SiloRow) -> TextTable:
    return silo_table(Privacy.model_construct(silos=silos, title="", counted=""), 60)


def column(table: TextTable, title: str) -> list[str]:
    place = table.columns.index(title)
    return [cells[place] for cells in (*table.rows, *([table.total] if table.total else []))]


def test_figures_are_rounded_to_the_side_that_does_not_flatter() -> None:
    bounds = {"epsilon_claimed": 1.00004, "epsilon_dp_accounting": 1.00004, "epsilon_attainable": 0.99999}
    table = table_of(silo_row("a", 1.00004, 1.00004, **bounds))
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


def test_numbers_that_are_no_promise() -> None:
    assert (budget_text(None), budget_text(1.5)) == ("unlimited", "1.5")
    assert (number_text(None), number_text(2)) == ("none", "2")


def test_the_tightest_come_first_and_an_unbounded_cost_before_all() -> None:
    silos = [silo_row(f"s{i}", 1.0, i / 100) for i in range(98)]
    silos += [silo_row("boundless", 1.0, None), silo_row("unlimited", None, 9.0)]
    table = table_of(*silos)
    assert [cells[0] for cells in table.rows] == ["boundless", *(f"s{i}" for i in range(97, 78, -1))]
    assert table.total[0] == "all 100 silos"
    assert column(table, "budget epsilon")[-1] == "1 to unlimited"
    assert column(table, "guaranteed epsilon (true)")[-1] == "0 to none"
    assert slack(silos[-1].tree()) == 1


def test_claims_have_a_column_only_where_there_are_any() -> None:
    assert "claimed epsilon" not in table_of(silo_row("a", 1.0, 1.0)).columns
    table = table_of(silo_row("a", 1.0, 1.0, epsilon_claimed=0.5), silo_row("b", 1.0, 1.0))
    assert column(table, "claimed epsilon") == ["0.5", ""]
    assert table.total == []


# A reader is told whose code ran.

TREE: dict[str, Any] = {
    "name": "small",
    "data": {"name": "synthetic", "rows": 60, "features": 5},
    "partition": {"name": "iid", "num_partitions": 2},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 0.5, "clip_norm": 1.0},
    "privacy": {"epsilon": 1, "delta": 1e-5},
}


def test_a_module_of_others_is_named_and_else_only_the_installation_is_trusted() -> None:
    assert trusted(resolve(parse(TREE))) == [OWN]
    model = {"name": "module", "path": "support.network_modules:Wide"}
    algorithm = TREE["algorithm"] | {"name": "prox_sgd"}
    problem = {"name": "neural_network", "model": model}
    resolved = resolve(parse(TREE | {"problem": problem, "algorithm": algorithm}))
    assert plug_ins(resolved) == ["module support.network_modules:Wide"]
    assert "support.network_modules:Wide" in trusted(resolved)[1]


POISSON = {"algorithm": TREE["algorithm"] | {"batch": {"sampler": "poisson", "fraction": 0.5}}}
PART = {"algorithm": TREE["algorithm"] | {"batch": {"sampler": "part", "start": 0, "stop": 0.5}}}
PERSONS: dict[str, Any] = {
    "data": {"name": "visits", "num_silos": 3, "persons_per_silo": 30},
    "partition": {"name": "natural_id"},
    "privacy": TREE["privacy"] | {"unit": {"name": "person"}},
}
THEIRS = {
    "problem": {
        "name": "neural_network",
        "model": {"name": "module", "path": "support.network_modules:Wide"},
    }
}


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, []),
        (PART, []),
        (POISSON, ["sampled batches"]),
        (PERSONS, ["persons"]),
        (THEIRS, ["a plug-in's graph"]),
        (POISSON | THEIRS, ["sampled batches", "a plug-in's graph"]),
    ],
)
def test_a_statement_says_where_float32_is_not_exact(changes: dict[str, Any], reasons: list[str]) -> None:
    def notices(dtype: str, **more: Any) -> list[str]:
        resolved = resolve(parse(TREE | changes | {"runtime": {"name": "inprocess", "dtype": dtype}} | more))
        return [line for line in how(resolved)["notices"] if "float" in line]

    found = notices("float32")
    assert found[0] == "float32: terms are not exact; in float64 they are"
    said = [line.partition(",")[0] for line in found[1:]]
    assert said == [f"a silo refuses this run: float32 with {reason}" for reason in reasons]
    assert notices("float64") == []
    without = {"mechanism": "none"} | ({"unit": {"name": "person"}} if changes is PERSONS else {})
    assert notices("float32", privacy=without) == []


# What is allowed and hardly meant is said: in the summary, in the terminal once, on the page.

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
    scenario = write(tmp_path, SMALL | {"privacy": NONE, "report": {"baselines": False}})
    out = tmp_path / "run"
    output = invoke("simulate", scenario, "--out", out)
    assert output.count("warning: privacy.epsilon is ignored") == 1
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
        SMALL | {"report": {"nonprivate_baseline": False, "baselines": False}}, data=data, progress=False
    )
    training, test = run.summary.warnings  # once, of two trials
    assert training.startswith("all 31 training records have one and the same target")
    assert test.startswith("all 9 test records")
    run = fedsim.simulate(SMALL, data=fedsim.Arrays(features, np.arange(40) % 2), progress=False)
    assert not any("one and the same" in line for line in run.summary.warnings)


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
