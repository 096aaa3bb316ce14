"""Applies a network to records: as layers that keep records apart, or as the graph of one record.

`check` helps a module's author: it looks at the kinds of layers and tries the module on made-up records. The
guarantee that one record cannot reach another's term does not rest on it: see `fedsim.problems.capture` and
`fedsim.problems.network_layers`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedsim.common.errors import InputError
from fedsim.problems.capture import capture, each, largest_tile, made_up, tile_of
from fedsim.problems.network_layers import Layers, plain_layers
from fedsim.problems.network_models import FIELD
from fedsim.problems.operations import NotCapturedError
from fedsim.problems.program import Program

Parameters = Mapping[str, Tensor]
_RECORDS = 3  # made-up ones that a module is tried on


@dataclass(frozen=True, eq=False)
class Graph:
    """Any other module: what it does to one record."""

    record: Program
    num_outputs: int

    def one(self, parameters: Parameters, features: Tensor, exact: bool = False) -> Tensor:
        """Scores of one record, (features,) to (outputs,)."""
        return self.record(parameters, features.unsqueeze(0), exact=exact).reshape(self.num_outputs)

    def scores(self, parameters: Parameters, features: Tensor, exact: bool = False) -> Tensor:
        """(records, features) to (records, outputs); NaN for a record that it cannot be applied to. `exact`:
        each made of its record alone to the last bit (`fedsim.problems.exact`).
        """
        return each(
            lambda x: self.one(parameters, x, exact),
            (self.num_outputs,),
            features.dtype,
            features,
            tile=self.tile if exact else self._largest,
        )

    @property
    def _largest(self) -> int:
        return largest_tile(self.record.numbers, self.record.raises)

    @cached_property
    def tile(self) -> int:
        """Records that are scored at a time (`tile_of`)."""
        (shape, dtype), *_ = self.record.record
        sizes = {name: size for name, size, _ in self.record.parameters}
        x, *values = made_up(shape[1:], *sizes.values(), dtype=dtype)
        parameters = {name: value[0] for name, value in zip(sizes, values, strict=True)}
        with torch.no_grad():
            return tile_of(lambda row: self.one(parameters, row, True), x, tile=self._largest)


Form = Layers | Graph


def form_of(module: nn.Module, num_features: int, num_outputs: int, dtype: torch.dtype) -> Form:
    """The module, in evaluation mode and float64, as a form in `dtype`; errors as `graph_of`."""
    return plain_layers(module, num_features) or graph_of(module, num_features, num_outputs, dtype)


@lru_cache(maxsize=32)  # what a check found is what runs
def graph_of(module: nn.Module, num_features: int, num_outputs: int, dtype: torch.dtype) -> Graph:
    """The module, evaluating in float64, as one record's program in `dtype`; NotCapturedError without one."""
    made = torch.zeros(1, num_features, dtype=dtype)
    try:
        own = copy.deepcopy(module).to(dtype)
    except Exception as error:  # a part of it has a way of its own to be copied
        raise NotCapturedError(f"it cannot be copied: {error}") from None
    form = Graph(capture(own, made), num_outputs)
    parameters = {name: value.detach() for name, value in own.named_parameters()}
    if bool(form.scores(parameters, made).isnan().any()):
        raise NotCapturedError(f"it gives no number for a record of zeros in {dtype}")
    return form


def check(module: nn.Module, num_features: int, num_outputs: int) -> nn.Module:
    """The module in evaluation mode and float64; InputError says why it does not suit."""
    if any(nn.parameter.is_lazy(value) for value in (*module.parameters(), *module.buffers())):
        raise _wrong(module, "has lazy parameters; give every layer its sizes")
    if not any(True for _ in module.parameters()):
        raise _wrong(module, "has no parameters to learn")
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase):
            reason = f"layer {name!r} ({type(layer).__name__}) normalises over the records of a batch"
            raise _wrong(module, f"{reason}, of which a silo uses one at a time; use GroupNorm or LayerNorm")
    if not all(value.requires_grad for value in module.parameters()):
        raise _wrong(module, "has frozen parameters; register them as buffers")
    module = module.eval().double()
    made = torch.Generator().manual_seed(0)
    features = torch.rand(_RECORDS, num_features, dtype=torch.float64, generator=made)
    buffers = copy.deepcopy(dict(module.named_buffers()))
    outputs = _scores(module, features.clone(), num_outputs)
    if not bool(outputs.isfinite().all()):
        raise _wrong(module, "gives scores that are not finite for features in [0, 1)")
    if not torch.equal(outputs, _scores(module, features.clone(), num_outputs)):
        raise _wrong(module, "gives other scores when it is called again: it must not be random")
    if any(not torch.equal(value, buffers[name]) for name, value in module.named_buffers()):
        raise _wrong(module, "changes its buffers when it is called")
    try:
        form = form_of(module, num_features, num_outputs, torch.float64)
    except NotCapturedError as error:
        raise no_graph(module, error) from None
    _check_form(module, form, features, outputs.reshape(_RECORDS, num_outputs))
    return module


def _scores(module: nn.Module, features: Tensor, num_outputs: int) -> Tensor:
    try:
        scores: Any = module(features)
    except Exception as error:
        reason = f"cannot be applied to records of {features.shape[1]} features"
        raise _wrong(module, f"{reason}: {type(error).__name__}: {error}") from error
    shapes = [(_RECORDS, num_outputs), *([(_RECORDS,)] if num_outputs == 1 else [])]
    if not isinstance(scores, Tensor) or tuple(scores.shape) not in shapes:
        given = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise _wrong(module, f"must give scores of shape (records, {num_outputs}), gives {given}")
    if not scores.requires_grad:
        raise _wrong(module, "gives scores that have no gradient in its parameters")
    return scores


def _check_form(module: nn.Module, form: Form, features: Tensor, scores: Tensor) -> None:
    """The form that runs does what the module does, to made-up records: scores and gradients."""
    parameters = dict(module.named_parameters())
    found = form.scores(parameters, features)
    if bool(found.isnan().any()):
        raise _wrong(module, "cannot be applied to one record at a time (torch.func.vmap)")
    if not torch.allclose(found, scores, rtol=1e-6, atol=1e-9):
        hint = "mixes the records of a batch: it gives a record other scores than it does alone"
        raise _wrong(module, hint)
    for row in features:
        outputs = module(row.unsqueeze(0)), form.scores(parameters, row.unsqueeze(0))
        own, slope = (_gradient(found, parameters) for found in outputs)
        if not torch.allclose(slope, own, atol=1e-9):
            hint = "has a gradient that is not its operations' own (for torch.no_grad use detach)"
            raise _wrong(module, hint)


def _gradient(scores: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
    """The gradient of a weighted sum of the scores in every parameter."""
    weights = torch.arange(1.0, 1 + scores.numel(), dtype=scores.dtype).view_as(scores)
    inputs = list(parameters.values())
    slopes = torch.autograd.grad((weights * scores).sum(), inputs, materialize_grads=True, allow_unused=True)
    return torch.cat([slope.flatten() for slope in slopes])


def no_graph(module: nn.Module, reason: NotCapturedError) -> InputError:
    """Why the module cannot be applied to records one by one."""
    hint = "must be operations of torch on tensors, whatever a record's values are"
    return _wrong(module, f"{hint} ({reason})")


def _wrong(module: nn.Module, hint: str) -> InputError:
    return InputError(FIELD, type(module).__name__, hint)
