"""Combines silos' messages by public numbers that are fixed before any message is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedsim.protocol.contract import Public


def weighted(messages: Mapping[str, Tensor], public: Public, members: Sequence[int]) -> dict[str, Tensor]:
    """The members' messages combined with `coefficients` of the public weights, {name: (d,)}."""
    return combine(messages, coefficients(public.weights, members, len(public.names)))


def coefficients(weights: Tensor, members: Sequence[int], num_silos: int) -> Tensor:
    """N p_i / M_r for each member i of a round of M_r silos (thesis B.1.9 with f replaced by N p_i f).

    Then sum_i a_i m_i is unbiased for sum_j p_j m_j, over all silos j, wherever the set is uniformly random
    given its size, whatever the law of the size is: a silo is then in a set of M_r with probability M_r / N.
    Where silos come with unequal probability it is biased towards those that come more often. Where all
    take part, a_i = p_i. The a_i sum to 1 in expectation, not in a round: what is combined must be something
    that may be scaled (a gradient, a step), never a model.

    Args:
        weights: of all silos, (num_silos,), to be scaled to p_i, which sum to 1.
        members: positions of the silos that take part, ascending.
        num_silos: N.

    Returns:
        (members,), in the order of `members`.
    """
    share = weights / weights.sum()
    present = share if len(members) == num_silos else share[list(members)]
    return present * (num_silos / len(members))


def combine(messages: Mapping[str, Tensor], coefficient: Tensor) -> dict[str, Tensor]:
    """sum_i a_i m_i over the rows, in their canonical order.

    Args:
        messages: {name: (silos, d)}.
        coefficient: a_i of the same silos, (silos,).

    Returns:
        {name: (d,)}.
    """
    return {name: coefficient.to(rows.dtype) @ rows for name, rows in messages.items()}


def summed(messages: Mapping[str, Tensor], public: Public, members: Sequence[int]) -> dict[str, Tensor]:
    """The one row of messages that came weighed and added (`server.totals`), {name: (d,)}."""
    return {name: rows.squeeze(0) for name, rows in messages.items()}
