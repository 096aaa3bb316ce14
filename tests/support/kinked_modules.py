"""Modules of others by which a record's neighbours could turn its term, if rounding depended on them."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedsim.problems.glm import AbsoluteError, HingeLoss, LogisticRegression


class Median(AbsoluteError):
    """Another's by its class alone: it is captured."""


class Steps(LogisticRegression):
    """A slope that jumps where a probability is a quarter."""

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        return torch.sign(torch.sigmoid(scores) - 0.25)


class Table(HingeLoss):
    """A loss that looks its label up, and raises for one beyond the table."""

    def accepts(self, target: Tensor) -> Tensor:
        return target >= 0

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        signs = torch.tensor([-1.0, 1.0], dtype=scores.dtype)[target.long()]
        return -signs * torch.sign(torch.relu(1 - signs * scores))


class Switched(nn.Module):
    """Sigmoids above an edge, for records whose first feature is above 100 alone."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(num_features, 3701), nn.Linear(3701, num_outputs, bias=False)
        self.edge = nn.Parameter(torch.full((3701,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        above = torch.relu(torch.sigmoid(self.first(x)) - self.edge)
        return torch.relu(x[:, :1] - 100) * self.last(above)


switched = Switched


def edges(problem) -> Iterator[Tensor]:
    """Points at which a record of second feature 1 has one sigmoid between the two roundings of torch's."""
    from fedsim.problems.exact_operations import _mm

    w = torch.zeros(problem.dimension, dtype=torch.float64)
    own = problem.parameters(w)
    own["edge"].fill_(2.0)
    own["last.weight"].fill_(1.0)
    x = torch.tensor([[101.0, 1.0, 0, 0, 0]], dtype=torch.float64)
    for z in torch.linspace(-4, 4, 4001, dtype=torch.float64):
        own["first.weight"][-1, 1] = z
        score = _mm(x, own["first.weight"].T)[0, -1]
        many, alone = score.repeat(16).sigmoid()[0], score[None].sigmoid()[0]
        if many != alone:
            own["edge"][-1] = torch.minimum(many, alone)
            yield w
            return
    yield w
