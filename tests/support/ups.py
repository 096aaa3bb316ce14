"""`fedsim up` of small scenarios on visits to three silos, as processes of this machine."""

import csv
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from support.distribution import ROOT
from support.flower import environment

import fedsim
from fedsim.deployment.topology import Topology, prepare
from fedsim.report.summary import Summary
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from silos.vault.book import Book
from silos.vault.book import read as read_ledger

NAMES = ("east", "north", "west")
PATIENCE = 600.0
SCHEMA = {
    "age": {"kind": "number", "lower": 20, "upper": 90},
    "dose": {"kind": "number", "lower": 0, "upper": 1},
    "sex": {"kind": "category", "categories": ["f", "m"], "fill": "f"},
    "ill": {"kind": "category", "categories": ["0", "1"]},
    "cost": {"kind": "number", "lower": 0, "upper": 100},
}


def write_table(place: Path) -> Path:
    """Visits of 450 persons to three silos, one to three of each; the first 60 are public too, beside it."""
    rng = np.random.default_rng(5)
    with open(place, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["silo", "person", *SCHEMA])
        for person in range(450):
            for _ in range(1 + person % 3):
                age, dose = rng.integers(20, 91), round(rng.uniform(), 3)
                ill = int(rng.uniform() < 1 / (1 + np.exp(-(age - 55) / 10 - 3 * (dose - 0.5))))
                cost = round(min(100, max(0, 20 + 40 * dose + rng.normal(0, 5))), 2)
                rows.writerow([NAMES[person // 150], f"P{person}", age, dose, "fm"[person % 2], ill, cost])
    lines = place.read_text().splitlines(keepends=True)
    place.with_name("public.csv").write_text("".join(lines[:61]))
    return place


def scenario_of(table: Path, sections: dict[str, Any]) -> dict[str, Any]:
    """One on that table, with these sections over its own."""
    data = {"name": "csv", "path": str(table), "target": "ill", "silo_column": "silo", "test_fraction": 0.25}
    kept = SCHEMA if sections.get("data", {}).get("target") == "cost" else dict(list(SCHEMA.items())[:-1])
    tree: dict[str, Any] = {
        "name": "a kind of run",
        "purpose": "to try it",
        "seed": 3,
        "data": data | {"person_column": "person", "schema": kept},
        "partition": "natural_id",
        "problem": "logistic_regression",
        "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 3, "step_size": 1.0, "clip_norm": 1.0},
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "report": {"baselines": False, "nonprivate_baseline": False, "clipping": False},
        "runtime": "inprocess",
    }
    if "public" in sections:
        given = {"path": str(table.with_name("public.csv")), "target": "ill", "schema": kept}
        sections = sections | {"public": {"name": "csv"} | given}
    for section, given in sections.items():
        merges = section in ("data", "privacy", "report")
        tree[section] = tree[section] | given if merges else given
    if "unit" not in tree["privacy"]:
        del tree["data"]["person_column"]
    return tree


@dataclass
class Deployed:
    """A run of `fedsim up` that has ended."""

    topology: Topology
    said: str

    @cached_property
    def run(self) -> fedsim.Run:
        return fedsim.load_run(self.topology.run)

    @property
    def summary(self) -> Summary:
        return self.run.summary

    def book(self, name: str) -> Book:
        return read_ledger(self.topology.silo(name) / "state" / "ledger.sqlite")


def made(tree: dict[str, Any], out: Path, edit: Callable[[Topology], None]) -> Topology:
    """All parties' folders, as their operators have edited them."""
    topology = prepare(resolve(parse(tree)), out)
    edit(topology)
    return topology


def edited(file: Path, **fields: Any) -> None:
    """Set fields of a party's file."""
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | fields, sort_keys=False))


def started(topology: Topology, **more: str) -> subprocess.Popen[str]:
    """`fedsim up` of what is there, with more variables in its environment."""
    command = [sys.executable, "-m", "fedsim", "up", "--resume", "--out", str(topology.directory)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=ROOT, env=environment() | more, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )


def finished(process: subprocess.Popen[str], topology: Topology, code: int = 0) -> Deployed:
    """What came of it; it has to end with this exit code."""
    said, _ = process.communicate(timeout=PATIENCE)
    if process.returncode != code:
        logs = [f"{log}\n{log.read_text()[-3000:]}" for log in sorted(topology.directory.rglob("*log"))]
        raise AssertionError("\n".join([said, *logs]))
    return Deployed(topology, said)
