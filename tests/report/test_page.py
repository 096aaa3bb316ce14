"""The page says what a reviewer asks, and nothing in a scenario becomes markup."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from support.scenarios import HOSTILE, edited, invoke

from fedsim.report.page import render, write_page
from fedsim.report.record import Measurement
from fedsim.report.run_directory import read

pytestmark = pytest.mark.usefixtures("drawn")


class Page(HTMLParser):
    """Elements in order, and their text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


def parsed(directory: Path) -> Page:
    return Page((directory / "report.html").read_text(encoding="utf-8"))


def test_simulate_writes_the_page_and_its_figures(small_run: Path) -> None:
    objective = ("excess-risk-against-rounds", "gradient-mapping-against-rounds", "calibration")
    stems = (
        "clipping-over-rounds",
        "column-effects",
        "error-against-rounds",
        "error-by-silo",
        "spend-over-rounds",
    )
    found = sorted(file.name for file in (small_run / "figures").iterdir())
    assert found == sorted(f"{stem}.{kind}" for stem in (*stems, *objective) for kind in ("png", "svg"))
    assert parsed(small_run).tags.count("svg") == 9  # of column-effects a broad one too


def test_the_result_comes_first_then_privacy_in_five_lines_and_what_was_not_private(small_run: Path) -> None:
    text = (small_run / "report.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    last = "Scenario, versions and how to repeat it"
    effects = "What the model makes of each column"
    assert headings == ["Result", "Privacy statement", "What was not private", effects, "More figures", last]
    places = [
        text.index(f'id="{name}"')
        for name in ("results", "privacy", "not-private", "effects", "figures", "reproduce")
    ]
    result, privacy, uncovered, _, _, repeat = (text[a:b] for a, b in pairwise([*places, len(text)]))
    tree = json.loads((small_run / "summary.json").read_text())
    assert f"<strong>{tree['metrics']['error']:.4f}</strong>" in result
    assert result.index("<strong>") < result.index("<svg") < result.index("<table")
    said = tree["privacy"]
    lines, folded = privacy.split("<details>")
    assert lines.count("<dt>") == 5
    for key in ("unit", "adjacency", "guarantee"):
        assert said[key] in lines
    for key in ("mechanism", "calibration", "accountant"):
        assert said[key] in folded
    for silo in said["silos"]:
        assert silo["name"] in folded
    for note in said["not_private"]:
        assert note in uncovered
    assert "fedsim simulate scenario.yaml" in repeat
    assert "num_rounds: 6" in repeat
    assert "torch" in repeat


def test_the_page_can_be_read_aloud(small_run: Path) -> None:
    page = parsed(small_run)
    assert ("html", {"lang": "en"}) in page.elements
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for tag, attributes in page.elements:
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
    assert page.tags.count("caption") == page.tags.count("table")
    assert page.tags.count("figcaption") == page.tags.count("figure")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_references_within_a_figure_point_into_it(small_run: Path) -> None:
    text = (small_run / "report.html").read_text(encoding="utf-8")
    ids = set(re.findall(r'\bid="([^"]+)"', text))
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert used
    assert used <= ids


def test_names_and_descriptions_stay_text(hostile_run: Path) -> None:
    page = parsed(hostile_run)
    assert "script" not in page.tags
    assert "img" not in page.tags
    shown = "".join(page.texts)
    for name in HOSTILE:
        assert name in shown
    assert "49" not in [text.strip() for text in page.texts]
    for figure in (hostile_run / "figures").glob("*.svg"):
        assert "script" not in Page(figure.read_text(encoding="utf-8")).tags


def test_a_thousand_silos_show_the_tightest_and_the_range(large_run: Path) -> None:
    assert (large_run / "report.html").stat().st_size < 500_000
    silos = json.loads((large_run / "summary.json").read_text())["privacy"]["silos"]
    used = {silo["name"]: silo["epsilon_guaranteed"] / silo["epsilon_budget"] for silo in silos}
    text = (large_run / "report.html").read_text(encoding="utf-8")
    text = text[text.index("Budget and spend of each silo") :]
    body = text[text.index("<tbody>") : text.index("</tbody>")]
    names = re.findall(r'<th scope="row">(.*?)</th>', body)
    assert len(set(names)) == 20
    assert min(used[name] for name in names) >= max(used[name] for name in used if name not in names) - 1e-12
    assert used[names[0]] == max(used.values())
    assert "all 1,000 silos" in text
    assert "0.5 to 2.498" in text


def test_claims_and_violations_are_shown_where_the_summary_has_them(run_copy: Path, tmp_path: Path) -> None:
    with edited(run_copy) as tree:
        for silo, claimed in zip(tree["privacy"]["silos"], [1.0, 1.5, 4.0], strict=True):
            silo["epsilon_claimed"] = claimed
        tree["privacy"]["notices"] = ["the claim of <silo-01> is too small"]
    text = render(read(run_copy), tmp_path)
    assert "above the claim in 1 of 3 silos: silo-01" in text
    assert "the claim of &lt;silo-01&gt; is too small" in text
    assert "claimed epsilon" in text
    assert "above its budget" not in text


def test_a_run_without_a_budget_is_not_within_it(run_copy: Path, tmp_path: Path) -> None:
    with edited(run_copy) as tree:
        tree["privacy"]["notices"] = ["epsilon is unlimited"]
        for silo in tree["privacy"]["silos"]:
            silo["epsilon_budget"] = None
    text = render(read(run_copy), tmp_path)
    assert "within its budget" not in text
    assert "nothing bounds what the run costs" in text
    assert text.index("epsilon is unlimited") < text.index("<dt>Unit")


def test_a_cost_above_its_budget_is_named(run_copy: Path, tmp_path: Path) -> None:
    with edited(run_copy) as tree:
        tree["privacy"]["silos"][2]["epsilon_guaranteed"] = 4.0001
    text = render(read(run_copy), tmp_path)
    assert "above its budget in 1 of 3 silos: silo-02" in text


def test_report_writes_the_same_page_again(run_copy: Path) -> None:
    first = (run_copy / "report.html").read_text()
    invoke("report", run_copy)
    assert (run_copy / "report.html").read_text() == first
    assert not list(run_copy.glob(".report-*"))


def test_a_page_that_fails_leaves_the_old_one_and_nothing_else(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {file: file.read_bytes() for file in run_copy.rglob("*") if file.is_file()}

    def fail(*_: object) -> str:
        raise RuntimeError("half way")

    monkeypatch.setattr("fedsim.report.plots.spend", fail)
    with pytest.raises(RuntimeError):
        write_page(run_copy)
    assert {file: file.read_bytes() for file in run_copy.rglob("*") if file.is_file()} == before


def test_an_interrupted_run_without_a_complete_trial_still_has_a_page(run_copy: Path, tmp_path: Path) -> None:
    with edited(run_copy) as tree:
        tree |= {"status": "interrupted", "trials": {"asked": 2, "finished": 0}}
        tree["privacy"]["silos"] = []
        tree["metrics"] = {"error_name": "share misclassified", "metric": "error"}
        del tree["baselines"], tree["calibration"]
    run = read(run_copy)
    empty = replace(run, load_rows=lambda kind: run.rows(kind) if kind is Measurement else [])
    text = render(empty, tmp_path)
    assert "This run was interrupted" in text
    assert "not measured: no trial is complete" in text
    assert text.count("<svg") == 3  # what is measured round by round
    assert "<table" not in text
    assert "None" not in text
