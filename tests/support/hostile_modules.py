"""Modules and linear problems that let one record reach another's term, if they are handed a batch."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from fedsim.problems.glm import LinearRegression, LogisticRegression

FEATURES, CLASSES = 6, 3


class Shifted(nn.Module):
    """Another origin where a record has a negative feature: made-up records have none."""

    def __init__(self, num_features: int = FEATURES, num_outputs: int = CLASSES) -> None:
        super().__init__()
        self.out = nn.Linear(num_features, num_outputs)

    def origin(self, x: Tensor) -> Tensor:
        return x - x.amin().clamp(max=0)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.origin(x))


def moved(origin: Callable[[Tensor], Tensor]) -> type[Shifted]:
    """`Shifted` by a function of the features."""
    return type(origin.__name__, (Shifted,), {"origin": lambda self, x: origin(x), "__doc__": origin.__doc__})


class Capped(Shifted):
    """The largest logit of the batch is at most 20."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.out(x)
        return logits * (20 / logits.abs().amax().clamp(min=20))


class Sorted(Shifted):
    """Each record by itself, but in the order of the signs, and back: rows of layers are others' rows."""

    def __init__(self, num_features: int = FEATURES, num_outputs: int = CLASSES) -> None:
        super().__init__(num_features, num_outputs)
        self.first = nn.Linear(num_features, num_features)

    def forward(self, x: Tensor) -> Tensor:
        order = (x.sum(1) < 0).long().argsort(stable=True)
        return self.out(torch.tanh(self.first(x[order]))[order.argsort()])


class _Summed(torch.autograd.Function):
    """Has a batching rule of its own, which sees the batch."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return x - 5 * (x < 0).to(x.dtype).sum().clamp(max=1), 0


@moved
def own_rule(x: Tensor) -> Tensor:
    return _Summed.apply(x)


class Remembering(Shifted):
    """Keeps what it saw, in an attribute."""

    def origin(self, x: Tensor) -> Tensor:
        before = getattr(self, "seen", torch.zeros_like(x).sum())
        self.seen = x.detach().amin().clamp(max=0)
        return x - before.to(x.dtype)


class Buffered(Shifted):
    """Keeps what it saw in a buffer, where a record has a negative feature."""

    def __init__(self, num_features: int = FEATURES, num_outputs: int = CLASSES) -> None:
        super().__init__(num_features, num_outputs)
        self.register_buffer("seen", torch.zeros(()))

    def origin(self, x: Tensor) -> Tensor:
        self.seen += x.detach().amin().clamp(max=0)
        return x - self.seen


class Written(Shifted):
    """Keeps what it saw in a file."""

    path = pathlib.Path(tempfile.gettempdir()) / "hostile_modules_seen.pt"

    def origin(self, x: Tensor) -> Tensor:
        torch.save(x.detach().amin(), self.path)
        return x - torch.load(self.path).clamp(max=0)


@moved
def leftover(x: Tensor) -> Tensor:
    """Reads memory that it has not written."""
    return x + 0 * torch.empty_like(x).nan_to_num()


@moved
def looked(x: Tensor) -> Tensor:
    """A look-up table made of the record, and indices past its end where a feature is negative."""
    past = x.shape[1] * (x.amin(1, keepdim=True) < 0).long()
    places = torch.arange(x.numel()).view(x.shape) + past * int(len(x) == 1)
    return nn.functional.embedding(places, x.reshape(-1, 1)).view(x.shape)


@moved
def written_past(x: Tensor) -> Tensor:
    """The backward pass of a look-up as an operation: it trusts its indices, and writes past its record."""
    past = x.shape[1] * (x.amin(1, keepdim=True) < 0).long()
    places = torch.arange(x.numel()).view(x.shape) + past * int(len(x) == 1)
    slopes = x.unsqueeze(-1)
    back = torch.ops.aten.embedding_dense_backward(slopes, places, x.numel(), -1, False)
    return back.view(x.shape)


@moved
def segmented(x: Tensor) -> Tensor:
    """Sums over as many numbers as it says, which may be the next record's."""
    past = x.shape[1] * (x.amin(1) < 0).long() * int(len(x) == 1)
    lengths = torch.ones(x.numel(), dtype=torch.long) + past.repeat_interleave(x.shape[1])
    flat = x.detach().reshape(-1)
    return torch.segment_reduce(flat, "sum", lengths=lengths, unsafe=True).view(x.shape)


