"""How a network is applied to records: as layers that keep them apart, or as the graph of one record."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.problems.alone import NotCapturedError, capture, each
from fedsim.problems.network_layers import Layers, plain_layers
from fedsim.problems.program import Program

Parameters = Mapping[str, Tensor]
_NUMBERS = 2**22  # held at a time while records are scored, about: 32 MB in float64


@dataclass(frozen=True, eq=False)
class Graph:
    """Any other module: what it does to one record."""

    record: Program
    num_outputs: int

    def one(self, parameters: Parameters, features: Tensor) -> Tensor:
        """Scores of one record, (features,) to (outputs,)."""
        return self.record(parameters, features.unsqueeze(0)).reshape(self.num_outputs)

    def scores(self, parameters: Parameters, features: Tensor) -> Tensor:
        """(records, features) to (records, outputs); NaN for a record that it cannot be applied to."""
        rows = max(1, _NUMBERS // self.record.numbers)
        parts = [
            each(lambda x: self.one(parameters, x), (self.num_outputs,), part.dtype, part)
            for part in torch.split(features, rows)
        ]
        return torch.cat(parts)


Form = Layers | Graph


def form_of(module: nn.Module, num_features: int, num_outputs: int, dtype: torch.dtype) -> Form:
    """The module, in evaluation mode and float64, as a form that computes in `dtype`.

    Raises:
        NotCapturedError: it is no chain of known layers, and has no graph that can be applied to a record.
    """
    layers = plain_layers(module, num_features)
    if layers is not None:
        return layers
    return graph_of(module, num_features, num_outputs, dtype)


def graph_of(module: nn.Module, num_features: int, num_outputs: int, dtype: torch.dtype) -> Graph:
    """The module, in evaluation mode and float64, as the program of one record that computes in `dtype`.

    Raises:
        NotCapturedError: it has none.
    """
    made = torch.zeros(1, num_features, dtype=dtype)
    try:
        own = copy.deepcopy(module).to(dtype)
    except Exception as error:  # a part of it has a way of its own to be copied
        raise NotCapturedError(f"it cannot be copied: {error}") from None
    form = Graph(capture(own, made), num_outputs)
    if bool(
        form.scores({name: value.detach() for name, value in own.named_parameters()}, made).isnan().any()
    ):
        raise NotCapturedError(f"it gives no number for a record of zeros in {dtype}")
    return form
