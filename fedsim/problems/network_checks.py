"""What a module must be, found without data: a function of each record alone, and the same at every call.

A record-level clip bounds what one record does to a sum only if no other record's gradient depends on
it. So a module that mixes the records of a batch is refused, by its kind where that is known and by
trying it: the scores of one record must not depend on another's features, exactly.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedsim.problems.network_models import FIELD
from fedsim.protocol.errors import InputError

_RECORDS = 3


def check(module: nn.Module, num_features: int, num_outputs: int) -> nn.Module:
    """The module in evaluation mode and float64, without operations in place, if it suits.

    Raises:
        InputError: the reason it does not.
    """
    if any(nn.parameter.is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        raise _wrong(module, "has lazy parameters; give every layer its sizes")
    if not any(True for _ in module.parameters()):
        raise _wrong(module, "has no parameters to learn")
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase):
            reason = f"layer {name!r} ({type(layer).__name__}) normalises over the records of a batch"
            raise _wrong(module, f"{reason}, which no per-record clip can bound; use GroupNorm or LayerNorm")
        if getattr(layer, "inplace", False):
            layer.inplace = False  # an output must stay as it was captured
    if not all(value.requires_grad for value in module.parameters()):
        raise _wrong(module, "has frozen parameters; register them as buffers")
    module = module.eval().double()
    _try(module, num_features, num_outputs)
    return module


def _try(module: nn.Module, num_features: int, num_outputs: int) -> None:
    """Two passes over made-up records in [0, 1)."""
    made = torch.Generator().manual_seed(0)
    features = torch.rand(_RECORDS, num_features, dtype=torch.float64, generator=made)
    buffers = copy.deepcopy(dict(module.named_buffers()))
    inputs, outputs = _scores(module, features.clone().requires_grad_(), num_outputs)
    if not bool(outputs.isfinite().all()):
        raise _wrong(module, "gives scores that are not finite for features in [0, 1)")
    again = _scores(module, features.clone().requires_grad_(), num_outputs)[1]
    if not torch.equal(outputs, again):
        raise _wrong(module, "gives other scores when it is called again: it must not be random")
    if any(not torch.equal(value, buffers[name]) for name, value in module.named_buffers()):
        raise _wrong(module, "changes its buffers when it is called")
    _check_apart(module, inputs, outputs, num_outputs)


def _scores(module: nn.Module, features: Tensor, num_outputs: int) -> tuple[Tensor, Tensor]:
    try:
        scores: Any = module(features)
    except Exception as error:
        reason = f"cannot be applied to records of {features.shape[1]} features"
        raise _wrong(module, f"{reason}: {type(error).__name__}: {error}") from None
    shapes = [(_RECORDS, num_outputs), *([(_RECORDS,)] if num_outputs == 1 else [])]
    if not isinstance(scores, Tensor) or tuple(scores.shape) not in shapes:
        given = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise _wrong(module, f"must give scores of shape (records, {num_outputs}), gives {given}")
    if not scores.requires_grad:
        raise _wrong(module, "gives scores that have no gradient in its parameters")
    return features, scores


def _check_apart(module: nn.Module, features: Tensor, scores: Tensor, num_outputs: int) -> None:
    """Record 0 alone decides the scores of record 0."""
    for row in range(_RECORDS):
        slopes = torch.autograd.grad(scores[row].sum(), features, retain_graph=True, allow_unused=True)[0]
        others = [i for i in range(_RECORDS) if i != row]
        if slopes is not None and bool((slopes[others] != 0).any()):
            raise _wrong(module, "mixes the records of a batch, which no per-record clip can bound")
    changed = features.detach().clone()
    changed[1:] = 1 - changed[1:]
    other, alone = _scores(module, changed, num_outputs)[1], module(changed[:1])
    for seen in (other[:1], alone):
        if not torch.allclose(seen, scores[:1], rtol=1e-9, atol=1e-9):
            raise _wrong(module, "mixes the records of a batch, which no per-record clip can bound")


def _wrong(module: nn.Module, expected: str) -> InputError:
    return InputError(FIELD, type(module).__name__, expected)