@moved
def resized(x: Tensor) -> Tensor:
    """More numbers than the record has."""
    twice = torch.ops.aten.resize(x, [len(x), 2 * x.shape[1]])[:, x.shape[1] :].nan_to_num(0.0)
    return torch.where(x < 0, twice, x)


@moved
def drawing(x: Tensor) -> Tensor:
    """Draws a number for each negative feature: all after it draw others. Made-up records have none."""
    moved = x - 2.0 * (x[:, -1:] >= 1).to(x.dtype)
    zeros = torch.zeros_like(x)
    return torch.ops.aten.rrelu_with_noise_functional(moved.detach(), zeros, -1.0, 1.0, True)[0]


@moved
def dividing(x: Tensor) -> Tensor:
    """Divides the least whole number by -1 where a feature is negative: the processor ends the process."""
    whole = torch.where(x < 0, torch.tensor(-(2**63)), torch.tensor(4))
    return x + 0 * torch.div(whole, torch.tensor(-1), rounding_mode="trunc")


class _Spying(Tensor):
    """Sees whatever it is multiplied with."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})

    def __deepcopy__(self, memo: Any) -> _Spying:
        return self


class Subclassed(Shifted):
    """A buffer that runs code of its own in every operation."""

    def __init__(self, num_features: int = FEATURES, num_outputs: int = CLASSES) -> None:
        super().__init__(num_features, num_outputs)
        self.register_buffer("ones", torch.ones(num_features, dtype=torch.float64).as_subclass(_Spying))

    def origin(self, x: Tensor) -> Tensor:
        return torch.mul(x, self.ones)


@torch.library.custom_op("aten::hostile_origin", mutates_args=())
def _registered(x: Tensor) -> Tensor:
    return x - 5.0 * float(x.amin() < 0)


@_registered.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@_registered.register_vmap
def _(info: Any, dims: Any, x: Tensor) -> tuple[Tensor, int]:
    return x - 5.0 * float(x.amin() < 0), 0


_registered.register_autograd(lambda ctx, slope: slope)


@moved
def registered(x: Tensor) -> Tensor:
    """An operation under torch's own name, with a batching rule that sees the batch."""
    return torch.ops.aten.hostile_origin(x)


class Overridden(nn.Linear):
    """A subclass of a known layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.amin().clamp(max=0))


def subclassed(num_features: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(Overridden(num_features, 4), nn.Tanh(), nn.Linear(4, num_outputs))


def shifted(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0] - inputs[0].amin().clamp(max=0),)


def _chain(num_features: int, num_outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_features, 4), nn.Tanh(), nn.Linear(4, num_outputs))


def hooked(num_features: int, num_outputs: int) -> nn.Module:
    chain = _chain(num_features, num_outputs)
    chain[0].register_forward_pre_hook(shifted)
    return chain


def hooked_around(num_features: int, num_outputs: int) -> nn.Module:
    chain = _chain(num_features, num_outputs)
    chain.register_forward_pre_hook(shifted)
    return chain


def patched(num_features: int, num_outputs: int) -> nn.Module:
    chain = _chain(num_features, num_outputs)
    layer, own = chain[0], chain[0].forward
    layer.forward = lambda x: own(x - x.amin().clamp(max=0))
    return chain


class _Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def parametrised(num_features: int, num_outputs: int) -> nn.Module:
    chain = _chain(num_features, num_outputs)
    parametrize.register_parametrization(chain[0], "weight", _Doubled())
    return chain


def records_as_channels(num_features: int, num_outputs: int) -> nn.Module:
    """A convolution that takes three axes for one record's: the batch would be its channels."""
    return nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Linear(6, num_outputs))


def flattened_records(num_features: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(num_features, num_outputs), nn.Flatten(0, 1), nn.Unflatten(0, (-1, 3)))


