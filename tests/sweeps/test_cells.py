"""What a worker does with a batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedsim.common.errors import InputError, Refused
from fedsim.measure.evaluator import Evaluator
from fedsim.results.record import CellResult
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.failures import Failure
from fedsim.simulation.fold import shared_key
from fedsim.simulation.host import SiloHost
from fedsim.simulation.trial import Trial, read
from fedsim.sweeps import run_cells
from fedsim.sweeps.cell import Cell, cell_of
from fedsim.sweeps.run_cells import run_batch, train_loss


def test_train_loss_is_the_weighted_mean_over_silos(base: dict[str, Any]) -> None:
    base["problem"] = {"name": "logistic_regression", "silo_weights": "size", "regulariser": {"l2": 0.5}}
    base["partition"] |= {"proportions": [1, 2, 5]}
    resolved = resolve(parse(base))
    silos = read(resolved, 0).silos
    w = torch.linspace(-1, 1, resolved.problem.dimension, dtype=torch.float64)
    pooled = []  # weights by size make the weighted mean that of all records
    for silo in silos:
        for x, y in zip(silo.train_features, silo.train_target, strict=True):
            pooled.append(math.log1p(math.exp((1 - 2 * y) * float(x @ w.numpy()))))
    assert train_loss(resolved, silos, w) == pytest.approx(sum(pooled) / len(pooled), rel=1e-12)
    equal = resolve(parse(base | {"problem": "logistic_regression"}))
    assert train_loss(equal, silos, w) != pytest.approx(train_loss(resolved, silos, w), rel=1e-6)


def test_a_cell_is_the_trial_whatever_ran_before_it_in_the_process(base: dict[str, Any]) -> None:
    scenarios = [parse(base | {"seed": seed}) for seed in (0, 1)]
    wanted = [cell_of(scenario, trial, False) for scenario in scenarios for trial in (0, 1, 2, 0)]
    for cell, found in zip(wanted, run_batch(wanted), strict=True):
        assert isinstance(found, CellResult)
        resolved = resolve(parse(cell.scenario))
        data = read(resolved, cell.trial)
        hosts = SiloHost(resolved, cell.trial, data, shared_key(resolved, data))
        trial = Trial(
            resolved, cell.trial, hosts, Evaluator(resolved.problem, data.silos, resolved.dtype), data.digest
        )
        last = trial.advance(1e9)[-1]
        assert found.error == last.error
        assert found.loss == pytest.approx(last.loss, rel=1e-12)  # cells that fold round otherwise
        said = trial.result().statements
        assert found.epsilon == max(one.admitted.epsilon_guaranteed for one in said)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InputError("field", 1, "other"), "bad input"),
        (Refused("no"), "refused"),
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), "out of memory"),
        (ZeroDivisionError("x"), "failed"),
    ],
)
def test_whatever_goes_wrong_is_that_cell_s_alone(
    error: Exception, kind: str, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = cell_of(parse(base), 0, False), cell_of(parse(base), 1, False)
    real = run_cells._result

    def result(cell: Cell, *rest: Any) -> CellResult:
        if cell.trial == 1:
            raise error
        return real(cell, *rest)

    monkeypatch.setattr(run_cells, "_result", result)
    first, second, third = run_batch([good, bad, good])
    assert isinstance(first, CellResult)
    assert isinstance(second, Failure)
    assert second.kind == kind
    assert second.message
    assert isinstance(third, CellResult)
