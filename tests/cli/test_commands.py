"""What the commands print and write."""

import json
import re
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from jsonschema import Draft202012Validator
from safetensors.torch import load_file
from support.distribution import install
from support.full_disk import full_disk
from support.refusals import lacking
from support.scenarios import invoke, refusal

from fedsim.algorithms.registry import algorithms
from fedsim.api.run import load_run
from fedsim.privacy.rounding import shown_down
from fedsim.report.arrow import table_of
from fedsim.report.record import exported
from fedsim.report.run_directory import read
from fedsim.scenario.catalogue import shipped
from fedsim.scenario.load import load

SCENARIOS = [path for path in shipped().values() if path.parent.name != "thesis"]
BREAST_CANCER = Path(__file__).parents[2] / "scenarios" / "breast_cancer.yaml"


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("breast_cancer") / "run"
    invoke("simulate", BREAST_CANCER, "--runtime", "inprocess", "--set", "trials=3", "--out", out)
    return out


def test_the_summary_has_what_a_reviewer_asks_for(run_directory: Path) -> None:
    summary = json.loads((run_directory / "summary.json").read_text())
    for key in ("scenario", "algorithm", "runtime", "rounds", "wall_seconds"):
        assert summary[key]
    assert 0 < summary["metrics"]["error"] < 0.15
    assert 0 < summary["metrics"]["nonprivate"]["error"] < 0.15
    privacy = summary["privacy"]
    assert privacy["unit"] == "one record of one silo"
    assert "replace one record" in privacy["adjacency"]
    assert privacy["not_private"]
    assert [silo["n"] for silo in privacy["silos"]] == [50, 102, 152, 101, 50]
    for silo, budget in zip(privacy["silos"], [1, 1, 2, 2, 4], strict=True):
        assert silo["epsilon_budget"] == budget
        assert silo["delta"] == pytest.approx(1 / silo["n"] ** 2)
        assert 0.97 * budget <= silo["epsilon_guaranteed"] <= budget
        assert silo["epsilon_spent"] == silo["epsilon_guaranteed"]
        assert silo["noise_multiplier"] > 1
        assert silo["releases"] == 30


def test_metrics_ledger_and_model_agree_with_the_scenario(run_directory: Path) -> None:
    metrics = load_run(run_directory).metrics.to_pylist()
    assert len(metrics) == 3 * 2 * 31
    assert {row["variant"] for row in metrics} == {"private", "nonprivate"}
    ledger = load_run(run_directory).ledger.to_pylist()
    assert len(ledger) == 3 * 5 * 30
    assert all(row["releases"] == 1 and len(row["broadcast_sha256"]) == 64 for row in ledger)
    for variant, name in (("private", "model"), ("nonprivate", "nonprivate_baseline")):
        models = load_file(run_directory / f"{name}.safetensors")
        assert sorted(models) == [f"trial-{t}.{variant}" for t in range(3)]
        assert all(model.shape == (31,) for model in models.values())


def test_tables_are_exported_whole_or_not_at_all(run_directory: Path, tmp_path: Path) -> None:
    export = "export", run_directory, "--to", "parquet", "--out", tmp_path / "tables"
    with full_disk(2_000):
        assert lacking(refusal(*export), "cannot be written | File too large") == []
    assert list(tmp_path.iterdir()) == []
    invoke(*export)
    run = read(run_directory)
    for name in exported():
        table = pq.read_table(tmp_path / "tables" / f"{name}.parquet")
        assert table.equals(table_of(run, name), check_metadata=True)
    assert "name a new directory" in refusal(*export)
    assert "leave --trial and --nonprivate out" in refusal(*export, "--trial", 0)


def test_the_resolved_scenario_reads_back_to_itself(run_directory: Path) -> None:
    again = load(run_directory / "scenario.yaml")
    assert again == load(BREAST_CANCER, ["runtime.name=inprocess", "trials=3"])


