"""Records' coefficients within their clip, and weighted sums of records, in float64; of float32 records too,
with rounding that the clip makes up for.

Guarantee: replacing one record, whose term is bounded by `KEPT` times the clip, moves the sum by at most
2 clip. Rounding of a sum of P terms depends on all of them: each of P additions errs by at most u times a
partial sum, so two sums that differ in one term drift apart by up to P^2 u clip besides, u = 2^-24 in
float32. Over a whole silo that is no small thing (a sum of 2,048 can be made to move by 1.03 times 2 clip),
so float32 is summed `PIECE` rows at a time, P^2 u / 2 = 3e-5 of 2 clip, and pieces are added in float64.
That is for batches whose other rows stay where they are. A record that drops out of a sampled batch moves
all rows behind it into other places of their pieces, which moved a sum by 2e-3 of the clip at 16,384
records: so a deployed silo refuses float32 there, and a simulation's report says so first.
In float64, where u = 2^-53, nothing is held back for it: 6e-11 of 2 clip at 1,000 records, 2e-6 at 200,000.
There each term is made of its record alone to the last bit (`fedsim.problems.exact`), so that places do not
matter to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsim.common.errors import Refused
from fedsim.problems.exact import product, total
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import coefficient, scores_of_records


@dataclass(frozen=True)
class Block:
    """Records of `members` (positions in the cohort), each padded to the same number of rows."""

    members: list[int]
    features: Tensor  # (silos, rows, features)
    target: Tensor  # (silos, rows)
    inverse_norm: Tensor  # 1 / |x| per row, 0 for a zero row; (silos, rows)
    # 1 for a row that counts, 0 for one that adds nothing: padding, and for a network a record that
    # counts as the zero vector; None where all such rows are zero vectors of a linear model
    mask: Tensor | None = None
    # 1 for a row that is a record, 0 for padding; None where all are
    real: Tensor | None = None
    # where units have several records: (silos, rows), which unit of its silo a record is of; and what its
    # clipped term weighs in that unit's, None where their terms are summed before they are clipped
    owner: Tensor | None = None
    share: Tensor | None = None
    group: Tensor | None = None  # of a record, (silos, rows); -1 where there is none
    mean: bool = False  # whether the mean of a unit's terms is clipped, not their sum
    # whether a sum with a term that is not finite is to be no number; else the term counts as zero
    whole: bool = False
    # features, a point and what they give: for the next query of the same ask at that point; of a network
    # features, and features and target where they are on a device
    kept: list[Tensor] = field(default_factory=list)

    def on(self, device: str) -> tuple[Tensor, Tensor]:
        """Features and target on the device, where they stay while the same are asked for."""
        if device == "cpu":
            return self.features, self.target
        if not (self.kept and self.kept[0] is self.features):
            self.kept[:] = self.features, self.features.to(device), self.target.to(device)
        return self.kept[1], self.kept[2]

    def scores(self, problem: GeneralisedLinear, point: Tensor, keep: bool = False) -> Tensor:
        """x W of every row, (silos, rows) or (.., outputs); `keep` keeps them for one more call."""
        kept = list(self.kept)
        self.kept.clear()
        if kept and kept[0] is self.features and torch.equal(kept[1], point):
            return kept[2]
        found = scores_of_records(problem, self.features, point)
        if keep:
            self.kept.extend((self.features, point, found))
        return found

    @property
    def records(self) -> Tensor:
        """1 for a row that is a record, (silos, rows), float64."""
        return torch.ones_like(self.target, dtype=torch.float64) if self.real is None else self.real.double()

    @property
    def counts(self) -> Tensor:
        """How many records of each record's unit there are, at least 1, (silos, rows)."""
        if self.owner is None:
            return torch.ones_like(self.target, dtype=torch.float64)
        counts = torch.zeros(len(self.owner), int(self.owner.max()) + 1, dtype=torch.float64)
        return counts.scatter_add_(1, self.owner, self.records).gather(1, self.owner).clamp_min(1.0)

    @property
    def part(self) -> Tensor:
        """What part of its unit a row is, (silos, rows): 1 over its unit's records; 0 for padding."""
        return self.records / self.counts

    def mapped(self, members: list[int], each: Callable[[Tensor], Tensor]) -> Block:
        """Its tensors, each as this function makes it of it."""
        tensors = ("features", "target", "inverse_norm", "mask", "real", "owner", "share", "group")
        held = {name: own for name in tensors if (own := getattr(self, name)) is not None}
        made: dict[str, Any] = {name: each(own) for name, own in held.items()}
        return replace(self, members=members, **made)


def padded(values: Sequence[np.ndarray], rows: int, beyond: float = 0) -> Tensor:
    """Ragged arrays as one of (silos, rows)."""
    found = np.full((len(values), rows), beyond, dtype=values[0].dtype)
    for i, own in enumerate(values):
        found[i, : len(own)] = own
    return torch.from_numpy(found)


