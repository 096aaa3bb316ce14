"""A one-hidden-layer network made for noisy gradients: what one clipped gradient says reaches far.

With noise of a given size in every parameter, what a network learns is decided by its tangent kernel
k(x, x') = <grad s(x), grad s(x')> / (|grad s(x)| |grad s(x')|) (A. Jacot et al., NeurIPS 2018), not by how
many parameters it has: all of them share one clip. ReLU's has a large part linear in <x, x'>, which the
task may have no use for; that of s^2 begins at <x, x'>^2, and s^3 adds the next order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field

from fedsim.common.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn


Activation = Literal["relu", "squared_relu", "square_plus_cube"]


@dataclass(frozen=True)
class PairedMlp:
    """One hidden layer whose units start in pairs that cancel: all scores start at 0, none at random.

    Unit j and unit j + hidden / 2 have the same row, of norm `row_norm`, and opposite output weights,
    +-`output_weight`; rows of different pairs are orthogonal as far as there are dimensions (A. Saxe et al.,
    ICLR 2014), biases are 0. The pair j speaks for class j mod K against the others. Public: drawn from the
    run's seed.
    """

    name: ClassVar[str] = "paired_mlp"
    hidden: Annotated[int, Field(ge=2, le=1_000_000, multiple_of=2, description="units, in pairs")] = 64
    activation: Annotated[Activation, Field(description="of the hidden units")] = "square_plus_cube"
    row_norm: Annotated[float, Field(gt=0, description="norm of a unit's input weights at the start")] = 0.1
    output_weight: Annotated[float, Field(gt=0, description="size of the output weights at the start")] = 3.0

    def build(self, num_features: int, num_outputs: int) -> nn.Module:
        """Features to scores."""
        try:
            first, last = (
                torch.nn.Linear(num_features, self.hidden),
                torch.nn.Linear(self.hidden, num_outputs),
            )
        except RuntimeError:  # torch's name for an allocation that failed
            expected = f"narrower: {num_features:,} x {self.hidden:,} weights do not fit in memory"
            raise InputError("scenario.problem.model.hidden", self.hidden, expected) from None
        with torch.no_grad():
            rows = torch.nn.functional.normalize(
                torch.nn.init.orthogonal_(first.weight[: self.hidden // 2].clone())
            )
            first.weight.copy_(self.row_norm * torch.cat([rows, rows]))
            weights = self.output_weight * _classes(num_outputs, self.hidden // 2)
            last.weight.copy_(torch.cat([weights, -weights], 1))
            first.bias.zero_()
            last.bias.zero_()
        return torch.nn.Sequential(first, _activation(self.activation), last)


def _activation(name: Activation) -> nn.Module:
    from fedsim.problems.activations import SquaredReLU, SquarePlusCube

    kinds: dict[Activation, type[nn.Module]] = {
        "relu": torch.nn.ReLU,
        "squared_relu": SquaredReLU,
        "square_plus_cube": SquarePlusCube,
    }
    return kinds[name]()


def _classes(outputs: int, units: int) -> Tensor:
    """(outputs, units): 1 for the class that a unit speaks for, -1 / (outputs - 1) for the others."""
    own = torch.nn.functional.one_hot(torch.arange(units) % outputs, outputs).T.float()
    return own if outputs == 1 else own - (1 - own) / (outputs - 1)
