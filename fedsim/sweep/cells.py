"""Cells of a sweep: one scenario, one trial, one mechanism each, run in batches by one process."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch

from fedsim.common.errors import InputError, Refused
from fedsim.data.federation import Federation, SiloSplit
from fedsim.data.outline import Outline, outline
from fedsim.results.outcome import variants
from fedsim.scenario.load import parse
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.fold import Folded, fold_key, run_fold, shared_key
from fedsim.simulation.host import SiloHost
from fedsim.simulation.run_digest import run_digest
from fedsim.simulation.trial import Evaluator, Trial, Unseen, read
from fedsim.sweep.candidates import private_score
from silos.parts import Grant, GrantedRun, RunId

_FOREVER = 1e9  # seconds
_NEVER = 10**9  # rounds between two evaluations: only the first and the last are made


class Cell(NamedTuple):
    """What one run of a sweep depends on; plain values, so that it travels to other processes.

    Args:
        scenario: a resolved scenario as mappings, without a twin.
        trial: its number.
        train_loss: also measure the loss on the training records, which only a simulation can do.
        grant: where records are put aside for private tuning, leave to use a part of them. Of a candidate's
            final model no more is measured than its private score, by the silos, on records put aside.
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


@dataclass(frozen=True)
class CellResult:
    """A finished cell: the final model on test records, and what the run costs the silo it costs most.

    `epsilon` is that silo's epsilon_guaranteed (infinity without a mechanism) and `silo` its name. In a
    cell that is `scored`, `test_error` is the noisy score, sum_i p_i (silo i's), and `test_loss` is None.
    """

    test_error: float
    test_loss: float | None
    train_loss: float | None
    epsilon: float
    silo: str
    noise_multiplier: float
    error_name: str
    seconds: float


@dataclass(frozen=True)
class Failure:
    """A cell that came to nothing, and why."""

    kind: Literal["bad input", "refused", "out of memory", "failed", "worker died"]
    message: str


def run_batch(cells: Sequence[Cell]) -> list[CellResult | Failure]:
    """Run cells and say what became of each, in order; a failed cell does not stop the others.

    Cells that fold together (`fedsim.simulation.fold`) run as one. Where one of them is refused they run in
    halves, so that it is found in a few steps.
    """
    if len(cells) == 1:
        return [_guarded(cells[0])]
    try:
        return _run_folded(cells)
    except Exception:  # whatever it is, it will be some cell's own when that runs alone
        middle = _middle(cells)
        return [*run_batch(cells[:middle]), *run_batch(cells[middle:])]


def _middle(cells: Sequence[Cell]) -> int:
    """Where to cut cells that are every setting in every trial, trials last, into two such products."""
    trials = len({cell.trial for cell in cells})
    settings = len(cells) // trials
    return settings // 2 * trials if settings > 1 else len(cells) // 2


def _guarded(cell: Cell) -> CellResult | Failure:
    try:
        return _run(cell)
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> Failure:
    if isinstance(error, InputError):
        return Failure("bad input", str(error))
    if isinstance(error, Refused):
        return Failure("refused", str(error))
    if isinstance(error, MemoryError):
        return Failure("out of memory", str(error) or "no memory is left")
    memory = any(words in str(error) for words in _OUT_OF_MEMORY)
    return Failure("out of memory" if memory else "failed", f"{type(error).__name__}: {error}")


_OUT_OF_MEMORY = ("not enough memory", "can't allocate memory")
"""How torch says so, in a RuntimeError."""


def _run(cell: Cell) -> CellResult:
    start = time.perf_counter()
    resolved = _resolved(cell)
    federation = _federation(cell, resolved)
    run = _run_key(cell, resolved, federation)
    granted = _granted(cell)
    hosts = SiloHost(resolved, cell.trial, federation, run, granted)
    evaluate = Unseen() if cell.scored else Evaluator(resolved.problem, federation.silos, resolved.dtype)
    trial = Trial(resolved, cell.trial, hosts, Unseen())  # its final model is measured once, below
    trial.advance(_FOREVER)
    result = trial.result()
    (model,) = result.models.values()
    admitted = [said.admitted for said in result.statements]
    outcome = Folded(model, admitted)
    return _result(cell, resolved, federation, evaluate, outcome, time.perf_counter() - start, granted)


def _run_folded(cells: Sequence[Cell]) -> list[CellResult | Failure]:
    """Cells that fold together: every config in every trial."""
    start = time.perf_counter()
    trials = sorted({cell.trial for cell in cells})
    configs = {json.dumps(cell.scenario, sort_keys=True): cell for cell in cells}
    resolved = {key: _resolved(cell) for key, cell in configs.items()}
    first = next(iter(resolved.values()))
    keys = {fold_key_of(cell) for cell in cells}
    if len(configs) * len(trials) != len(cells) or len(keys) != 1 or None in keys:
        raise ValueError("these cells do not fold together")
    for cell in cells:
        _granted(cell)
    data = {trial: _federation(cells[0]._replace(trial=trial), first) for trial in trials}
    evaluate = {t: Evaluator(first.problem, data[t].silos, first.dtype) for t in trials}
    outcomes = dict(zip(resolved, run_fold(list(resolved.values()), data), strict=True))
    seconds = (time.perf_counter() - start) / len(cells)
    found: list[CellResult | Failure] = []
    for cell in cells:
        key, trial = json.dumps(cell.scenario, sort_keys=True), cell.trial
        outcome = outcomes[key][trials.index(trial)]
        try:
            found.append(_result(cell, resolved[key], data[trial], evaluate[trial], outcome, seconds))
        except ValueError as error:
            found.append(_failure(error))
    return found