def test_a_run_is_reproducible_from_its_resolved_scenario(run_directory: Path, tmp_path: Path) -> None:
    invoke("simulate", run_directory / "scenario.yaml", "--out", tmp_path / "again")
    for name in ("model.safetensors", "nonprivate_baseline.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (run_directory / name).read_bytes()


def test_scaling_by_training_statistics_stands_first_among_what_is_not_private(tmp_path: Path) -> None:
    options = ["--runtime", "inprocess", "--set", "data.scaling=training_statistics", "--set", "trials=1"]
    options += ["--set", "data.preprocessing_cost=ignored"]
    invoke("simulate", BREAST_CANCER, *options, "--out", tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    said = summary["privacy"]["not_private"][0]
    assert "training_statistics" in said
    assert "at a privacy cost that is ignored" in said


def test_mechanism_none_claims_nothing(tmp_path: Path) -> None:
    options = ["--runtime", "inprocess", "--set", "privacy={mechanism: none}", "--set", "trials=1"]
    invoke("simulate", BREAST_CANCER, *options, "--out", tmp_path / "run")
    privacy = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert privacy["unit"] == "none"
    assert privacy["not_private"][0].startswith("everything")
    assert {silo["epsilon_guaranteed"] for silo in privacy["silos"]} == {None}
    models = [file.name for file in (tmp_path / "run").glob("*.safetensors")]
    assert models == ["nonprivate_model.safetensors"]
    assert list(load_file(tmp_path / "run" / models[0])) == ["trial-0.nonprivate"]
    assert "No privacy" in (tmp_path / "run" / "scenario.yaml").read_text().splitlines()[0]


def test_privacy_prices_the_run_that_simulate_does(run_directory: Path) -> None:
    shown = json.loads(invoke("privacy", BREAST_CANCER, "--json"))
    stated = json.loads((run_directory / "summary.json").read_text())["privacy"]
    for before, after in zip(shown["silos"], stated["silos"], strict=True):
        assert before == {key: after[key] for key in before}
    same = (shown.keys() & stated.keys()) - {"silos"}
    assert same > {"guarantee", "unit", "accountant", "persons"}
    assert {key: shown[key] for key in same} == {key: stated[key] for key in same}


def test_list_names_every_part_with_a_line() -> None:
    output = invoke("list")
    for name in ("noisy_minibatch_sgd", "local_sgd", "softmax_regression", "breast_cancer", "csv"):
        assert name in output
    for name in ("dirichlet", "label_pairs", "subsample", "poisson", "fresh", "gaussian", "none"):
        assert name in output
    for name in ("mlp", "paired_mlp", "lenet", "l2_ball", "box", "random_size", "availability", "trace"):
        assert re.search(rf"^  {name} +\S", output, re.M), name


def test_list_names_a_tracker_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "theirs", {}, {"fedsim.trackers": {"theirs": "no_such_module:Tracker"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "no_such_module:Tracker, of theirs" in invoke("list")


def test_the_version_is_that_of_the_distribution() -> None:
    assert invoke("--version") == f"fedsim {version('fedsim-isrl')}\n"


def test_the_last_line_of_a_run_names_all_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = invoke(
        "simulate", BREAST_CANCER.with_name("sparse.yaml"), "--set", "trials=1", "--out", "runs/one"
    )
    where, _, names = output.splitlines()[-1].partition(" (")
    assert where == "Wrote runs/one/"
    written = {path.name for path in Path("runs/one").iterdir()}
    assert {name.rstrip("/") for name in names.rstrip(")").split(", ")} == written


def test_schema_describes_fields_with_the_papers_symbols() -> None:
    schema = json.loads(invoke("schema"))
    fields = schema["$defs"]["noisy_minibatch_sgd"]["properties"]
    assert fields["num_rounds"]["description"].startswith("R:")
    assert fields["step_size"]["description"].startswith("eta")
    assert schema["properties"]["seed"]["description"]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_shipped_scenario_is_valid_by_the_schema(path: Path) -> None:
    schema = json.loads(invoke("schema"))
    validator = Draft202012Validator(schema)
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(tree)] == []
    tree["runtime"] = 3
    assert not validator.is_valid(tree)


def test_names_and_numbers_are_never_cut_at_80_characters() -> None:
    listed = invoke("list")
    assert all(name in listed for name in algorithms())
    overrides = ["data.rows=20000", "algorithm.batch={sampler: with_replacement, fraction: 0.5}"]
    sets = [part for override in overrides for part in ("--set", override)]
    partial = BREAST_CANCER.with_name("partial.yaml")
    assert "…" not in invoke("privacy", partial, "--verify", *sets)


def test_a_run_says_who_took_part_and_how_silos_differ(tmp_path: Path) -> None:
    availability = BREAST_CANCER.with_name("availability.yaml")
    sets = ["--set", "trials=1", "--set", "algorithm.num_rounds=3"]
    said = " ".join(invoke("simulate", availability, *sets, "--out", tmp_path / "run").split())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    page = (tmp_path / "run" / "report.html").read_text()
    for text in (
        f"articipation: M = {summary['participation']['effective_m']:.4g} of 8 silos",
        f"upsilon_*^2 = {summary['heterogeneity']['upsilon_star_sq']:.4g}",
        "ilos that are there more often weigh more",
    ):
        assert text in said
        assert text in page


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem == "sdp_people" else [])
        for path in SCENARIOS
    ],
)
def test_every_shipped_scenario_can_be_priced(path: Path) -> None:
    silos = json.loads(invoke("privacy", path, "--json"))["silos"]
    shares = [silo["epsilon_guaranteed"] / silo["epsilon_budget"] for silo in silos]
    # Sums over silos have one noise for all: the silo with most to lose sets it.
    used = max(shares) if path.stem.startswith("sdp_") else min(shares)
    assert 0.97 <= used <= max(shares) <= 1


