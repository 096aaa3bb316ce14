"""Averages silos' messages."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def weighted_mean(messages: Mapping[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """sum_i p_i m_i / sum_i p_i over the rows, in their canonical order.

    Args:
        messages: {name: (silos, d)}.
        weights: p_i of the same silos, (silos,).

    Returns:
        {name: (d,)}.
    """
    return mean_by_share(messages, shares(weights))


def shares(weights: Tensor) -> Tensor:
    """p_i / sum_i p_i; (silos,)."""
    return weights / weights.sum()


def mean_by_share(messages: Mapping[str, Tensor], share: Tensor) -> dict[str, Tensor]:
    """`weighted_mean` for weights that sum to 1 already."""
    return {name: share.to(rows.dtype) @ rows for name, rows in messages.items()}
