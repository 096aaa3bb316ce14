"""The results page: written part by part from sweeps that are there, with numbers that are theirs."""

import json
from pathlib import Path

import pytest

import fedsim
from benchmarks.thesis import page, runs
from benchmarks.thesis.__main__ import main
from benchmarks.thesis.figures import of_setting, published_points
from benchmarks.thesis.plan import Experiment, Plan, read_plan
from benchmarks.thesis.tables import audit_line, errors, filled
from benchmarks.thesis.trials import curves_of
from benchmarks.thesis.verdicts import Claim
from fedsim.privacy.rounding import shown_up
from fedsim.report.arrow import cells_of
from fedsim.report.audit import AuditPart

SCENARIO = {
    "name": "made up",
    "trials": 2,
    "data": {"name": "synthetic", "rows": 60, "features": 2, "link": "logistic"},
    "partition": {"name": "iid", "num_partitions": 3},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 0.5, "clip_norm": 1.0},
    "privacy": {"epsilon": 1},
    "runtime": "inprocess",
    "sweep": {
        "grid": {
            "participation": [
                {"label": "M = 3", "name": "all"},
                {"label": "M = 2", "name": "uniform", "num_silos": 2},
            ],
            "algorithm": [
                {"label": "minibatch SGD", "name": "noisy_minibatch_sgd", "num_rounds": 2},
                {"label": "local SGD", "name": "local_sgd", "num_rounds": 2, "local_steps": 2},
            ],
            "privacy.epsilon": [1, 3],
        },
        "tune": {"grid": {"algorithm.step_size": [0.5], "algorithm.clip_norm": [1.0]}, "repetitions": 1},
    },
}
THESIS = {
    "calibration": "theorem",
    "theorem": "experiments",
    "claimed_epsilon": 1,
    "epsilon": "unlimited",
    "allow_violations": True,
}
CLAIM = Claim(text="a better one", scenario="toy", less="minibatch SGD", than="local SGD", strict=False)
ONE = Experiment(
    title="Made up",
    about="What nobody has.",
    published={"thesis": {"M = 3": "9.9"}},
    conclusion="At 1: {M = 3 | minibatch SGD @ 1}; twin {M = 2 | local SGD @ none}; {baseline pooled}.",
)
AUDIT = AuditPart.model_validate(
    {
        "broken": False,
        "of_silos": 3,
        "confidence": {"bound": 0.95, "false_alarm": 0.01},
        "silos": [
            {
                "name": "silo-00",
                "claimed": 1.0,
                "attained": 0.61239,
                "sensitivity_ratio": 1.0,
                "cross_silo_ratio": None,
                "noise_ratio": 1.0,
                "worst_server": {
                    "attained": 0.61239,
                    "estimator": "x",
                    "runs": (1, 1),
                    "assumption_free": 0.5,
                },
                "findings": [],
            }
        ],
    }
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two finished sweeps, honest and as published."""
    folder = tmp_path_factory.mktemp("results")
    fedsim.sweep(SCENARIO, out=folder / "toy-honest", workers=0, progress=False)
    grid = SCENARIO["sweep"]["grid"]
    grid = {"privacy.claimed_epsilon": [1, 3], **{k: v for k, v in grid.items() if k != "privacy.epsilon"}}
    algorithms = [one for one in grid["algorithm"] if one["name"] == "noisy_minibatch_sgd"]
    fitted = {"data.scaling": "training_statistics", "data.preprocessing_cost": "ignored"}
    changes = {"privacy": THESIS, **fitted, "sweep.grid": grid | {"algorithm": algorithms}}
    fedsim.sweep(SCENARIO, changes, out=folder / "toy-thesis", workers=0, progress=False)
    return folder


@pytest.fixture
def empty(tmp_path):
    names = ("overview", "verdicts", "toy", "thesis")
    text = "\n".join(f"# {name}\n<!-- {name} -->\nold\n<!-- /{name} -->\nby hand" for name in names)
    (tmp_path / "results.md").write_text(text, encoding="utf-8")
    return tmp_path / "results.md"


@pytest.fixture
def published(tmp_path, monkeypatch):
    path = tmp_path / "published.csv"
    lines = [
        "scenario,figure,series,epsilon,error",
        "toy,9.9,minibatch SGD,1,0.25",
        "toy,9.8,minibatch SGD,1,0.5",
    ]
    path.write_text("\n".join([*lines, "toy,9.9,minibatch SGD,,0.2", "other,9.9,x,1,0.1"]), encoding="utf-8")
    monkeypatch.setattr(page, "PUBLISHED", path)
    return path


def test_a_section_has_figures_tables_the_audit_and_the_true_costs(place, empty, published):
    runs.note(place, "toy-honest", 12.34, made=30, fresh=True)
    measured = [page.read(place, "toy", variant, ONE) for variant in ("honest", "thesis")]
    page.write_section("toy", ONE, [m for m in measured if m], AUDIT, runs.taken(place), empty)
    text = empty.read_text(encoding="utf-8")
    assert "old" not in text.split("<!-- toy -->")[1].split("<!-- /toy -->")[0]
    assert text.count("by hand") == 4
    images = sorted(path.name for path in (empty.parent / "images" / "results").iterdir())
    assert images == [f"toy-{v}-m-{m}.svg" for v in ("honest", "thesis") for m in (2, 3)]
    assert all(name in text for name in images)
    drawn = {name: (empty.parent / "images" / "results" / name).read_text("utf-8") for name in images}
    assert [name for name, svg in drawn.items() if "published" in svg] == ["toy-thesis-m-3.svg"]
    assert "attains epsilon 0.612" in text
    assert "30 runs in 12 s" in text
    honest, as_published = text.split("### As published")
    assert "Not private" not in honest
    (said,) = [note for note in measured[1].summary.privacy.not_private if "training_statistics" in note]
    assert as_published.count(f"Not private: {said}.") == 1
    costs = next(
        line for line in text.split("What they truly cost")[1].splitlines() if "| minibatch SGD" in line
    )
    summary = fedsim_summary(place, "toy-thesis")
    worst = max(row.epsilon_guaranteed or 0 for row in summary.combinations if row.private)
    assert shown_up(worst) in costs


def fedsim_summary(place: Path, name: str):
    found = page.read(place, *name.split("-"), ONE)
    assert found is not None
    return found.summary


def test_means_are_those_of_the_trials(place):
    found = page.read(place, "toy", "honest", ONE)
    assert found is not None
    rows = {
        (r.varied["participation"], r.varied["algorithm"], r.varied.get("privacy.epsilon")): r.error
        for r in found.summary.combinations
    }
    asked = "{M = 3 | minibatch SGD @ 1} {M = 2 | local SGD @ none}"
    expected = [rows["M = 3", "minibatch SGD", 1], rows["M = 2", "local SGD", None]]
    assert filled(asked, found.summary, found.curves) == " ".join(f"{100 * e:.1f} %" for e in expected)
    for absent in ("{M = 3 | minibatch SGD @ 2}", "{M = 9 | local SGD @ 1}", "{baseline mean}"):
        with pytest.raises(LookupError, match=r"mean|SGD"):
            filled(absent, found.summary, found.curves)


def test_beside_another_metric_stands_the_accuracy(place):
    found = page.read(place, "toy", "honest", ONE)
    assert found is not None
    assert "%)" not in errors(of_setting(found.summary, "M = 3"), found.curves, "M = 3")
    summary = found.summary.model_copy(update={"metric": "auc"})
    cells = cells_of(place / "toy-honest").to_pylist()
    table = errors(of_setting(summary, "M = 3"), curves_of(summary, cells, ONE.series), "M = 3")
    rows = {line.split(" | ")[0]: line for line in table.splitlines()}
    for row in of_setting(summary, "M = 3").combinations:
        assert f"({100 * (1 - row.error):.1f} %)" in rows[f"| {row.varied['algorithm']}"]
    for name, one in of_setting(summary, "M = 3").levels():
        assert rows[f"| {name}"].endswith(f"{one.auc:.3f} ({100 * (1 - one.error):.1f} %) |")


def test_verdicts_and_overview_say_what_is_not_measured(place, empty):
    absent = CLAIM.model_copy(update={"scenario": "nobodys"})
    plan = Plan(experiments={"toy": ONE, "nobodys": ONE}, claims=(CLAIM, absent))
    page.write_verdicts(plan, place, empty)
    page.write_overview(plan, {"toy-honest": runs.Taken(12.34, 30, "abc", "2026-01-01")}, empty)
    text = empty.read_text(encoding="utf-8")
    assert "| a better one | `toy` |" in text
    assert "of 4 comparisons" in text
    assert "| a better one | `nobodys` | not measured |" in text
    assert "| [`toy`](#made-up) | 12 | not measured | `abc` |" in text
    page.write_readme(plan, {"toy-honest": runs.Taken(12.34, 30, "abc", "2026-01-01")}, empty)
    assert "| `toy.yaml` | What nobody has. |  |  | 12 |" in empty.read_text(encoding="utf-8")
    page.write_section("toy", ONE, [], None, {}, empty)
    assert page.ABSENT in empty.read_text(encoding="utf-8")


def test_claims_are_judged_by_the_variant_that_the_plan_names(place, empty):
    named = ONE.model_copy(update={"judged": "pairs"})
    plan = Plan(experiments={"toy": named}, claims=(CLAIM,))
    page.write_verdicts(plan, place, empty)
    assert "| a better one | `toy` | not measured |" in empty.read_text(encoding="utf-8")
    (empty.parent / "toy-pairs").symlink_to(place / "toy-honest")
    page.write_verdicts(plan, empty.parent, empty)
    assert "of 4 comparisons" in empty.read_text(encoding="utf-8")
    assert (named.swept, ONE.swept) == (("honest", "thesis", "pairs"), ("honest", "thesis"))


def test_wall_time_adds_up_until_a_sweep_begins_anew(tmp_path):
    runs.note(tmp_path, "toy-honest", 10, made=5, fresh=True)
    runs.note(tmp_path, "toy-honest", 4, made=2, fresh=False)  # interrupted, and gone on with
    runs.note(tmp_path, "toy-honest", 1, made=0, fresh=False)  # nothing was left to do
    assert (runs.taken(tmp_path)["toy-honest"].seconds, runs.taken(tmp_path)["toy-honest"].cells) == (14, 7)
    runs.note(tmp_path, "toy-honest", 3, made=7, fresh=True)
    assert runs.taken(tmp_path)["toy-honest"].seconds == 3


@pytest.mark.parametrize("says_nothing", [False, True])
def test_results_are_noted_without_git_and_outside_of_a_clone(tmp_path, monkeypatch, says_nothing):
    if says_nothing:
        (tmp_path / "git").write_text("#!/bin/sh\nexit 128\n")
        (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    runs.note(tmp_path, "toy-honest", 10, made=5, fresh=True)
    assert runs.taken(tmp_path)["toy-honest"].commit == "unknown"


def test_a_broken_claim_is_said_aloud():
    assert "No claim is broken" in audit_line(AUDIT)
    assert "**a claim is broken**" in audit_line(AUDIT.model_copy(update={"broken": True}))


def test_published_points_are_one_figures(published):
    points = published_points(published, "toy", "9.9")
    assert [(name, [(p.x, p.value) for p in own]) for name, own in points.items()] == [
        ("minibatch SGD", [(1.0, 0.25)])
    ]


def test_the_plan_names_scenarios_figures_and_parts_of_the_page_that_exist():
    plan, text = read_plan(), page.PAGE.read_text(encoding="utf-8")
    for name, one in plan.experiments.items():
        assert f"<!-- {name} -->\n" in text
        assert f"## {one.title}\n" in text
        for variant, figures in one.published.items():
            assert variant in one.variants
            for number in figures.values():
                assert len(published_points(page.PUBLISHED, name, number)) == 3
    assert {claim.scenario for claim in plan.claims} <= plan.experiments.keys()


def test_without_an_audit_the_kept_one_is_shown(place, empty, tmp_path, monkeypatch):
    audited = ONE.model_copy(update={"variants": ("honest",), "audit": {"seed": 1}})
    monkeypatch.setattr(
        "benchmarks.thesis.__main__.read_plan", lambda: Plan(experiments={"toy": audited}, claims=())
    )
    monkeypatch.setattr(runs, "SCENARIOS", tmp_path)
    monkeypatch.setattr(runs, "sweep", lambda *_: None)
    (tmp_path / "toy.yaml").touch()
    kept = place / "toy-audit.json"
    kept.write_text(json.dumps({"asked": {}, "audit": AUDIT.model_dump(mode="json")}))
    main(["--no-audit", "--out", str(place), "--page", str(empty), "--readme", str(empty)])
    kept.unlink()
    assert "attains epsilon 0.612" in empty.read_text(encoding="utf-8")


def test_writing_alone_runs_nothing(place, empty, monkeypatch):
    honest = ONE.model_copy(update={"variants": ("honest",)})
    monkeypatch.setattr(
        "benchmarks.thesis.__main__.read_plan", lambda: Plan(experiments={"toy": honest}, claims=())
    )
    monkeypatch.setattr(runs, "sweep", lambda *_: pytest.fail("a sweep ran"))
    main(["--write", "--out", str(place), "--page", str(empty), "--readme", str(empty)])
    assert "M = 2: share of records misclassified, in percent, by epsilon" in empty.read_text(
        encoding="utf-8"
    )
