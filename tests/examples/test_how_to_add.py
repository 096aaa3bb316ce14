"""`docs/architecture.md` says which files a new thing touches: an example of each is added, and used.

An example is what its author would commit: a diff without line numbers, whose places are found by their text.
"""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.distribution import ROOT, python

HERE = Path(__file__).parent
EXAMPLES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.diff"))}
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## How to add")[2].partition("\n## ")[0]
ROWS = dict(re.findall(r"^\| an? ([\w ]+) \| (.*?) \|", SECTION, re.M))


def hunks(example: str) -> dict[str, list[str]]:
    """The hunks of each file; a new file has one."""
    parts = re.split(r"^--- .*\n\+\+\+ b/(.*)\n", example, flags=re.M)[1:]
    return {name: body.split("@@\n")[1:] for name, body in zip(parts[::2], parts[1::2], strict=True)}


def side(hunk: str, sign: str) -> str:
    return "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in (" ", sign))


def add(example: str, root: Path) -> None:
    for name, changes in hunks(example).items():
        file = root / name
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for before, after in ((side(hunk, "-"), side(hunk, "+")) for hunk in changes):
            assert not before or text.count(before) == 1, f"{name} has no longer, or twice: {before}"
            text = text.replace(before, after) if before else after
        file.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product, with all of them added."""
    made = tmp_path_factory.mktemp("product")
    for package in ("fedsim", "silos", "server", "shuffler"):
        shutil.copytree(ROOT / package, made / package, ignore=shutil.ignore_patterns("__pycache__"))
    for example in EXAMPLES.values():
        add(example, made)
    return made


@pytest.fixture(scope="module")
def used(root: Path) -> dict[str, Any]:
    """What `in_use` says there."""
    done = python(HERE / "in_use.py", paths=(root, ROOT / "tests"), cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["from"]).is_relative_to(root)
    return found


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_example_touches_the_files_that_the_page_names(kind: str) -> None:
    """A new file is in the folder that is named."""
    named = re.findall(r"`([\w/]+(?:/|\.py))`", ROWS[kind.replace("_", " ")])
    places = {name if (ROOT / name).exists() else f"fedsim/{name}" for name in named}
    touched = {name if (ROOT / name).exists() else f"{Path(name).parent}/" for name in hunks(EXAMPLES[kind])}
    assert touched == places
    assert len(touched) <= {"mechanism": 5, "metric_with_a_table": 3}.get(kind, 2)


def test_every_example_is_there_and_fits(root: Path) -> None:
    assert EXAMPLES.keys() == {"mechanism", "statistic", "metric", "metric_with_a_table", "data_set"}
    for name in (name for example in EXAMPLES.values() for name in hunks(example)):
        compile((root / name).read_text(encoding="utf-8"), name, "exec")


@pytest.mark.slow
def test_the_mechanism_has_its_noise_and_the_price_that_it_states(used: dict[str, Any]) -> None:
    gaussian, rounded = used["mechanism"]["sums"]
    assert rounded == [[pytest.approx(round(16 * each) / 16, abs=1e-9) for each in row] for row in gaussian]
    runs = used["mechanism"]["runs"]
    plain, own = (run["privacy"] for run in runs)
    assert (plain["mechanism"], own["mechanism"]) == ("gaussian", "rounded_gaussian")
    assert own["guarantee"] == plain["guarantee"]
    assert own["silos"] == plain["silos"]
    assert runs[0]["metrics"]["loss"] != runs[1]["metrics"]["loss"]


@pytest.mark.slow
def test_the_statistic_is_counted_and_hidden(used: dict[str, Any]) -> None:
    found = used["statistic"]
    assert found["sums"] == pytest.approx(found["true"])
    assert all(0 < count < n for count, n in zip(found["true"], (20, 30), strict=True))
    assert all(0.01 < abs(a - b) < 30 for a, b in zip(found["noisy"], found["true"], strict=True))


@pytest.mark.slow
def test_the_metric_is_measured_and_tunes(used: dict[str, Any]) -> None:
    own, of_sklearn = used["metric"]["values"]
    assert math.isclose(own, of_sklearn)
    tuned = used["metric"]["tuned"]
    (combination,) = tuned["combinations"]
    assert combination["kappa"] > 0.8
    worse, better = sorted(tuned["tuning"]["candidates"], key=lambda each: each["final_metric"])
    assert (worse["selected"], better["selected"]) == (False, True)
    assert worse["final_metric"] < better["final_metric"]


@pytest.mark.slow
def test_the_metric_with_a_table_is_kept_and_shown_everywhere(used: dict[str, Any]) -> None:
    found = used["metric_with_a_table"]
    made, read = found["rows"]
    assert made == read
    assert [{key: row[key] for key in ("label", "predicted", "records")} for row in made] == found["summary"]
    wrong = sum(row["records"] for row in made if row["label"] != row["predicted"])
    assert 0 < wrong / sum(row["records"] for row in made) == pytest.approx(found["error"])
    for text in found["shown"]:
        assert f"{wrong} test records are taken for another class" in text
        assert "By predicted class" in text
        assert "0 as 1" in text
    assert found["figures"] == [True, 1]
    assert "Test records by class and predicted class" in found["shown"][1]


@pytest.mark.slow
def test_the_data_set_trains(used: dict[str, Any]) -> None:
    metrics = used["data_set"]["metrics"]
    assert metrics["error"] < 0.1
    assert sum(silo["n"] for silo in used["data_set"]["privacy"]["silos"]) == pytest.approx(320, abs=3)
