"""The network builders that a scenario can name. A builder holds public numbers, never weights."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from fedsim.common.choice import Choice, Shorthand
from fedsim.common.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn


Activation = Literal["relu", "squared_relu", "square_plus_cube"]


@dataclass(frozen=True)
class PairedMlp:
    """One hidden layer whose units start in pairs that cancel: all scores start at 0, none at random.

    It is made for noisy gradients: one clipped gradient changes the predictions of many records. With noise
    of a given size in every parameter, what a network learns is decided by its tangent kernel
    k(x, x') = <grad s(x), grad s(x')> / (|grad s(x)| |grad s(x')|) (A. Jacot et al., NeurIPS 2018), not by
    how many parameters it has: all of them share one clip. ReLU's has a large part linear in <x, x'>, which
    the task may have no use for; that of s^2 begins at <x, x'>^2, and s^3 adds the next order.

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
        from fedsim.problems.network_layers import SquaredReLU, SquarePlusCube

        kinds = {"relu": torch.nn.ReLU, "squared_relu": SquaredReLU, "square_plus_cube": SquarePlusCube}
        first = _linear(num_features, self.hidden, self.hidden)
        last = _linear(self.hidden, num_outputs, self.hidden)
        with torch.no_grad():
            rows = torch.nn.init.orthogonal_(first.weight[: self.hidden // 2].clone())
            rows = torch.nn.functional.normalize(rows)
            first.weight.copy_(self.row_norm * torch.cat([rows, rows]))
            weights = self.output_weight * _classes(num_outputs, self.hidden // 2)
            last.weight.copy_(torch.cat([weights, -weights], 1))
            first.bias.zero_()
            last.bias.zero_()
        return torch.nn.Sequential(first, kinds[self.activation](), last)


def _classes(outputs: int, units: int) -> Tensor:
    """(outputs, units): 1 for the class that a unit speaks for, -1 / (outputs - 1) for the others."""
    own = torch.nn.functional.one_hot(torch.arange(units) % outputs, outputs).T.float()
    return own if outputs == 1 else own - (1 - own) / (outputs - 1)


FIELD = "scenario.problem.model"
Width = Annotated[int, Field(ge=1, le=1_000_000)]


@dataclass(frozen=True)
class Mlp:
    """Fully connected layers with ReLU between them."""

    name: ClassVar[str] = "mlp"
    hidden: Annotated[
        tuple[Width, ...],
        Field(
            max_length=100,
            description="widths of the hidden layers, from the features on; [] is a linear model",
        ),
    ] = (64,)

    def build(self, num_features: int, num_outputs: int) -> torch.nn.Module:
        """Features to scores."""
        widths = (num_features, *self.hidden, num_outputs)
        layers: list[torch.nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [_linear(inputs, outputs, list(self.hidden)), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-1])


def _linear(inputs: int, outputs: int, hidden: int | list[int]) -> torch.nn.Linear:
    try:
        return torch.nn.Linear(inputs, outputs)
    except RuntimeError:  # torch's name for an allocation that failed
        hint = f"narrower: a layer of {inputs:,} x {outputs:,} weights does not fit in memory"
        raise InputError(f"{FIELD}.hidden", hidden, hint) from None


@dataclass(frozen=True)
class Lenet:
    """Two 5x5 convolutions (6 and 16 channels) with max pooling, then 120, 84 and the scores; ReLU.

    The convolutional network of the thesis's experiments (LeCun et al., Proc. IEEE 1998, table 1's successor
    in wide use).
    """

    name: ClassVar[str] = "lenet"
    image: Annotated[
        tuple[Width, Width, Width],
        Field(description="channels, height, width of a record's features, row by row; at least 16 x 16"),
    ]

    def build(self, num_features: int, num_outputs: int) -> torch.nn.Module:
        """Flat pixels to scores; InputError if they are not as many as the features, or too few."""
        channels, *sides = self.image
        if prod(self.image) != num_features:
            hint = f"must hold as many pixels as a record has features, {num_features}"
            raise InputError(f"{FIELD}.image", list(self.image), f"{hint} (data.intercept=false adds none)")
        if min(sides) < 16:
            raise InputError(f"{FIELD}.image", list(self.image), "must be at least 16 x 16")
        height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
        return torch.nn.Sequential(
            torch.nn.Unflatten(1, self.image),
            *(torch.nn.Conv2d(channels, 6, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
            *(torch.nn.Conv2d(6, 16, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
            torch.nn.Flatten(),
            *(torch.nn.Linear(16 * height * width, 120), torch.nn.ReLU()),
            *(torch.nn.Linear(120, 84), torch.nn.ReLU()),
            torch.nn.Linear(84, num_outputs),
        )


@dataclass(frozen=True)
class Imported:
    """A torch module of an installed package, from (records, num_features) to (records, num_outputs)."""

    name: ClassVar[str] = "module"
    path: Annotated[
        str,
        Field(
            description="package.module:attribute, a class or function that returns a torch.nn.Module; "
            "called with (num_features, num_outputs) if it takes two arguments, else without any"
        ),
    ]

    def build(self, num_features: int, num_outputs: int) -> torch.nn.Module:
        """Build the module by calling the attribute; InputError if that gives no module."""
        factory = self._factory()
        arguments = (num_features, num_outputs) if _takes_two(factory) else ()
        try:
            made = factory(*arguments)
        except (Exception, SystemExit) as error:
            raise self._wrong(f"cannot be called with {arguments or 'no arguments'}: {error}") from error
        if not isinstance(made, torch.nn.Module):
            raise self._wrong(f"must return a torch.nn.Module, not {type(made).__name__}")
        return made

    def _factory(self) -> Callable[..., object]:
        name, colon, attribute = self.path.partition(":")
        if not (name and colon and attribute):
            raise self._wrong("must look like package.module:attribute")
        try:
            found: Any = importlib.import_module(name)
        except (Exception, SystemExit) as error:  # what a module does at import is its own
            reason = f"{type(error).__name__}: {error}"
            raise self._wrong(f"module {name!r} cannot be imported ({reason})") from error
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise self._wrong(f"{name!r} has no attribute {attribute!r}")
            found = getattr(found, part)
        if not callable(found) or isinstance(found, torch.nn.Module):
            raise self._wrong("must be a class or function that makes a new module")
        factory: Callable[..., object] = found
        return factory

    def _wrong(self, hint: str) -> InputError:
        return InputError(f"{FIELD}.path", self.path, hint)


def _takes_two(factory: Callable[..., object]) -> bool:
    try:
        inspect.signature(factory).bind(1, 1)
    except (TypeError, ValueError):
        return False
    return True


Model = Annotated[Mlp | PairedMlp | Lenet | Imported, Choice(), Shorthand()]