def short_bias(num_features: int, num_outputs: int) -> nn.Module:
    """A bias for all outputs together, and elsewhere one for each place: as many numbers as usual in all."""
    first, second = nn.Linear(num_features, 4), nn.Linear(2, 3)
    first.bias, second.bias = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(2, 3))
    flat = (nn.Flatten(), nn.Tanh(), nn.Linear(6, num_outputs))
    return nn.Sequential(first, nn.Unflatten(1, (2, 2)), second, *flat)


class Double(nn.Module):
    """A constant that stays float64 in a float32 run."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.out = nn.Linear(num_features, num_outputs)
        self.turn = torch.eye(num_features, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x @ self.turn)


def _below(x: Tensor) -> Tensor:
    """0 unless a feature is negative: a number without axes."""
    return x.amin().clamp(max=0)


ORIGINS: dict[str, Callable[[Tensor], Tensor]] = {
    "Rolled": lambda x: x - torch.roll(_below(x), 1),
    "Flipped": lambda x: x - torch.flip(_below(x), ()),
    "SortedNumber": lambda x: x - torch.sort(_below(x), -1).values,
    "CumulatedNumber": lambda x: x - torch.cumsum(_below(x), 0),
    "LargestNumber": lambda x: x - torch.max(_below(x), 0).values - torch.topk(_below(x), 1).values,
    "SummedWithoutAxes": lambda x: x - torch.sum(x.clamp(max=0), ()) - torch.amax(_below(x), ()),
    "Cumulated": lambda x: x - x.amin(1, keepdim=True).clamp(max=0).cumsum(0),
    "FirstOfAll": lambda x: x - _below(x.unbind(0)[0]),
    "Mapped": lambda x: torch.func.vmap(lambda row: row - _below(x))(x),
    "JoinedWithNothing": lambda x: x - _below(torch.cat([x.new_zeros(0), x.amin(1)])),
    "Scattered": lambda x: x.scatter_add(1, (x < 0).long() * 7, x),
    "GatheredPast": lambda x: x.gather(1, torch.arange(6).expand(x.shape) + 6 * (x < 0).long()),
    "IndexedBefore": lambda x: x.flatten()[
        torch.arange(x.numel()).view(x.shape) - x.numel() * (x < 0).long()
    ],
    "Strided": lambda x: torch.as_strided(x, (len(x), 6), (6, 1), 0) + torch.as_strided(x, (1,), (1,), 0) * 0,
    "Median": lambda x: x - x.median().clamp(max=0),
    "Product": lambda x: x - x.clamp(min=-1, max=0).add(1).prod(),
    "Normalised": lambda x: nn.functional.batch_norm(x, x.mean(0), x.var(0), training=True),
    "Nonzero": lambda x: x - (x < 0).nonzero().sum(),
    "Checkpointed": lambda x: checkpoint(lambda y: y - _below(y), x, use_reentrant=False),
    "Autocast": lambda x: _autocast(x),
    "Written": lambda x: _written(x),
}
"""What a module takes for its features' origin: honest where no feature is negative."""


def _autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x - _below(x)


def _written(x: Tensor) -> Tensor:
    own = x.clone()
    own[:, 0] -= _below(x)
    return own


globals().update({f"by_{name}": moved(origin) for name, origin in ORIGINS.items()})


class HookedInside(Shifted):
    """A hook from the start."""

    def __init__(self, num_features: int = FEATURES, num_outputs: int = CLASSES) -> None:
        super().__init__(num_features, num_outputs)
        self.out.register_forward_pre_hook(shifted)

    def origin(self, x: Tensor) -> Tensor:
        return x


class Patched(Shifted):
    """A constant whose own copy is another tensor: one that sees what it is multiplied with."""

    def __init__(self, num_features: int = FEATURES, num_outputs: int = CLASSES) -> None:
        super().__init__(num_features, num_outputs)
        self.ones = torch.ones(num_features, dtype=torch.float64)
        for method in ("detach", "clone"):
            setattr(self.ones, method, lambda *_, **__: self.ones.as_subclass(_Spying))

    def origin(self, x: Tensor) -> Tensor:
        return x * self.ones - _below(x)


