"""The tables of the thesis's scenarios; the hospitals' is FLamby's, from the study's own files."""

import csv
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.distribution import ROOT

from fedsim.data.federation import load
from fedsim.scenario.load import load as scenario_of

THESIS = ROOT / "scenarios" / "thesis"
MEASURED = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalch", "exang", "oldpeak")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_hospitals_train_and_test_on_as_many_patients_as_in_flamby():
    scenario = scenario_of(THESIS / "heart_hospitals.yaml", ["sweep=null"])
    found = load(scenario.data, scenario.partition, scenario.seed, trial=0)
    sizes = {one.name: (len(one.train_target), len(one.test_target)) for one in found.silos}
    assert sizes == {
        "Cleveland": (199, 104),
        "Hungary": (172, 89),
        "Switzerland": (30, 16),
        "VA Long Beach": (85, 45),
    }
    assert np.mean(np.concatenate([one.train_target for one in found.silos])) == pytest.approx(0.5, abs=0.05)


def test_the_hospitals_table_is_the_studys_without_incomplete_patients():
    folder = Path(os.environ.get("FEDSIM_DATA", "/nowhere"))
    if not (original := folder / "heart_disease_uci.csv").exists():
        pytest.skip("needs heart_disease_uci.csv in the data folder")
    expected = [
        {
            "hospital": "Hungary" if row["id"] == "304" else row["dataset"],
            **{name: row[name] for name in MEASURED},
            "disease": "no" if row["num"] == "0" else "yes",
        }
        for row in rows(original)
        if all(row[name] for name in MEASURED)
    ]
    assert rows(THESIS / "heart_disease.csv") == expected


def test_published_points_are_of_seven_figures_three_curves_and_eight_levels():
    found = rows(THESIS / "published.csv")
    assert len(found) == 7 * 3 * 8
    assert set(Counter((row["figure"], row["series"]) for row in found).values()) == {8}
    spider = {row["epsilon"]: float(row["error"]) for row in found[:8]}
    assert (spider["1"], spider["3"], spider["6"]) == (0.0631, 0.0520, 0.0490)