def fold_key_of(cell: Cell) -> str | None:
    """`fold_key`; None for a cell of private tuning. Cells that fold share batches and noise, which is sound
    only where no two of them are composed: the difference of two answers with equal noise has none.
    """
    return None if cell.scored else fold_key(cell.scenario)


def run_id(cell: Cell) -> RunId:
    """What the cell runs, and on which records: divided alike for candidates and what is reported."""
    tree = dict(cell.scenario)
    reserve = tree["data"].get("reserve")
    divided = tree["data"] | {"reserve": reserve and {**reserve, "use": None}}
    records = _digest([divided, tree["partition"], tree["seed"]])
    return RunId(records, _digest([tree, cell.train_loss]), cell.trial)


def _digest(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def _granted(cell: Cell) -> GrantedRun | None:
    """Leave to use the records; none is needed where none are put aside.

    Raises:
        Refused: they are, and the cell has no grant, or one for something else.
    """
    if cell.grant is None and cell.scenario["data"].get("reserve") is None:
        return None
    return GrantedRun(cell.grant, run_id(cell))


def repeated_by_simulate(cell: Cell) -> bool:
    """Whether `fedsim simulate` draws the cell's own noise and batches."""
    return fold_key_of(cell) is None and not cell.selection


def _run_key(cell: Cell, resolved: Resolved, data: Federation) -> str:
    """What keys the noise of the cell, whether it is run alone or folded."""
    if fold_key_of(cell) is not None:
        return shared_key(resolved, data)
    return run_digest(resolved, data.digest, variants(resolved)[0], cell.selection)


def _resolved(cell: Cell) -> Resolved:
    scenario = parse(cell.scenario)
    scenario = scenario.model_copy(
        update={
            "report": scenario.report.model_copy(update={"evaluate_every": _NEVER, "nonprivate_twin": False})
        }
    )
    return resolve(scenario, outline_of(scenario, data_key(cell.scenario)))


def _federation(cell: Cell, resolved: Resolved) -> Federation:
    key = f"{cell.trial} {data_key(cell.scenario)}"
    return _FEDERATIONS.get(key, lambda: read(resolved, cell.trial))


def _result(
    cell: Cell,
    resolved: Resolved,
    federation: Federation,
    evaluate: Evaluator,
    outcome: Folded,
    seconds: float,
    granted: GrantedRun | None = None,
) -> CellResult:
    loss: float | None
    if cell.scored:
        assert granted is not None
        run = _run_key(cell, resolved, federation)
        error = private_score(resolved, cell.trial, granted, federation.silos, outcome.model, run)
        loss = None
    else:
        error, loss = evaluate(outcome.model)
        if not (isfinite(error) and isfinite(loss)):
            raise ValueError(f"the final model has test error {error:g} and loss {loss:g}")
    worst = max(outcome.admitted, key=lambda admitted: admitted.epsilon_guaranteed)
    return CellResult(
        error,
        loss,
        train_loss(resolved, federation.silos, outcome.model) if cell.train_loss else None,
        worst.epsilon_guaranteed,
        worst.terms.name,
        worst.noise_multiplier,
        resolved.problem.error_name,
        seconds,
    )


def train_loss(resolved: Resolved, silos: Sequence[SiloSplit], w: torch.Tensor) -> float:
    """sum_i p_i (mean loss of silo i's training records) at w, (d,), without the regulariser; not private."""
    total = 0.0
    for weight, silo in zip(resolved.weights, silos, strict=True):
        scores = resolved.problem.scores(torch.as_tensor(silo.train_features).to(resolved.dtype), w)
        target = torch.as_tensor(silo.train_target).to(resolved.dtype)
        total += weight * float(resolved.problem.losses(scores, target).mean())
    return total


def outline_of(scenario: Scenario, key: str | None = None) -> Outline:
    """The outline of the scenario's data, kept for the next time; `key` is its `data_key`, if at hand."""
    key = key or data_key(scenario.model_dump(mode="json"))
    return _OUTLINES.get(key, lambda: outline(scenario.data, scenario.partition, scenario.seed))


def data_key(scenario: Mapping[str, Any]) -> str:
    """What the records depend on, as a text."""
    return json.dumps([scenario[key] for key in ("data", "partition", "seed")], sort_keys=True)


T = TypeVar("T")


class _Kept(Generic[T]):
    """The last few things made, by key."""

    def __init__(self, most: int) -> None:
        self._most, self._things = most, dict[str, T]()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The thing of this key, made if it is not there."""
        if key not in self._things:
            while len(self._things) >= self._most:  # before making another: both may not fit into memory
                del self._things[next(iter(self._things))]
            self._things[key] = make()
        return self._things[key]


_OUTLINES: _Kept[Outline] = _Kept(64)
_FEDERATIONS: _Kept[Federation] = _Kept(8)  # batches come sorted by their data, so that few are enough
