"""What is measured of a cell's final model: errors, a training loss, or a candidate's private score."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from fedsim.data.federation import Federation, SiloSplit
from fedsim.measure.evaluator import Evaluator, Tested
from fedsim.protocol.limits import LIMITS
from fedsim.scenario.resolve import Resolved
from silos.parts import GrantedRun
from silos.seeded_entropy import SeededEntropy


def on_test_records(evaluate: Evaluator, model: Tensor, all_metrics: bool) -> Tested:
    """Error, loss and, if asked for, all metrics on all silos' test records; not private.

    Raises:
        ValueError: one of them is not finite.
    """
    tested = evaluate(model, last=all_metrics)
    if not (isfinite(tested.error) and isfinite(tested.loss)):
        raise ValueError(f"the final model has test error {tested.error:g} and loss {tested.loss:g}")
    return tested


def train_loss(resolved: Resolved, silos: Sequence[SiloSplit], w: Tensor) -> float:
    """sum_i p_i (mean loss of silo i's training records) at w, (d,), without the regulariser; not private."""
    total = 0.0
    for weight, silo in zip(resolved.weights, silos, strict=True):
        scores = resolved.problem.scores(torch.as_tensor(silo.train_features).to(resolved.dtype), w)
        target = torch.as_tensor(silo.train_target).to(resolved.dtype)
        total += weight * float(resolved.problem.losses(scores, target).mean())
    return total


def private_score(
    resolved: Resolved, trial: int, granted: GrantedRun, data: Federation, model: Tensor, run: str
) -> float:
    """sum_i p_i (silo i's noisy share of mistakes on the records that it scores with); `run` keys it."""
    reserve = resolved.scenario.data.reserve
    if reserve is None or reserve.use != "reserved":
        raise ValueError("scores are of records put aside")
    scorer = granted.scorer(
        [(silo.test_features, silo.test_target) for silo in data.silos],
        resolved.problem,
        SeededEntropy(resolved.scenario.seed, trial, resolved.names, [run] * len(resolved.names)),
        LIMITS,
        resolved.dtype,
    )
    return float(np.dot(resolved.weights, scorer.answer(model)))
