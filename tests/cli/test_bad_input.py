"""Every bad input is one line that names field, value and remedy, exit code 2, and nothing on disk."""

from pathlib import Path

import pytest
from support.refusals import lacking
from support.scenarios import BASE, changed, invoke, refusal, write

GOOD = changed(BASE, {"data.rows": 100, "partition.num_partitions": 4, "algorithm.num_rounds": 5})

THEOREM = "{epsilon: unlimited, calibration: theorem, claimed_epsilon: 1}"
TOO_CONVEX = (
    "{name: multi_stage_accelerated_minibatch_sgd, num_rounds: 20, smoothness: 0.1, strong_convexity: 1, "
    "initial_excess: 1, clip_norm: 1, noise: 0}"
)
BAD = {
    "algorithm.clip_nrom=1": "scenario.algorithm.clip_nrom | 'clip_norm'",
    "privcy={}": "scenario.privcy | 'privacy'",
    "algorithm.name=noisy_sgd": "scenario.algorithm.name | noisy_minibatch_sgd",
    "privacy.epsilon=0": "scenario.privacy.epsilon | 0 | greater than 0",
    "privacy.epsilon=[1,1,-2,1]": "scenario.privacy.epsilon.2 | -2",
    "privacy.epsilon=.nan": "scenario.privacy.epsilon | finite",
    "privacy.epsilon=true": "scenario.privacy.epsilon: True | must be a number",
    "privacy.epsilon=null": "scenario.privacy.epsilon | required",
    "privacy.epsilon=[1,2]": "scenario.privacy.epsilon | 4, not 2 | order: silo-00, silo-01",
    "privacy.epsilon={silo-9: 1}": "scenario.privacy.epsilon.silo-9 | silo-0",
    "privacy.delta=1": "scenario.privacy.delta | less than or equal to 0.1",
    "privacy.delta=0": "scenario.privacy.delta: 0:  | greater than or equal to 1e-100",
    "algorithm={num_rounds: 3}": (
        "scenario.algorithm.name: None: must be one of accelerated_minibatch_sgd, fair_minibatch_sgd, "
    ),
    "algorithm.batch={sampler: poison, fraction: 0.5}": (
        "scenario.algorithm.batch.sampler: 'poison' | did you mean 'poisson'?"
    ),
    "data={name: csv, path: t.csv, target: y, schema: {y: {kind: text}}}": (
        "scenario.data.schema.y.kind: 'text': must be one of number, category"
    ),
    "privacy.delta=1/n": "scenario.privacy.delta | 1/n",
    "algorithm.batch={sampler: fresh, fraction: 0.5}": (
        "silo 'silo-00' | 50 fresh units | has 20 | lower num_rounds"
    ),
    "participation={name: uniform, num_silos: 5}": "participation.num_silos | 5 | at most 4",
    "privacy.epsilon=1e-7 & privacy.delta=1e-12": "silo 'silo-00' | plan costs | 10000 | 1e-07",
    "algorithm.batch={sampler: poisson, fraction: 1e-300}": "scenario.algorithm.batch.fraction | 1e-300",
    "data.test_fraction=0.001": "scenario.data.test_fraction | 0.001",
    "runtime.address=1.2.3.4:99": "scenario.runtime.address | needs runtime ray",
    "runtime={name: ray, address: '127.0.0.1:1'}": (
        "scenario.runtime.address: '127.0.0.1:1' | refused | host:port"
    ),
    "runtime={name: ray, address: 'localhost:port'}": (
        "scenario.runtime.address: 'localhost:port' | host:port"
    ),
    "runtime.silo_hosts=2": "scenario.runtime.silo_hosts | needs runtime ray",
    "algorithm.step_size": "--set | path.to.field=value",
    "seed.x=1": "scenario.seed",
    "problem.ridge=true": "scenario.problem.ridge: True: must be a mapping with keys such as weight, centre",
    "algorithm=3": "scenario.algorithm: 3: must be a mapping with the name of a kind",
    "algorithm=prox_sgd": "scenario.algorithm.num_rounds: None: is required: a number, or auto",
    "algorithm={name: auto, clip_norm: 1}": "scenario.algorithm.clip_norm: 1: left out, or",
    "report.trackers=all": "scenario.report.trackers: 'all': must be a list",
    "problem.regulariser={group_lasso: {weight: 1, groups: {sizes: 2}}}": (
        "regulariser.group_lasso.groups.sizes: 2 | 'size'"
    ),
    "privacy.theorem=experiments": "scenario.privacy.theorem: 'experiments' | only with calibration theorem",
    "privacy.allow_violations=true": (
        "scenario.privacy.allow_violations: True | only with calibration theorem"
    ),
    f"privacy={THEOREM} & algorithm.batch={{sampler: poisson, fraction: 0.5}}": (
        "scenario.algorithm.batch.sampler: 'poisson' | that is with_replacement or subsample or full"
    ),
    f"algorithm={TOO_CONVEX}": ("scenario.algorithm.strong_convexity: 1.0 | at most beta = 0.1"),
    "problem={name: neural_network, model: {name: mlp, hidden: [1000000, 1000000]}}": (
        "scenario.problem.model.hidden: [1000000, 1000000] | does not fit in memory"
    ),
    "algorithm.num_rounds=many": "num_rounds | 'many' | integer",
}