PIECE = 32
Clip = float | Tensor | None  # a bound on terms' norms, one number or (silos, 1); None: they are whole


def slopes(problem: GeneralisedLinear, block: Block, points: Sequence[Tensor]) -> Tensor:
    """Each record's coefficient at the first point less that at others, (silos, rows) or (.., outputs)."""
    scores = (block.scores(problem, point) for point in points)
    return reduce(torch.sub, (coefficient(problem, own, block.target, block.inverse_norm) for own in scores))


Seen = Callable[[Tensor, Tensor, Tensor | None], None]
"""Called with (lengths, bounds, mask) of terms, (silos, rows) each: a term is clipped where its length is
above its bound. Nothing of it has noise: only a simulation uses it."""

KEPT = {torch.float64: 1.0, torch.float32: 1 - 1e-4}
"""The share of the clip that terms are shortened to: for the sum's rounding, and for that of clip / |x|."""


def bounded(
    coefficient: Tensor, bound: Tensor | None, mask: Tensor | None, seen: Seen | None = None
) -> Tensor:
    """Each record's coefficient shortened to `bound`, zero where it does not count; not finite as it was.

    Args:
        coefficient: (silos, rows, ..) of one output, or with a last axis of outputs; may be overwritten.
        bound: clip / |x|, in as many axes as a coefficient of one output has; None does not clip.
        mask: (silos, rows), 0 for a row that adds nothing.
        seen: called with coefficients before they are shortened.
    """
    if bound is not None:
        coefficient = _shortened(coefficient, bound, mask, seen)
    if mask is not None:
        coefficient = coefficient * mask[(..., *[None] * (coefficient.dim() - 2))]
    return coefficient


def _shortened(coefficient: Tensor, bound: Tensor, mask: Tensor | None, seen: Seen | None) -> Tensor:
    if coefficient.dim() == bound.dim():
        if seen is not None:
            seen(coefficient.abs(), bound, mask)
        return torch.clamp(coefficient, -bound, bound, out=coefficient)
    length = total(coefficient.square()).sqrt()
    if seen is not None:
        seen(length, bound, mask)
    # The floor serves vectors so short that their norm underflows: with clip 0 nothing of them may stay.
    norm = length.clamp_min(torch.finfo(coefficient.dtype).tiny)
    factor: Tensor = (bound / norm).clamp_max(1.0)
    return coefficient.mul_(factor.unsqueeze(-1))


def padded_rows(rows: int, dtype: torch.dtype) -> int:
    """The number of rows at which a block is summed without a copy."""
    return rows if dtype == torch.float64 else rows + -rows % PIECE


def weighted_sum(weights: Tensor, features: Tensor) -> Tensor:
    """Sum over rows of weight times feature vector, (silos, columns, features), float64; of weights (silos,
    columns, rows) and features (silos, rows, features) of one type. A weight that is not finite counts as
    zero: it makes the sum not finite in every feature that the row has, so sums are looked at, which are few.
    """
    total = _weighted_sum(weights, features)
    if bool(total.sum().isfinite()):  # ten times faster than looking at each number
        return total
    return _weighted_sum(weights.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0), features)


def _weighted_sum(weights: Tensor, features: Tensor) -> Tensor:
    if features.dtype == torch.float64:
        return product(weights, features)
    if missing := -features.shape[1] % PIECE:
        weights, features = pad(weights, (0, missing)), pad(features, (0, 0, 0, missing))
    silos, rows, width = features.shape
    by_piece = weights.reshape(silos, -1, rows // PIECE, PIECE).transpose(1, 2)
    sums = product(by_piece.flatten(0, 1), features.reshape(-1, PIECE, width))
    pieces = sums.view(silos, rows // PIECE, -1, width)
    return pieces[:, 0].double() if rows == PIECE else pieces.sum(1, dtype=torch.float64)


_FULL_PRECISION = ("none", "ieee")


def check_surroundings(dtype: torch.dtype) -> None:
    """Refuse to compute in `dtype` under settings of torch with which a sum would not be what is guaranteed.

    An author may have switched them on for another purpose. Autocast and reduced precision round a sum by
    more than its bound allows for; under a transform of torch.func one ask would stand for many; anomaly
    detection raises where one record's gradient is not finite. Refused names what is switched on.
    """
    if found := _switched_on(dtype):
        raise Refused(f"torch has {found} switched on, which would change what is computed from records")


def _switched_on(dtype: torch.dtype) -> str:
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func"
    if torch.is_inference_mode_enabled():
        return "inference mode"
    if torch.is_anomaly_enabled():
        return "anomaly detection"
    if torch.is_autocast_enabled("cpu"):
        return "autocast"
    precision = torch._C._get_fp32_precision_getter("mkldnn", "matmul")
    if dtype is torch.float32 and precision not in _FULL_PRECISION:
        return "float32 products of less than float32's precision"
    return ""
