"""A module with a ReLU layer and a table of a feature's values, which raises on one that it has not."""

import torch
from torch import Tensor, nn


class Raising(nn.Module):
    """Made for (num_features, num_outputs)."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(num_features, 64), nn.Linear(64, num_outputs)
        self.register_buffer("table", torch.zeros(4, dtype=torch.float64))
        self.table: Tensor

    def forward(self, x: Tensor) -> Tensor:
        kind = (x[:, -1] * 0 + x[:, 0]).long().clamp(min=0)
        found: Tensor = self.last(torch.relu(self.first(x))) + self.table.to(x.dtype)[kind].unsqueeze(-1)
        return found
