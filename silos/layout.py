"""Records as blocks: silos, or persons, of similar size share one, each padded to the same number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fedsim.problems.kinds import Problem, accepts
from fedsim.problems.network import NeuralNetwork
from silos.sums import Block, padded, padded_rows

MAX_NORM = 1e12
"""A record longer than this counts as the zero vector. Far below float32's range, so that clip / norm, at
least 1e-18 with the limits' smallest clip, never becomes a subnormal number, whose rounding would let a
clipped term exceed its bound."""

MIN_NORM = 1e-30
"""A shorter record counts as the zero vector: below 3e-39 its inverse norm, and so the bound on its
coefficient, would be infinite in float32."""

_MAX_PADDING = 1.25

Silo = tuple[np.ndarray, np.ndarray] | tuple[np.ndarray, np.ndarray, np.ndarray]
"""A silo's records: features (n, d) and target (n,), and where known each one's group (n,), -1 for none."""


def groups(sizes: Sequence[int], most: float = _MAX_PADDING) -> list[list[int]]:
    """Positions grouped by similar size, the largest of a group at most so many times its smallest."""
    found: list[list[int]] = []
    smallest = 0
    for member in sorted(range(len(sizes)), key=lambda m: (sizes[m], m)):
        if not found or sizes[member] > most * smallest:
            found.append([])
            smallest = sizes[member]
        found[-1].append(member)
    return [sorted(group) for group in found]


def laid_out(silos: Sequence[Silo], group: list[int], problem: Problem, dtype: torch.dtype) -> Block:
    """The records of these positions as a block, each padded to the longest."""
    rows = max(1, *(len(silos[member][1]) for member in group))  # of nobody, a row of padding
    rows = rows if isinstance(problem, NeuralNetwork) else padded_rows(rows, dtype)
    features = torch.zeros(len(group), rows, problem.num_features, dtype=dtype)
    target = torch.zeros(len(group), rows, dtype=dtype)
    mask = torch.zeros_like(target) if isinstance(problem, NeuralNetwork) else None
    sizes = torch.tensor([[len(silos[member][1])] for member in group])
    real = (torch.arange(rows) < sizes).to(dtype) if int(sizes.min()) < rows else None
    codes = [each for member in group for each in silos[member][2:]]
    for i, member in enumerate(group):
        x, y = silos[member][:2]
        features[i, : len(y)] = torch.as_tensor(x)
        target[i, : len(y)] = torch.as_tensor(y)
        if mask is not None:
            mask[i, : len(y)] = 1
    block = sanitised(Block(group, features, target, target, mask, real), problem)
    return replace(block, group=padded(codes, rows, -1)) if codes else block


def sanitised(block: Block, problem: Problem) -> Block:
    """Records whose term could not be finite count as zero vectors from the start.

    A label that the loss is not defined for leaves a record's features as they are, since some terms are to
    depend on labels alone; the mask takes its gradient away.
    """
    norm = torch.linalg.vector_norm(block.features, dim=-1, dtype=torch.float64)
    labelled = accepts(problem, block.target) & (block.target.abs() <= MAX_NORM)
    long = (norm <= MAX_NORM) & (norm >= MIN_NORM)
    mask = block.mask
    if mask is not None:
        mask = mask * (labelled & (norm <= MAX_NORM))
    elif not bool(labelled.all()):
        mask = labelled.to(block.features.dtype)
    features = torch.where(long.unsqueeze(-1), block.features, 0.0)
    inverse = torch.where(long, 1 / norm, 0.0).to(features.dtype)
    target = torch.where(labelled, block.target, 0.0)
    return replace(block, features=features, target=target, inverse_norm=inverse, mask=mask)
