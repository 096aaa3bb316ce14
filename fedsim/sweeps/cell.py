"""A cell of a sweep: one scenario, one trial, one mechanism; and what it comes to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from fedsim.mechanisms.registry import MECHANISMS, NONE
from fedsim.scenario.model import Scenario
from fedsim.simulation.failures import Failure
from fedsim.simulation.fold import fold_key
from silos.parts import Grant, RunId


class Cell(NamedTuple):
    """What one run of a sweep depends on; plain values, so that it travels to other processes.

    Args:
        scenario: a resolved scenario as mappings, without a twin.
        trial: its number.
        train_loss: also measure the loss on the training records, which only a simulation can do.
        grant: where records are put aside for private tuning, permission to use a part of them. A
            candidate's final model is only scored: privately, by the silos, on the records put aside.
        selection: `Selection.digest` of the selection that a candidate's score is for.
    """

    scenario: Mapping[str, Any]
    trial: int
    train_loss: bool
    grant: Grant | None = None
    selection: str = ""

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
        """Whether `fedsim simulate` draws the cell's own noise and batches."""
        return self.fold_key is None and not self.selection

    @property
    def run_id(self) -> RunId:
        """What it runs, and on which records: divided alike for candidates and what is reported."""
        tree = dict(self.scenario)
        reserve = tree["data"].get("reserve")
        divided = tree["data"] | {"reserve": reserve and {**reserve, "use": None}}
        records = _digest([divided, tree["partition"], tree["seed"]])
        return RunId(records, _digest([tree, self.train_loss]), self.trial)


@dataclass(frozen=True)
class CellResult:
    """A finished cell: the final model on test records, and what the run costs the silo it costs most.

    `more` has the other metrics on the pooled test records, none in a cell with `train_loss`.
    `epsilon` is that silo's epsilon_guaranteed (infinity without a mechanism) and `silo` its name. In a
    cell that is `scored`, `error` is the noisy score, sum_i p_i (silo i's), and `loss` is None.
    """

    error: float
    loss: float | None
    train_loss: float | None
    epsilon: float
    silo: str
    noise_multiplier: float
    error_name: str
    seconds: float
    more: dict[str, float | None] = field(default_factory=dict)


Outcome = CellResult | Failure


def cell_of(scenario: Scenario, trial: int, train_loss: bool) -> Cell:
    """The cell of a scenario: without what has no influence on its result."""
    tree = scenario.model_dump(mode="json", exclude_none=True)
    private = MECHANISMS[scenario.privacy.mechanism].private
    runtime = {"name": "inprocess", "dtype": tree["runtime"]["dtype"]}
    threshold = scenario.report.threshold
    report = {"nonprivate_twin": False} | ({"threshold": threshold} if threshold != 0.5 else {})
    privacy = tree["privacy"] if private else {"mechanism": NONE.name}
    # Not its defaults: a theorem chooses what is not given, in the cell as in the scenario.
    tree["algorithm"] = scenario.algorithm.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    for key in ("description", "trials", "sweep"):
        tree.pop(key, None)
    fixed = {"name": "cell", "runtime": runtime, "report": report, "privacy": privacy}
    return Cell(tree | fixed, trial, train_loss)


def _digest(tree: Any) -> str:
    return sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
