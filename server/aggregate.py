"""Averages silos' messages."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def shares(weights: Tensor) -> Tensor:
    """p_i / sum_i p_i; (silos,)."""
    return weights / weights.sum()


def mean_by_share(messages: Mapping[str, Tensor], share: Tensor) -> dict[str, Tensor]:
    """sum_i share_i m_i over the rows, in their canonical order.

    Args:
        messages: {name: (silos, d)}.
        share: of the same silos, (silos,), with sum 1.

    Returns:
        {name: (d,)}.
    """
    return {name: share.to(rows.dtype) @ rows for name, rows in messages.items()}
