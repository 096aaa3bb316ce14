"""Modules that tests name by `support.network_modules:attribute`; some suit, some do not."""

import torch
from torch import Tensor, nn


class Tokens(nn.Module):
    """Whole numbers looked up, normalised and combined: embedding, layer norm, a matrix at several places."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 6)
        self.norm = nn.LayerNorm(6)
        self.mix = nn.Linear(6, 5, bias=False)
        self.out = nn.Linear(5 * num_features, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        places = self.mix(self.norm(self.embedding(x.long())))
        return self.out(torch.tanh(places).flatten(1))


class Wide(nn.Module):
    """A matrix large enough, at few enough places, that the ghost norm is the cheaper one."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.each = nn.Linear(1, 40)
        self.mix = nn.Linear(40, 30)
        self.out = nn.Linear(30, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mix(torch.tanh(self.each(x.unsqueeze(-1)))).relu().sum(1))


class Shared(nn.Module):
    """One matrix used twice."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.square = nn.Linear(num_features, num_features)
        self.out = nn.Linear(num_features, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.square(torch.tanh(self.square(x)))))


class Tied(Shared):
    """Two layers with the same parameter tensor."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__(num_features, num_outputs)
        self.other = nn.Linear(num_features, num_features)
        self.other.weight = self.square.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.other(torch.tanh(self.square(x)))))


class Own(nn.Module):
    """A parameter that no layer applies, and a strange convolution."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_features))
        self.conv = nn.Conv1d(2, 4, 2, groups=2, padding="same", padding_mode="circular")
        self.out = nn.Linear(4 * (num_features // 2), num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = (x * self.scale).unflatten(1, (2, -1))
        return self.out(torch.tanh(self.conv(x)).flatten(1))


class StepsFirst(nn.Module):
    """Four steps of a sequence stand before the records, as recurrent layers have them."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.each = nn.Linear(num_features // 2, 3)
        self.out = nn.Linear(3, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.stack([x[:, :3], x[:, 3:], x[:, ::2], x[:, 1::2]])  # 6 features
        return self.out(torch.tanh(self.each(steps))).sum(0)


class Reversed(nn.Module):
    """A batch that one layer sees in another order."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(num_features, num_features)
        self.out = nn.Linear(num_features, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(x.flip(0)).flip(0)))


class Strict(nn.Module):
    """Looks at the values of its input."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(num_features, num_features)
        self.out = nn.Linear(num_features, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        assert bool((x < 100).all()), "a feature is out of range"
        return self.out(self.first(x))


def places(num_features: int, num_outputs: int) -> nn.Module:
    """Matrices that are applied at a place for every feature."""
    return nn.Sequential(
        *(nn.Unflatten(1, (num_features, 1)), nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 30)),
        *(nn.ReLU(), nn.Flatten(), nn.Linear(30 * num_features, num_outputs)),
    )


def bias_first(num_features: int, num_outputs: int) -> nn.Module:
    """A layer that lists its bias before its matrix."""
    layer = nn.Linear(num_features, 5)
    weight = layer.weight
    del layer.weight
    layer.weight = weight
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(5, num_outputs))


def smooth(num_features: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(num_features, 2), nn.Tanh(), nn.Linear(2, num_outputs))


def batch_norm(num_features: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(num_features), nn.Linear(num_features, num_outputs))


class Centred(nn.Linear):
    """Subtracts the mean of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Rounded(nn.Linear):
    """Mixes records where no gradient shows it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.detach().sum()


class Random(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(1)


class Counting(nn.Linear):
    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__(num_features, num_outputs)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


def frozen(num_features: int, num_outputs: int) -> nn.Module:
    return nn.Linear(num_features, num_outputs).requires_grad_(False)


def lazy(num_features: int, num_outputs: int) -> nn.Module:
    return nn.LazyLinear(num_outputs)


def no_parameters(num_features: int, num_outputs: int) -> nn.Module:
    return nn.Identity()


def failing(num_features: int, num_outputs: int) -> nn.Module:
    raise OSError("no disk")


def without_arguments() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(4, 3))


def dropout_and_groups(num_features: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(num_features, 8), nn.Dropout(0.5), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, num_outputs)
    )


not_a_module = [1, 2]


def a_number(num_features: int, num_outputs: int) -> float:
    return 1.0


class Looked(nn.Module):
    """A layer of ReLU, and a table of the first feature, which raises for a value that the table has not."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(num_features, 64), nn.Linear(64, num_outputs)
        self.register_buffer("table", torch.zeros(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        known = self.table.to(x.dtype)[x[:, 0].long().clamp(min=0)]
        return self.last(torch.relu(self.first(x))) + known.unsqueeze(-1)
