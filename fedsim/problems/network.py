"""Neural networks: any torch module that maps each record separately, as one flat parameter vector."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import torch

from fedsim.common.seeds import digest128
from fedsim.problems.composite import Composite, HasComposite
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, SoftmaxRegression
from fedsim.problems.network_models import Mlp, Model

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.problems.network_form import Form
    from fedsim.problems.public_records import PublicRecords

ROWS = 4096  # records that are scored at once


@dataclass(frozen=True)
class NeuralNetwork(HasComposite):
    """A torch module: cross entropy over the classes, or squared error for a numeric target.

    The module is built once and used as a pure function: it is in evaluation mode (dropout is off), its
    buffers keep the values they are built with, and parameters come from the flat vector, in the order of
    `named_parameters()`.
    """

    num_features: int  # features of a record, the constant one included
    num_outputs: int  # one score a class; 1 is regression
    composite: Composite = field(default_factory=Composite)  # regulariser and constraint, of all parameters
    model: Model = field(default_factory=Mlp)  # which network
    device: str = field(default="cpu", repr=False)  # where records' gradients are taken

    @classmethod
    def suits(cls, classes: int) -> bool:
        """Two classes or more, or a number."""
        return classes != 1

    @classmethod
    def outputs(cls, classes: int) -> int:
        """One score a class; 1 for a number."""
        return classes or 1

    @cached_property
    def module(self) -> torch.nn.Module:
        """The module, which is inspected and never called with a record; InputError if it does not suit."""
        from fedsim.problems.network_form import check

        with torch.enable_grad():  # also if the first caller has gradients off
            return check(self._built(0), self.num_features, self.num_outputs)

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """Name and shape of every parameter, in the order of the flat vector."""
        return {name: value.shape for name, value in self.module.named_parameters()}

    @cached_property
    def dimension(self) -> int:
        """d, the number of parameters."""
        return sum(shape.numel() for shape in self.shapes.values())

    @cached_property
    def head(self) -> GeneralisedLinear:
        """The loss as a function of the scores; its coefficient is the gradient in the scores."""
        return SoftmaxRegression(1, self.num_outputs) if self.num_outputs > 1 else LinearRegression(1)

    def start(self, seed: int) -> Tensor:
        """The module's random initialisation as (d,) float32; public, and the same for the same seed."""
        return torch.cat([value.detach().reshape(-1) for value in self._built(seed).parameters()])

    def _built(self, seed: int) -> torch.nn.Module:
        import fedsim.problems.operations  # noqa: F401  what torch has, before a module of others runs

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(digest128("network start", seed) % 2**63)
            return self.model.build(self.num_features, self.num_outputs)

    def parameters(self, w: Tensor) -> dict[str, Tensor]:
        """The flat vector (d,) as named parameters, views of it."""
        parts = torch.split(w, [shape.numel() for shape in self.shapes.values()])
        return {name: own.view(shape) for (name, shape), own in zip(self.shapes.items(), parts, strict=True)}

    def form(self, dtype: torch.dtype) -> Form:
        """The form that is applied to records: each record's scores depend on that record alone."""
        return _form(self, dtype)

    def scores(self, features: Tensor, w: Tensor) -> Tensor:
        """Scores of every record, without a gradient; shapes as of `GeneralisedLinear.scores`. NaN for a
        record that the module cannot be applied to.
        """
        if features.dim() == 3:
            points = w if w.dim() == 2 else w.expand(len(features), -1)
            return torch.stack([self.scores(x, point) for x, point in zip(features, points, strict=True)])
        with torch.no_grad():
            return torch.cat([self.slope_scores(x, w) for x in torch.split(features, ROWS)])

    def slope_scores(self, features: Tensor, w: Tensor) -> Tensor:
        """Scores of features (records, features) at w (d,), as `scores` but with a gradient in w."""
        scores = self.form(w.dtype).scores(self.parameters(w), features)
        return scores.squeeze(1) if self.num_outputs == 1 else scores

    def mean_gradient(self, records: PublicRecords, w: Tensor) -> Tensor:
        """Gradient of the records' mean loss at w, (..., d)."""
        if w.dim() > 1:
            return torch.stack([self.mean_gradient(records, each) for each in w])
        total = torch.zeros_like(w)
        with torch.enable_grad():
            point = w.detach().requires_grad_()
            parts = (torch.split(each, ROWS) for each in (records.features, records.target))
            for x, y in zip(*parts, strict=True):
                loss = self.losses(self.slope_scores(x, point), y).sum() / len(records)
                total += torch.autograd.grad(loss, point)[0]
        return total

    def accepts(self, target: Tensor) -> Tensor:
        """Which targets the loss is defined for, a mask in the shape of `target`."""
        return self.head.accepts(target)

    def losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """Cross entropy, or (s - y)^2 / 2, for every record, (..., records)."""
        return self.head.losses(scores, target)

    def error(self, scores: Tensor, target: Tensor) -> Tensor:
        """The test error of predictions made from the scores, a scalar."""
        return self.head.error(scores, target)

    @property
    def error_name(self) -> str:
        """What `error` measures, in words."""
        return self.head.error_name


@lru_cache(maxsize=32)
def _form(problem: NeuralNetwork, dtype: torch.dtype) -> Form:
    from fedsim.problems.network_form import form_of, no_graph
    from fedsim.problems.operations import NotCapturedError

    try:
        return form_of(problem.module, problem.num_features, problem.num_outputs, dtype)
    except NotCapturedError as error:
        raise no_graph(problem.module, error) from None
