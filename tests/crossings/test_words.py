"""Text, page and JSON of a run name its unit, h, what weighs the same, and what was spent on what."""

from __future__ import annotations

import io
import json
import re
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

import fedsim
from crossings.features import Crossing, every, names, overrides, scenario
from crossings.walk import judge, state
from fedsim.cli.output import print_run

_UNITS = ["record", "clip/replace_person", "limit/replace_person", "limit/h:quantile"]
DIMS = {"unit": _UNITS, "wrapper": ["plain", "evaluate", "standardise", "quantile_clip"]}


def wanted(crossing: Crossing) -> dict[str, str]:
    """What is to be named, and a pattern of it."""
    persons, bound = crossing["unit"] != "record", crossing["unit"].split("/")[0]
    found = {"unit": "person" if persons else "record"}
    if crossing["wrapper"] == "evaluate":
        found["weighing"] = "persons, each weighs the same" if persons else "weighing: records|: .records"
    if bound in ("limit", "smooth"):
        found["h"] = r"h\W{1,4}\d"
    stages = {"standardise": r"standardise\W{1,2}0\.1", "quantile_clip": r"clip_norm\W{1,2}0\.1"}
    if "h:quantile" in crossing["unit"]:
        stages["plain"] = stages["evaluate"] = r"contributions\W{1,2}0.1"
    if crossing["wrapper"] in stages:
        found["shares"] = stages[crossing["wrapper"]]
    return found


def faults_of(crossing: Crossing) -> list[str]:
    tree, data = scenario(overrides(crossing))
    its, run = state(lambda: fedsim.simulate(tree, data=data, progress=False))
    if its != "works":
        return [run] if its == "fails" else []
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder) / "run")
        page = re.sub(r"<[^>]*>", " ", (Path(folder) / "run" / "report.html").read_text())
        summary = json.dumps(json.loads((Path(folder) / "run" / "summary.json").read_text()))
        print_run(console := Console(file=io.StringIO(), width=1000), run, Path(folder))
    places = {"text": console.file.getvalue(), "page": page, "JSON": summary}
    missing = [
        (what, place)
        for what, own in wanted(crossing).items()
        for place, said in places.items()
        if not re.search(own, re.sub(r"\s+", " ", said).replace('"', ""))
    ]
    return [f"{place} does not name {what}" for what, place in missing]


def test_words_of_units():
    judge("words", faults_of, every(DIMS))


@pytest.mark.slow
def test_words_of_every_unit():
    judge("words", faults_of, every(DIMS | {"unit": names("unit", gate=False)}))
