"""A process loads what it uses: what new ones have loaded of the product, once they have done their work."""

import re
from pathlib import Path

import pytest

from benchmarks.structure import ROOT, lines, loaded
from fedsim.data.registry import OWN, PARTITIONS, SHIPPED
from fedsim.privacy.registry import MECHANISMS

MOST = {"simulate": 27_230, "release": 27_740, "daemon": 12_515}
"""The most lines of ours, of quickstart in process and of a silo's daemon."""
UNUSED = {
    "another command": "fedsim/cli/privacy.py",
    "audits": "fedsim/testing/",
    "deployment": "fedsim/deployment/",
    "export and prediction": "fedsim/report/predictor.py",
    "isolation": "fedsim/isolated/",
    "networks": "fedsim/problems/network.py",
    "other algorithms": "fedsim/algorithms/local_sgd.py",
    "other data sets": "fedsim/data/images.py",
    "other mechanisms": "fedsim/privacy/summed_gaussian.py",
    "Ray": "fedsim/simulation/on_ray.py",
    "secure aggregation": "fedsim/secagg/",
    "sweeps": "fedsim/simulation/sweeps/",
    "the other party of secure aggregation": "shuffler/",
    "theorems' choices": "fedsim/theory/convex_choice.py",
    "trackers": "fedsim/report/mlflow.py",
    "wire": "fedsim/wire/",
}
"""What neither command asks for, and where it is."""


@pytest.mark.parametrize("what", MOST)
def test_a_process_loads_what_it_uses(what: str, tmp_path: Path) -> None:
    files = {file for file in loaded(tmp_path / what, what) if file.stat().st_size}
    assert lines(files) <= MOST[what]
    if what != "daemon":
        names = {file.relative_to(ROOT).as_posix() for file in files}
        assert not {why for why, place in UNUSED.items() if any(name.startswith(place) for name in names)}
        assert {"fedsim/data/csv_table.py", "silos/vault/gate.py", f"fedsim/cli/{what}.py"} <= names


def test_the_page_leads_through_all_rooms_that_a_run_loads(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)`", page.partition("## What a run loads")[2].partition("\n## ")[0])
    files = [file.relative_to(ROOT) for file in loaded(tmp_path / "run", "simulate") if file.stat().st_size]
    rooms = [file.parent.as_posix().removeprefix("fedsim/").partition("/")[0] for file in files]
    assert set(named) == set(rooms) - {"fedsim"}


def test_what_is_unused_is_a_part_of_the_product() -> None:
    assert all((ROOT / place).exists() for place in UNUSED.values())


def test_parts_have_the_names_by_which_they_are_loaded() -> None:
    for known in (OWN, SHIPPED, PARTITIONS):
        assert {name: kind.model_fields["name"].default for name, kind in known.items()} == {
            name: name for name in known
        }
    assert [mechanism.name for mechanism in MECHANISMS.values()] == list(MECHANISMS)