def simulated(folder: Path, tree: object, *arguments: object, out: str = "run") -> str:
    """What the command says that is refused."""
    return refusal("simulate", write(folder, tree), "--out", folder / out, *arguments)


@pytest.mark.parametrize("overrides", BAD)
def test_bad_input_names_field_value_and_remedy_and_leaves_nothing(overrides: str, tmp_path: Path) -> None:
    scenario, out = write(tmp_path, GOOD), tmp_path / "out" / "run"
    sets = [part for override in overrides.split(" & ") for part in ("--set", override)]
    line = refusal("simulate", scenario, "--out", out, *sets)
    assert lacking(line, BAD[overrides]) == [], line
    assert not out.exists()
    assert list(tmp_path.rglob("record.sqlite")) == []


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
    line = simulated(tmp_path, GOOD, "--set", model)
    assert line.startswith("error: scenario.problem.model.path: 'unruly:net'")
    assert reason in line


def test_the_good_scenario_is_good(tmp_path: Path) -> None:
    invoke("simulate", write(tmp_path, GOOD), "--out", tmp_path / "run")
    models = ["model.json", "model.safetensors", "nonprivate_baseline.safetensors"]
    others = ["figures", "record.sqlite", "report.html", "scenario.yaml", "summary.json"]
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == sorted(models + others)


@pytest.mark.parametrize("text", ["", "a: [", "just words", "- a\n- b\n"])
def test_a_file_that_is_no_scenario_is_refused(text: str, tmp_path: Path) -> None:
    assert simulated(tmp_path, text).startswith("error: scenario")


def test_a_missing_scenario_is_refused(tmp_path: Path) -> None:
    assert "none.yaml': cannot be read" in refusal("privacy", tmp_path / "none.yaml")


def test_a_directory_that_holds_another_run_is_refused_before_work(tmp_path: Path) -> None:
    kept = tmp_path / "run" / "summary.json"
    kept.parent.mkdir()
    kept.write_text("precious")
    assert "holds another run" in simulated(tmp_path, GOOD)
    assert kept.read_text() == "precious"


@pytest.mark.parametrize("link", ["empty", "missing"])
def test_an_output_path_may_be_a_link(link: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / link)
    quick = GOOD | {"trials": 1, "report": {"baselines": False}}
    invoke("simulate", write(tmp_path, quick), "--out", tmp_path / "link")
    assert (tmp_path / link / "summary.json").exists()


def test_a_refused_plan_leaves_no_parent_directories(tmp_path: Path) -> None:
    simulated(tmp_path, GOOD, "--set", "algorithm.batch={sampler: fresh, fraction: 0.5}", out="new/run")
    assert not (tmp_path / "new").exists()


def test_an_output_path_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    line = simulated(tmp_path, GOOD, out="file/run")
    assert "--out" in line
    assert "cannot be written" in line


SCHEMA = {
    "age": {"kind": "number", "lower": 0, "upper": 100},
    "sick": {"kind": "category", "categories": ["no", "yes"]},
}
CSV = GOOD | {"data": {"name": "csv", "path": "table.csv", "target": "sick", "schema": SCHEMA}}
ROWS = [f"{20 + i},{'yes' if i % 3 else 'no'}" for i in range(40)]


def test_a_relative_table_is_found_beside_its_scenario(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("\n".join(["age,sick", *ROWS]) + "\n")
    invoke("simulate", write(tmp_path, CSV), "--out", tmp_path / "run")


def test_a_schema_error_names_the_column_without_its_kind(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("age,sick\n1,no\n")
    (tmp_path / "schema.yaml").write_text("age: {kind: number, lower: 0, upper: old}\n")
    for override, expected in (
        ("data.schema.age.uper=1", "scenario.data.schema.age.uper: 1: unknown key; did you mean 'upper'?"),
        ("data.schema.age.lower=low", "scenario.data.schema.age.lower: 'low'"),
        ("data.schema=schema.yaml", "scenario.data.schema.age.upper: 'old'"),
    ):
        assert expected in simulated(tmp_path, CSV, "--set", override)


def test_a_binary_table_is_refused_in_printable_text(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"age,sick\n" + b"\x00\x1b[31m,\x07,3," * 100 + b"\n")
    line = simulated(tmp_path, CSV)
    assert line.isprintable()
    assert "scenario.data.path" in line
    assert len(line) < 400 + len(str(tmp_path))


def test_divergence_is_refused_with_the_remedy(tmp_path: Path) -> None:
    tree = GOOD | {
        "data": {"name": "synthetic", "link": "linear", "rows": 100, "features": 3},
        "problem": "linear_regression",
        "privacy": {"mechanism": "none"},
    }
    overrides = ["--set", "algorithm.step_size=1000", "--set", "algorithm.num_rounds=50"]
    assert "lower the step size" in simulated(tmp_path, tree, *overrides)
    assert not (tmp_path / "run").exists()
