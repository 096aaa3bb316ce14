"""A small residual network that a scenario names as `module: residual_cnn:Residual`; images of 16 x 16."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Three 3 x 3 convolutions of `width` channels, two of them beside a shortcut, and group norm."""

    def __init__(self, num_features: int, num_outputs: int, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.third = nn.Conv2d(width, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.out = nn.Linear(num_features // 16 * width, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.first(x.unflatten(1, (1, 16, 16)))))
        x = x + torch.relu(self.norms[1](self.second(x)))
        x = x + torch.relu(self.norms[2](self.third(x)))
        out: Tensor = self.out(nn.functional.avg_pool2d(x, 4).flatten(1))
        return out
