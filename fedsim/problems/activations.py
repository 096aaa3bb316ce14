"""Activations that torch does not have. They stand alone: their base class loads torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SquaredReLU(nn.Module):
    """max(s, 0)^2: D. So et al., Primer, NeurIPS 2021."""

    def forward(self, s: Tensor) -> Tensor:
        """Elementwise."""
        return torch.relu(s).square()


class SquarePlusCube(nn.Module):
    """s^2 + s^3."""

    def forward(self, s: Tensor) -> Tensor:
        """Elementwise."""
        return s.square() * (1 + s)
