"""Every bad input is one line that names field, value and remedy, exit code 2, and nothing on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedsim.cli.main import app

GOOD = {
    "name": "good",
    "data": {"name": "synthetic", "rows": 100, "features": 3},
    "partition": {"name": "iid", "num_partitions": 4},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 5, "step_size": 1.0, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0},
    "runtime": "inprocess",
}

BAD = {
    "unknown key, nearest named": (
        ["algorithm.clip_nrom=1"],
        ["scenario.algorithm.clip_nrom", "'clip_norm'"],
    ),
    "unknown section": (["privcy={}"], ["scenario.privcy", "'privacy'"]),
    "unknown algorithm": (["algorithm.name=noisy_sgd"], ["scenario.algorithm.name", "noisy_minibatch_sgd"]),
    "epsilon zero": (["privacy.epsilon=0"], ["scenario.privacy.epsilon", "0", "greater than 0"]),
    "epsilon negative in a list": (["privacy.epsilon=[1,1,-2,1]"], ["scenario.privacy.epsilon.2", "-2"]),
    "epsilon not a number": (["privacy.epsilon=.nan"], ["scenario.privacy.epsilon", "finite"]),
    "epsilon true": (["privacy.epsilon=true"], ["scenario.privacy.epsilon: True", "must be a number"]),
    "epsilon true in a list": (["privacy.epsilon=[1,1,true,1]"], ["scenario.privacy.epsilon.2: True"]),
    "rounds true": (["algorithm.num_rounds=true"], ["scenario.algorithm.num_rounds: True", "number"]),
    "epsilon missing": (["privacy.epsilon=null"], ["scenario.privacy.epsilon", "required"]),
    "epsilon of another length": (
        ["privacy.epsilon=[1,2]"],
        ["scenario.privacy.epsilon", "4, not 2", "order: silo-00, silo-01"],
    ),
    "epsilon for no such silo": (
        ["privacy.epsilon={silo-9: 1}"],
        ["scenario.privacy.epsilon.silo-9", "silo-0"],
    ),
    "delta one": (["privacy.delta=1"], ["scenario.privacy.delta", "less than or equal to 0.1"]),
    "delta that nobody means": (["privacy.delta=0.5"], ["scenario.privacy.delta: 0.5: ", "equal to 0.1"]),
    "delta zero": (["privacy.delta=0"], ["scenario.privacy.delta: 0: ", "greater than or equal to 1e-100"]),
    "an algorithm without its name": (
        ["algorithm={num_rounds: 3}"],
        ["scenario.algorithm.name: None: must be one of accelerated_minibatch_sgd, fedadam, "],
    ),
    "a constraint without its name": (
        ["problem.constraint={radius: 1}"],
        ["scenario.problem.constraint.name: None: must be one of none, l2_ball, box"],
    ),
    "a sampler misspelt": (
        ["algorithm.batch={sampler: poison, fraction: 0.5}"],
        ["scenario.algorithm.batch.sampler: 'poison'", "did you mean 'poisson'?"],
    ),
    "a column of no known kind": (
        ["data={name: csv, path: t.csv, target: y, schema: {y: {kind: text}}}"],
        ["scenario.data.schema.y.kind: 'text': must be one of number, category"],
    ),
    "delta in words": (["privacy.delta=1/n"], ["scenario.privacy.delta", "1/n"]),
    "no records for fresh batches": (
        ["algorithm.batch={sampler: fresh, fraction: 0.5}"],
        ["silo 'silo-00'", "50 fresh records", "has 20", "lower num_rounds"],
    ),
    "more silos than records": (["partition.num_partitions=101"], ["num_partitions", "101", "100 records"]),
    "M above N": (
        ["participation={name: uniform, num_silos: 5}"],
        ["participation.num_silos", "5", "at most 4"],
    ),
    "label that the problem cannot take": (
        ["problem=linear_regression"],
        ["scenario.problem.name", "2 classes", "logistic_regression"],
    ),
    "plan that a silo cannot afford": (
        ["privacy.epsilon=1e-7", "privacy.delta=1e-12"],
        ["silo 'silo-00'", "plan costs", "10000", "1e-07"],
    ),
    "fraction too small to mean anything": (
        ["algorithm.batch={sampler: poisson, fraction: 1e-300}"],
        ["scenario.algorithm.batch.fraction", "1e-300"],
    ),
    "nothing to test with": (["data.test_fraction=0.001"], ["scenario.data.test_fraction", "0.001"]),
    "address without ray": (
        ["runtime.address=1.2.3.4:99"],
        ["scenario.runtime.address", "needs runtime ray"],
    ),
    "address of nobody": (
        ["runtime={name: ray, address: '127.0.0.1:1'}"],
        ["scenario.runtime.address: '127.0.0.1:1'", "refused", "host:port"],
    ),
    "address that is none": (
        ["runtime={name: ray, address: 'localhost:port'}"],
        ["scenario.runtime.address: 'localhost:port'", "host:port"],
    ),
    "hosts without ray": (["runtime.silo_hosts=2"], ["scenario.runtime.silo_hosts", "needs runtime ray"]),
    "override without value": (["algorithm.step_size"], ["--set", "path.to.field=value"]),
    "override of a value below a number": (["seed.x=1"], ["scenario.seed"]),
    "box upside down": (["problem.constraint={name: box, lower: 1, upper: 0}"], ["constraint.lower", "0"]),
    "a number for a section": (
        ["problem.ridge=true"],
        ["scenario.problem.ridge: True: must be a mapping with keys such as weight, centre"],
    ),
    "an algorithm without its fields": (
        ["algorithm=prox_sgd"],
        ["scenario.algorithm: 'prox_sgd': must be a mapping with the name of a kind"],
    ),
    "a word for a list": (["report.trackers=all"], ["scenario.report.trackers: 'all': must be a list"]),
    "a field behind a union's branch": (
        ["problem.regulariser={group_lasso: {weight: 1, groups: {sizes: 2}}}"],
        ["regulariser.group_lasso.groups.sizes: 2", "'size'"],
    ),
    "a theorem that nobody asked for": (
        ["privacy.theorem=experiments"],
        ["scenario.privacy.theorem: 'experiments'", "only with calibration theorem"],
    ),
    "violations without a theorem": (
        ["privacy.allow_violations=true"],
        ["scenario.privacy.allow_violations: True", "only with calibration theorem"],
    ),
    "a sampler outside the theorem": (
        [
            "privacy={epsilon: unlimited, calibration: theorem, claimed_epsilon: 1}",
            "algorithm.batch={sampler: poisson, fraction: 0.5}",
        ],
        ["scenario.algorithm.batch.sampler: 'poisson'", "that is with_replacement or subsample or full"],
    ),
    "more convex than smooth": (
        [
            "algorithm={name: multi_stage_accelerated_minibatch_sgd, num_rounds: 20, smoothness: 0.1, "
            "strong_convexity: 1, initial_excess: 1, clip_norm: 1, noise: 0}"
        ],
        ["scenario.algorithm.strong_convexity: 1.0", "at most beta = 0.1"],
    ),
    "a network that fits into no memory": (
        ["problem={name: neural_network, model: {name: mlp, hidden: [1000000, 1000000]}}"],
        ["scenario.problem.model.hidden: [1000000, 1000000]", "does not fit in memory"],
    ),
    "too few features for a word": (["algorithm.num_rounds=many"], ["num_rounds", "'many'", "integer"]),
}


def write(folder: Path, tree: object) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree), encoding="utf-8")
    return path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_field_value_and_remedy_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    overrides, expected = BAD[case]
    scenario, out = write(tmp_path, GOOD), tmp_path / "out" / "run"
    sets = [part for override in overrides for part in ("--set", override)]
    code, output = run("simulate", scenario, "--out", out, *sets)
    assert code == 2
    for text in expected:
        assert text in output
    assert "Traceback" not in output
    assert len(output.strip().splitlines()) == 1
    assert not out.exists()
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [("raise ValueError('two\\nlines')", "ValueError: two lines"), ("raise SystemExit(3)", "SystemExit: 3")],
)
def test_what_a_module_does_at_import_is_one_line(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unruly.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    model = "problem={name: neural_network, model: {name: module, path: 'unruly:net'}}"
    code, output = run("simulate", write(tmp_path, GOOD), "--out", tmp_path / "run", "--set", model)
    assert code == 2
    assert output.startswith("error: scenario.problem.model.path: 'unruly:net'")
    assert reason in output
    assert len(output.strip().splitlines()) == 1


def test_the_good_scenario_is_good(tmp_path: Path) -> None:
    code, output = run("simulate", write(tmp_path, GOOD), "--out", tmp_path / "run")
    assert code == 0, output
    measured = ["baselines.parquet", "calibration.parquet", "clipping.parquet", "metrics.parquet"]
    tables = [*measured, "ledger.parquet", "silos.parquet", "spend.parquet"]
    models = ["model.json", "model.safetensors", "nonprivate_twin.safetensors"]
    others = ["figures", "metrics.png", "report.html", "scenario.yaml", "summary.json"]
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == sorted(tables + models + others)


@pytest.mark.parametrize("text", ["", "a: [", "just words", "- a\n- b\n"])
def test_a_file_that_is_no_scenario_is_refused(text: str, tmp_path: Path) -> None:
    code, output = run("simulate", write(tmp_path, text))
    assert code == 2
    assert output.startswith("error: scenario")
    assert "Traceback" not in output


def test_a_missing_scenario_is_refused(tmp_path: Path) -> None:
    code, output = run("privacy", tmp_path / "none.yaml")
    assert code == 2
    assert "none.yaml" in output
    assert "cannot be read" in output


def test_a_directory_that_holds_another_run_is_refused_before_work(tmp_path: Path) -> None:
    kept = tmp_path / "run" / "summary.json"
    kept.parent.mkdir()
    kept.write_text("precious")
    code, output = run("simulate", write(tmp_path, GOOD), "--out", tmp_path / "run")
    assert code == 2
    assert "holds another run" in output
    assert kept.read_text() == "precious"


@pytest.mark.parametrize("link", ["empty", "missing"])
def test_an_output_path_may_be_a_link(link: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / link)
    code, output = run("simulate", write(tmp_path, GOOD), "--out", tmp_path / "link")
    assert code == 0, output
    assert (tmp_path / link / "summary.json").exists()


def test_a_refused_plan_leaves_no_parent_directories(tmp_path: Path) -> None:
    overrides = ["--set", "algorithm.batch={sampler: fresh, fraction: 0.5}"]
    code, _ = run("simulate", write(tmp_path, GOOD), "--out", tmp_path / "new" / "run", *overrides)
    assert code == 2
    assert not (tmp_path / "new").exists()


def test_an_output_path_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code, output = run("simulate", write(tmp_path, GOOD), "--out", tmp_path / "file" / "run")
    assert code == 2
    assert "--out" in output
    assert "cannot be written" in output


CSV = GOOD | {
    "data": {
        "name": "csv",
        "path": "table.csv",
        "target": "sick",
        "schema": {
            "age": {"kind": "number", "lower": 0, "upper": 100},
            "sick": {"kind": "category", "categories": ["no", "yes"]},
        },
    },
    "partition": {"name": "iid", "num_partitions": 2},
}
ROWS = [f"{20 + i},{'yes' if i % 3 else 'no'}" for i in range(40)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({3: "inf,yes"}, ["age", "inf"]),
        ({3: ",yes"}, ["age", "fill"]),
        ({3: "nan,yes"}, ["age", "fill"]),
        ({5: "30,maybe"}, ["sick", "maybe"]),
        ({5: "old,yes"}, ["age", "old"]),
    ],
)
def test_bad_values_in_a_table_are_named(change: dict[int, str], expected: list[str], tmp_path: Path) -> None:
    rows = [change.get(i, row) for i, row in enumerate(ROWS)]
    (tmp_path / "table.csv").write_text("\n".join(["age,sick", *rows]) + "\n")
    code, output = run("simulate", write(tmp_path, CSV), "--out", tmp_path / "run")
    assert code == 2
    for text in expected:
        assert text in output
    assert not (tmp_path / "run").exists()


def test_a_relative_table_is_found_beside_its_scenario(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("\n".join(["age,sick", *ROWS]) + "\n")
    code, output = run("simulate", write(tmp_path, CSV), "--out", tmp_path / "run")
    assert code == 0, output


@pytest.mark.parametrize("content", [None, "", "age,sick\n"])
def test_an_unreadable_or_empty_table_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "table.csv").write_text(content)
    code, output = run("simulate", write(tmp_path, CSV), "--out", tmp_path / "run")
    assert code == 2
    assert "scenario.data.path" in output
    assert "table.csv" in output


def test_a_schema_error_names_the_column_without_its_kind(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("age,sick\n1,no\n")
    (tmp_path / "schema.yaml").write_text("age: {kind: number, lower: 0, upper: old}\n")
    scenario = write(tmp_path, CSV)
    for override, expected in (
        ("data.schema.age.uper=1", "scenario.data.schema.age.uper: 1: unknown key; did you mean 'upper'?"),
        ("data.schema.age.lower=low", "scenario.data.schema.age.lower: 'low'"),
        ("data.schema=schema.yaml", "scenario.data.schema.age.upper: 'old'"),
    ):
        code, output = run("simulate", scenario, "--out", tmp_path / "run", "--set", override)
        assert code == 2
        assert expected in output


def test_a_binary_table_is_refused_in_printable_text(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"age,sick\n" + b"\x00\x1b[31m,\x07,3," * 100 + b"\n")
    code, output = run("simulate", write(tmp_path, CSV), "--out", tmp_path / "run")
    assert code == 2
    assert output.strip().isprintable()
    assert "scenario.data.path" in output
    assert len(output) < 400 + len(str(tmp_path))


def test_divergence_is_refused_with_the_remedy(tmp_path: Path) -> None:
    tree = GOOD | {
        "data": {"name": "synthetic", "link": "linear", "rows": 100, "features": 3},
        "problem": "linear_regression",
        "privacy": {"mechanism": "none"},
    }
    overrides = ["--set", "algorithm.step_size=1000", "--set", "algorithm.num_rounds=50"]
    code, output = run("simulate", write(tmp_path, tree), "--out", tmp_path / "run", *overrides)
    assert code == 2
    assert "lower the step size" in output
    assert not (tmp_path / "run").exists()
