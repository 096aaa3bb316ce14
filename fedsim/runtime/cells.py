"""Cells of a sweep: one scenario, one trial, one mechanism each, run in batches by one process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch

from fedsim.data.federation import Federation, SiloSplit
from fedsim.data.outline import Outline, outline
from fedsim.protocol.errors import InputError, Refused
from fedsim.runtime.host import SiloHost
from fedsim.runtime.selection import Unmeasured, private_score
from fedsim.runtime.trial import Evaluator, Trial, read
from fedsim.scenario.load import parse
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved
from fedsim.theory.resolve import resolve

_FOREVER = 1e9  # seconds
_NEVER = 10**9  # rounds between two evaluations: only the first and the last are made


class Cell(NamedTuple):
    """What one run of a sweep depends on; plain values, so that it travels to other processes.

    Args:
        scenario: a resolved scenario as mappings, without a twin.
        trial: its number.
        train_loss: also measure the loss on the training records, which only a simulation can do.
        score_noise: noise multipliers z_i of a private score: of the final model no more than that is
            measured, by the silos, on their test records; these are then records put aside.
    """

    scenario: Mapping[str, Any]
    trial: int
    train_loss: bool
    score_noise: tuple[float, ...] | None = None


@dataclass(frozen=True)
class CellResult:
    """A finished cell: the final model on test records, and what the run costs the silo it costs most.

    `epsilon` is that silo's epsilon_guaranteed (infinity without a mechanism) and `silo` its name. In a
    cell with `score_noise`, `test_error` is the noisy score, sum_i p_i (silo i's), and `test_loss` is None.
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
    """Run cells and say what became of each, in order; a failed cell does not stop the others."""
    return [_guarded(cell) for cell in cells]


def _guarded(cell: Cell) -> CellResult | Failure:
    try:
        return _run(cell)
    except InputError as error:
        return Failure("bad input", str(error))
    except Refused as error:
        return Failure("refused", str(error))
    except MemoryError as error:
        return Failure("out of memory", str(error) or "no memory is left")
    except Exception as error:
        memory = any(words in str(error) for words in _OUT_OF_MEMORY)
        return Failure("out of memory" if memory else "failed", f"{type(error).__name__}: {error}")


_OUT_OF_MEMORY = ("not enough memory", "can't allocate memory")
"""How torch says so, in a RuntimeError."""


def _run(cell: Cell) -> CellResult:
    start = time.perf_counter()
    scenario = parse(cell.scenario)
    scenario = scenario.model_copy(
        update={
            "report": scenario.report.model_copy(update={"evaluate_every": _NEVER, "nonprivate_twin": False})
        }
    )
    key = data_key(cell.scenario)
    resolved = resolve(scenario, outline_of(scenario, key))
    federation = _FEDERATIONS.get(f"{cell.trial} {key}", lambda: read(resolved, cell.trial))
    hosts = SiloHost(resolved, cell.trial, federation.silos)
    evaluate: Evaluator = Evaluator(resolved.problem, federation.silos, resolved.dtype)
    if cell.score_noise is not None:
        evaluate = Unmeasured()
    trial = Trial(resolved, cell.trial, hosts, evaluate)
    last = trial.advance(_FOREVER)[-1]
    result = trial.result()
    (model,) = result.models.values()
    error: float = last.test_error
    loss: float | None = last.test_loss
    if cell.score_noise is not None:
        error, loss = private_score(resolved, cell.trial, cell.score_noise, federation.silos, model), None
    elif not (isfinite(last.test_error) and isfinite(last.test_loss)):
        raise ValueError(f"the final model has test error {last.test_error:g} and loss {last.test_loss:g}")
    worst = max(
        (said.admitted for said in result.statements), key=lambda admitted: admitted.epsilon_guaranteed
    )
    return CellResult(
        error,
        loss,
        train_loss(resolved, federation.silos, model) if cell.train_loss else None,
        worst.epsilon_guaranteed,
        worst.terms.name,
        worst.noise_multiplier,
        resolved.problem.error_name,
        time.perf_counter() - start,
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
_FEDERATIONS: _Kept[Federation] = _Kept(2)  # batches come sorted by their data, so that few are enough
