"""A cell of a sweep: one scenario, one trial, one mechanism; and its key in the sweep's record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from fedsim.common.serialise import canonical
from fedsim.data.dataset import Dataset
from fedsim.data.federation import Federation, outline
from fedsim.data.registry import DataConfig
from fedsim.data.source import Outline
from fedsim.privacy.registry import MECHANISMS, NONE
from fedsim.report.record import CellResult
from fedsim.scenario.load import code_digests, digests
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.code_version import code_version
from fedsim.simulation.failures import Failure
from fedsim.simulation.selection import Grant, RunId
from fedsim.simulation.side_by_side import fold_key
from fedsim.simulation.sweeps.section import UNIT
from fedsim.simulation.trial import read


class Cell(NamedTuple):
    """All that one run of a sweep depends on, as plain values, so that it travels to other processes."""

    scenario: Mapping[str, Any]  # a resolved scenario as mappings, without its non-private baseline
    trial: int  # its number
    train_loss: bool  # also measure the loss on the training records, which only a simulation can do
    # where records are put aside for private tuning, permission to use a part of them. A candidate's
    # final model is only scored: privately, by the silos, on the records put aside
    grant: Grant | None = None
    selection: str = ""  # `Selection.digest` of the selection that a candidate's score is for

    @property
    def scored(self) -> bool:
        """Whether it is a candidate of private tuning."""
        return self.grant is not None and self.grant.part == "candidate"

    @property
    def fold_key(self) -> str | None:
        """`fold_key`; None for a candidate of private tuning. Cells that fold share batches and noise, which
        is sound only where no two of them are composed: the difference of two answers with equal noise has
        none.
        """
        return None if self.scored else fold_key(self.scenario)

    @property
    def repeated_by_simulate(self) -> bool:
        """Whether `fedsim simulate` draws the same noise and batches as the cell."""
        return self.fold_key is None and not self.selection

    @property
    def run_id(self) -> RunId:
        """Digests of the run and of its records, divided alike for candidates and reported runs."""
        tree = dict(self.scenario)
        reserve = tree["data"].get("reserve")
        divided = tree["data"] | {"reserve": reserve and {**reserve, "use": None}}
        records = _digest([divided, tree["partition"], tree["seed"], tree["privacy"].get("unit")])
        return RunId(records, _digest([tree, self.train_loss]), self.trial)


CellOutcome = CellResult | Failure


def cell_of(scenario: Scenario, trial: int, train_loss: bool) -> Cell:
    """The cell of a scenario: without what has no influence on its result."""
    tree = scenario.model_dump(mode="json", exclude_none=True)
    private = MECHANISMS[scenario.privacy.mechanism].private
    runtime = {"name": "inprocess", "dtype": tree["runtime"]["dtype"]}
    threshold = scenario.report.threshold
    report = {"nonprivate_baseline": False} | ({"threshold": threshold} if threshold != 0.5 else {})
    privacy = tree["privacy"] if private else {"mechanism": NONE.name}
    unit = {key: tree["privacy"][key] for key in UNIT if key in tree["privacy"]}
    # Not its defaults: a theorem chooses what is not given, in the cell as in the scenario.
    tree["algorithm"] = scenario.algorithm.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    for key in ("description", "purpose", "trials", "sweep"):
        tree.pop(key, None)
    fixed = {"name": "cell", "runtime": runtime, "report": report, "privacy": privacy | unit}
    if code := code_digests(scenario):  # of the contents that this process has read
        fixed["files"] = code
    return Cell(tree | fixed, trial, train_loss)


def _digest(tree: Any) -> str:
    return sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def key_of(cell: Cell) -> str:
    """SHA-256 of the cell's fields, input files and fedsim's code, in hexadecimal.

    A cell with code of others has a nonce (`fedsim.scenario.resolve`), which no other sweep has; a sweep that
    goes on has the one that it began with, if that code is a file's, whose SHA-256 is among the fields.
    """
    return _hash([*cell, _files(cell.scenario), code_version()])


def baselines_key(cell: Cell, depends_on: Mapping[str, Any]) -> str:
    """The key of the baselines of a cell's trial, which depend on fewer fields."""
    own = [cell.scenario.get(key) for key in ("nonce", "files")]
    return _hash([depends_on, cell.trial, *own, _files(cell.scenario), code_version()])


def _hash(tree: Any) -> str:
    return sha256(canonical(tree).encode()).hexdigest()


_DATA: TypeAdapter[Dataset] = TypeAdapter(DataConfig)


def _files(scenario: Mapping[str, Any]) -> list[str]:
    data, public = _DATA.validate_python(scenario["data"]), scenario.get("public")
    path = scenario.get("participation", {}).get("path")
    known = public and _DATA.validate_python(public)
    return list(digests(data, Path(path) if path else None, known).values())


_SECTIONS = ("data", "partition", "seed")
_OUTLINES: dict[str, Outline] = {}
_RECORDS: dict[str, Federation] = {}
_MOST_OUTLINES, _MOST, _ROOM = 64, 8, 2**29
"""So many records are kept, or more as long as they take no more bytes than `_ROOM`. Batches come sorted by
their data, so that few are enough; but preparing images takes seconds a trial.
"""


def data_key(scenario: Mapping[str, Any]) -> str:
    """What a scenario's records and their division depend on (its sections as mappings), as a text."""
    parts = [*(scenario[section] for section in _SECTIONS), scenario["privacy"].get("unit")]
    return json.dumps(parts, sort_keys=True)


def records_key(scenario: Mapping[str, Any], trial: int) -> str:
    """The key of one trial's records."""
    return f"{trial} {data_key(scenario)}"


def resolved_of(scenario: Scenario) -> Resolved:
    """The scenario resolved, with what its theorem chooses. InputError as `fedsim.scenario.resolve`."""
    key = data_key(_sections(scenario))
    if key not in _OUTLINES:
        if len(_OUTLINES) == _MOST_OUTLINES:
            del _OUTLINES[next(iter(_OUTLINES))]
        _OUTLINES[key] = outline(scenario.data, scenario.partition, scenario.seed, scenario.privacy.unit)
    return resolve(scenario, _OUTLINES[key])


def records_of(resolved: Resolved, trial: int) -> Federation:
    """All silos' records in one trial."""
    key = records_key(_sections(resolved.scenario), trial)
    if key not in _RECORDS:
        sizes = [data.nbytes for data in _RECORDS.values()]
        while len(sizes) >= _MOST and sum(sizes) + max(sizes) > _ROOM:  # first: both may not fit into memory
            del _RECORDS[next(iter(_RECORDS))], sizes[0]
        _RECORDS[key] = read(resolved, trial)
    return _RECORDS[key]


def _sections(scenario: Scenario) -> dict[str, Any]:
    return scenario.model_dump(mode="json", include={*_SECTIONS, "privacy"})