class HookedSlope(Shifted):
    """A gradient with a hook."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(x)
        if scores.requires_grad:
            scores.register_hook(lambda slope: slope - slope.amin())
        return scores


class CopiedOtherwise(Shifted):
    """Its copy is another module."""

    def __deepcopy__(self, memo: Any) -> nn.Module:
        return moved(ORIGINS["Rolled"])(FEATURES, CLASSES)


@dataclass(frozen=True)
class Built:
    """A model that is an object: it can be sent to a confined process, which installed none of this."""

    factory: Callable[[int, int], nn.Module]

    def build(self, num_features: int, num_outputs: int) -> nn.Module:
        return self.factory(num_features, num_outputs)


NETWORKS = [
    *("Shifted", "Capped", "Sorted", "own_rule", "Remembering", "Buffered", "Written", "leftover"),
    *("looked", "written_past", "segmented", "resized", "drawing", "dividing", "Subclassed", "registered"),
    *("subclassed", "hooked", "hooked_around", "patched", "parametrised", "records_as_channels"),
    *("flattened_records", "HookedInside", "Patched", "HookedSlope", "CopiedOtherwise"),
    *(f"by_{name}" for name in ORIGINS),
]


@dataclass(frozen=True)
class Centred(LinearRegression):
    """Residuals around the batch's mean."""

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        residual = scores - target
        return residual - residual.mean()


@dataclass(frozen=True)
class Raising(LinearRegression):
    """Fails where a record has one value."""

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        if bool((target == 7).any()):
            raise RuntimeError("seven")
        return scores - target


@dataclass(frozen=True)
class Indexing(LinearRegression):
    """Looks targets up in a table that is too short for some."""

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        table = torch.tensor([0.0, 1.0, 4.0, 9.0], dtype=scores.dtype)
        return scores - table[target.long().clamp(min=0)]


@dataclass(frozen=True)
class Whole(LinearRegression):
    """Whole numbers, out of a table that is too short for some targets."""

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        return torch.tensor([0, 1, 2, 3])[target.long().clamp(min=0)]


@dataclass(frozen=True)
class Handing(LinearRegression):
    """Gives the stored targets back, for the caller to clip in place."""

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        return target


@dataclass(frozen=True)
class Overwriting(LinearRegression):
    """Works in place on what it is handed."""

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        return target.sub_(scores).neg_()


@dataclass(frozen=True)
class Scoring(LinearRegression):
    """Scores that are made of the batch."""

    def scores(self, features: Tensor, w: Tensor) -> Tensor:
        own = super().scores(features, w)
        return own - own.mean(-1, keepdim=True) + 10 * features.amin()

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        return scores - target


@dataclass(frozen=True)
class Accepting(LinearRegression):
    """Accepts all targets or none."""

    def accepts(self, target: Tensor) -> Tensor:
        return ((target < 5).all() & target.isfinite()).expand(target.shape)


@dataclass(frozen=True)
class Seen(LogisticRegression):
    """Remembers the largest score in a list of its class's."""

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        _SEEN.append(scores.detach().abs().amax())
        return scores.sigmoid() - target + _SEEN[0] * 0.1


_SEEN: list[Tensor] = []


def _loss(name: str, number: Callable[[Tensor], Tensor]) -> type[LinearRegression]:
    """A loss that adds a number made of the target, negative for some targets alone."""

    def coefficient(self: Any, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        return scores - target - number(target.reshape(()).clamp(max=0)).reshape(())

    return dataclass(frozen=True)(type(name, (LinearRegression,), {"coefficient": coefficient}))


LOSSES = [
    _loss("RolledLoss", lambda y: torch.roll(y, 1)),
    _loss("FlippedLoss", lambda y: torch.flip(y, ())),
    _loss("SortedLoss", lambda y: torch.sort(y, 0).values),
    _loss("LargestLoss", lambda y: torch.max(y, 0).values + torch.argmax(y)),
    _loss("CumulatedLoss", lambda y: torch.cumsum(y, -1) + torch.cummax(y, 0).values),
    _loss("SqueezedLoss", lambda y: torch.squeeze(y).sum(()) + torch.norm(y)),
    _loss("RepeatedLoss", lambda y: y.repeat(3).roll(1)[0] + y.expand(2).unbind(0)[1]),
]

PROBLEMS = [*LOSSES, Centred, Raising, Indexing, Whole, Handing, Overwriting, Scoring, Accepting, Seen]
