"""Runs what the page is made of: sweeps and audits, kept in a folder, with what they took and when."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

import fedsim
from fedsim.common.durable import atomic_file
from fedsim.report.audit import AuditPart
from fedsim.report.sweep_summary import SweepSummary, read_only

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios" / "thesis"
TAKEN = "taken.json"


@dataclass(frozen=True)
class Taken:
    """Wall seconds of a sweep's cells, all calls together; the last commit and day that made some."""

    seconds: float
    cells: int
    commit: str
    day: str


def commit() -> str:
    """The commit's first letters, `+` behind them where the tree has changes; `unknown` without git."""
    if (program := shutil.which("git")) is None:
        return "unknown"

    def git(*words: str) -> str:
        return subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = git(
        "status", "--porcelain", "--", "fedsim", "silos", "server", "shuffler", "scenarios", ":!*.md"
    )
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def taken(place: Path) -> dict[str, Taken]:
    """By the name of a sweep's folder, what all of those in this place took."""
    file = place / TAKEN
    if not file.exists():
        return {}
    return {name: Taken(**one) for name, one in _read(file).items()}


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _write(file: Path, tree: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as draft:
        draft.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")


def note(place: Path, name: str, seconds: float, made: int, fresh: bool) -> None:
    """Add what a call made, unless that is nothing; a `fresh` one found no cells, and begins the count."""
    known = taken(place)
    if name in known and not made:
        return
    if name in known and not fresh:
        seconds, made = known[name].seconds + seconds, known[name].cells + made
    known[name] = Taken(round(seconds, 1), made, commit(), str(date.today()))
    _write(place / TAKEN, {key: vars(one) for key, one in sorted(known.items())})


def sweep(scenario: Path, variant: str, place: Path, overrides: Sequence[str]) -> None:
    """Run one variant as `fedsim sweep` does, from the cells that are there; it says why it cannot."""
    name = f"{scenario.stem}-{variant}"
    sets = [word for one in (f"variant={variant}", *overrides) for word in ("--set", one)]
    command = [sys.executable, "-m", "fedsim", "sweep", str(scenario), *sets, "--out", str(place / name)]
    start = time.time()
    place.mkdir(parents=True, exist_ok=True)
    with (place / f"{name}.log").open("w", encoding="utf-8") as log:
        ended = subprocess.run(command, cwd=ROOT, stdout=log).returncode
    if ended == 130:
        raise KeyboardInterrupt
    summary = place / name / "summary.json"
    if summary.exists() and summary.stat().st_mtime >= start:  # else it is of an earlier call
        runs = read_only(SweepSummary, place / name).runs
        note(place, name, time.time() - start, runs.made, fresh=not runs.from_cache)


def kept_audit(scenario: Path, place: Path) -> AuditPart | None:
    """The audit that an earlier call kept."""
    file = _audit_of(scenario, place)
    return AuditPart.model_validate(_read(file)["audit"]) if file.exists() else None


def _audit_of(scenario: Path, place: Path) -> Path:
    return place / f"{scenario.stem}-audit.json"


def audit(scenario: Path, overrides: Mapping[str, Any], place: Path, effort: float) -> AuditPart | None:
    """Attack one honest run; what is kept is read again. None where it cannot be run."""
    file, digest = _audit_of(scenario, place), sha256(scenario.read_bytes()).hexdigest()
    asked = {"overrides": dict(overrides), "effort": effort, "scenario": digest}
    if file.exists() and _read(file)["asked"] == asked:
        return kept_audit(scenario, place)
    try:
        found = fedsim.audit(scenario, {"variant": "honest", "sweep": None, **overrides}, effort=effort)
    except fedsim.InputError as error:
        print(f"{scenario.stem}: no audit: {error}", file=sys.stderr)
        return None
    _write(file, {"asked": asked, "audit": found.tree})
    return found.part
