"""A sweep's page: what it says, that it fits, and what it refuses to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.browser import BINARY, assert_fits, chromium
from support.sweep_helpers import BASE, invoke

from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.report.sweep_summary import SHARED

TRUE = [(shown_down, "epsilon_attainable"), (shown_up, "epsilon_guaranteed")]
HOSTILE = "<script>window.pwned=1</script> $x$ & " + "long " * 12
SWEEP: dict[str, Any] = {
    "grid": {
        "algorithm": [
            {"label": HOSTILE, "name": "noisy_minibatch_sgd", "num_rounds": 3, "clip_norm": 1.0},
            {"label": "local", "name": "local_sgd", "num_rounds": 3, "clip_norm": 1.0, "local_steps": 2},
        ],
        "privacy.epsilon": [0.5, 8],
    },
    "tune": {"grid": {"algorithm.step_size": [0.01, 1.0]}, "repetitions": 1},
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(BASE | {"description": HOSTILE, "sweep": SWEEP}), encoding="utf-8")
    code, output = invoke("sweep", path, "--out", folder / "out")
    assert code == 0, output
    return folder / "out"


def test_the_statement_comes_first_and_names_what_is_not_private(swept: Path) -> None:
    page = (swept / "report.html").read_text()
    privacy, results, again = (page.index(f'id="{name}"') for name in ("privacy", "results", "reproduce"))
    assert privacy < results < again
    for text in ("replace one record", "exact Gaussian", "accountant", "the choice of algorithm.step_size"):
        assert privacy < page.index(text) < results
    for text in ("<svg", "final training loss", "chosen"):
        assert results < page.index(text, results) < again
    assert "<script>" not in page
    summary = json.loads((swept / "summary.json").read_text())
    budgets = [one["epsilon_budget"] for one in summary["combinations"] if one["private"]]
    assert [page.count(f"epsilon={budget:g}</th>") > 0 for budget in budgets] == [True] * 4


@pytest.mark.skipif(BINARY is None, reason="chromium is not installed (apt-get install chromium)")
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overflows_and_no_request_leaves(swept: Path, width: int) -> None:
    with chromium() as browser:
        seen = browser.view(swept / "report.html", width)
    assert_fits(seen, width)


def test_the_page_is_made_again_from_the_directory(swept: Path) -> None:
    before = (swept / "report.html").read_text()
    (swept / "report.html").unlink()
    code, output = invoke("report", swept)
    assert code == 0, output
    assert (swept / "report.html").read_text() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: {}, "format None"),
        (lambda tree: tree | {"format": "fedsim sweep 0"}, "'fedsim sweep 0'"),
        (lambda tree: {key: value for key, value in tree.items() if key != "runs"}, "runs: field required"),
        (None, "not valid JSON"),
    ],
)
def test_a_damaged_sweep_is_refused(change: Any, said: str, swept: Path, tmp_path: Path) -> None:
    (tmp_path / "cells.sqlite").touch()
    (tmp_path / "scenario.yaml").write_text((swept / "scenario.yaml").read_text())
    text = (swept / "summary.json").read_text()
    (tmp_path / "summary.json").write_text(json.dumps(change(json.loads(text))) if change else text[:200])
    code, output = invoke("report", tmp_path)
    assert code == 2
    assert said in output
    assert not (tmp_path / "report.html").exists()


def test_an_unfinished_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cells.sqlite").touch()
    code, output = invoke("report", tmp_path)
    assert code == 2
    assert "its sweep has not finished" in output


def test_runs_that_share_noise_are_said_to_carry_no_guarantee_together(swept: Path, tmp_path: Path) -> None:
    page = (swept / "report.html").read_text()
    costs = page[page.index("Cost of one run") : page.index("What was not private")]
    assert "these runs share noise, and carry no guarantee together" in " ".join(costs.split())
    assert SHARED in json.loads((swept / "summary.json").read_text())["privacy"]["not_private"]
    assert SHARED in page
    code, output = invoke("compare", swept, "--out", tmp_path / "compared")
    assert (code, f"Not private: {SHARED}." in output) == (0, True), output


def test_runs_that_add_up_are_not_said_to_share(tmp_path: Path) -> None:
    tree = BASE | {"privacy": {"epsilon": 1, "calibration": "sigma", "noise_multiplier": 40}}
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(tree | {"sweep": {"grid": {"privacy.epsilon": [1, 2]}}}), encoding="utf-8")
    code, output = invoke("sweep", path, "--out", tmp_path / "out")
    assert code == 0, output
    assert "share noise" not in (tmp_path / "out" / "report.html").read_text()
    code, output = invoke("compare", tmp_path / "out", "--out", tmp_path / "compared")
    assert (code, "share noise" in output) == (0, False), output


def test_where_epsilon_is_claimed_the_true_one_comes_first_and_stands_beside_it(tmp_path: Path) -> None:
    drawn = {"sampler": "with_replacement", "fraction": 0.5}
    stated = {"calibration": "theorem", "theorem": "experiments", "allow_violations": True}
    sweep = {
        "grid": {
            "algorithm": [BASE["algorithm"] | {"label": "MB", "batch": drawn}],
            "privacy.claimed_epsilon": [1, 12],
        }
    }
    tree = BASE | {"privacy": {"epsilon": "unlimited", "claimed_epsilon": 3, **stated}, "sweep": sweep}
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    code, output = invoke("sweep", path, "--out", tmp_path / "out")
    assert code == 0, output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    found = [row for row in summary["combinations"] if row["private"]]
    assert [row["epsilon_claimed"] for row in found] == [1, 12]
    for row in found:
        assert row["epsilon_attainable"] < row["epsilon_guaranteed"]
    assert found[1]["epsilon_attainable"] > 12
    least, most = (", ".join(f(row[key]) for row in found) for f, key in TRUE)
    said = f"MB: claimed epsilon 1, 12; true epsilon at least {least}, at most {most}"
    assert output.index(said) < output.index("Test error: mean")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.index('id="privacy"') < page.index(said) < page.index("epsilon is unlimited")
    assert "claimed epsilon (not the true one)" in page  # the axis
    assert f"true for MB: {', '.join(shown_up(row['epsilon_guaranteed'], 3) for row in found)}" in page
    assert (tmp_path / "out" / "error_vs_claimed_epsilon.svg").exists()
    assert "budget epsilon" not in page
