"""What a command refuses before it loads what it works with: torch alone takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fedsim.report  # noqa: F401  (a silo's installation has none: it says so before it looks for a scenario)
from fedsim.common.errors import InputError
from fedsim.common.files import UNFINISHED, check_free, check_there
from fedsim.common.process import check_reachable
from fedsim.data.fetch import obtain
from fedsim.scenario.load import load, load_tree
from fedsim.scenario.model import Scenario


def single(path: Path, overrides: Sequence[str], out: Path | None = None) -> Scenario:
    """The scenario of one run, to be written to `out`; InputError for whatever is wrong without records."""
    scenario = base(path, overrides)
    scenario.check_single()
    if out is not None:
        check_free(out)
    return scenario


def base(path: Path, overrides: Sequence[str]) -> Scenario:
    """The scenario, a sweep's section set aside; refuses what `single` does."""
    scenario = load(path, overrides)
    _check(scenario)
    return scenario


def scenario_of(run: Path) -> Path:
    """The scenario file of a run directory that is to go on; InputError if there is none."""
    file = run / UNFINISHED / "scenario.yaml"
    if not file.is_file():
        hint = "holds no unfinished run: one that was interrupted keeps what it needs to go on"
        raise InputError("--resume", str(run), hint)
    return file


def swept(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The nested mappings of a sweep; refuses what `single` does, of every combination."""
    from fedsim.sweeps.combinations import combinations

    tree = load_tree(path, overrides)
    for combination in combinations(tree):
        for candidate in combination.candidates:
            _check(candidate.scenario)
    return tree


def _check(scenario: Scenario) -> None:
    scenario.check()
    obtain(scenario.data.downloads)
    for field, file in scenario.data.files.items():
        check_there(f"scenario.data.{field}", file)
    if scenario.runtime.address is not None:
        check_reachable(scenario.runtime.address, "scenario.runtime.address")