@pytest.mark.slow
def test_breast_cancer_error_over_forty_trials_is_at_most_the_stated_one(tmp_path: Path) -> None:
    invoke(
        "simulate", BREAST_CANCER, "--runtime", "inprocess", "--set", "trials=40", "--out", tmp_path / "run"
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metrics"]["error"] <= 0.075


@pytest.mark.parametrize("sampler", ["full", "subsample", "with_replacement", "poisson"])
def test_dp_accounting_agrees_with_what_the_silos_guarantee(sampler: str) -> None:
    batch = "full" if sampler == "full" else f"{{sampler: {sampler}, fraction: 0.2}}"
    output = invoke("privacy", BREAST_CANCER, "--verify", "--json", "--set", f"algorithm.batch={batch}")
    for silo in json.loads(output)["silos"]:
        assert silo["epsilon_dp_accounting"] == pytest.approx(silo["epsilon_guaranteed"], abs=1.5e-3)


def test_draws_with_replacement_show_the_attainable_bound_beside_the_guarantee(tmp_path: Path) -> None:
    batch = "algorithm.batch={sampler: with_replacement, fraction: 0.2}"
    shown = json.loads(invoke("privacy", BREAST_CANCER, "--json", "--set", batch))["silos"]
    for silo in shown:
        assert 0.5 * silo["epsilon_guaranteed"] < silo["epsilon_attainable"] < silo["epsilon_guaranteed"]
    assert shown_down(shown[0]["epsilon_attainable"]) in invoke("privacy", BREAST_CANCER, "--set", batch)
    options = ["--runtime", "inprocess", "--set", "trials=1", "--set", batch]
    invoke("simulate", BREAST_CANCER, *options, "--out", tmp_path / "run")
    privacy = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert [silo["epsilon_attainable"] for silo in privacy["silos"]] == [
        s["epsilon_attainable"] for s in shown
    ]
    assert "lower bound" in privacy["epsilon_attainable_note"]
    assert "epsilon_attainable" not in invoke("privacy", BREAST_CANCER, "--json")


def test_conversions_are_printed_on_request() -> None:
    assert "conversions" not in json.loads(invoke("privacy", BREAST_CANCER, "--json"))
    values = json.loads(invoke("privacy", BREAST_CANCER, "--json", "--conversions"))
    found = values["conversions"]
    assert found["central"]["epsilon"] == max(silo["epsilon_guaranteed"] for silo in values["silos"])
    assert found["central"]["delta"] == max(silo["delta"] for silo in values["silos"])
    for silo, one in zip(found["silos"], values["silos"], strict=True):
        assert [entry["records"] for entry in silo["group"]] == [2, 5, 10]
        assert all(entry["guarantee"]["delta"] == one["delta"] for entry in silo["group"])
        recipe = silo["record_level_for_user_level_budget"]
        if one["epsilon_budget"] <= 1:
            assert recipe["epsilon"] == one["epsilon_budget"] / one["n"]
        else:
            assert recipe is None
    batch = "algorithm.batch={sampler: with_replacement, fraction: 0.2}"
    text = invoke("privacy", BREAST_CANCER, "--conversions", "--set", batch)
    assert "Central DP" in text
    assert "guarantee" in text
    sampled = json.loads(invoke("privacy", BREAST_CANCER, "--json", "--conversions", "--set", batch))
    for silo, one in zip(sampled["conversions"]["silos"], sampled["silos"], strict=True):
        assert silo["user_level"] is None
        pair = silo["group"][0]["guarantee"]  # at the delta of one record
        assert pair["delta"] == one["delta"]
        assert one["epsilon_guaranteed"] < pair["epsilon"] < 4 * one["epsilon_guaranteed"]
