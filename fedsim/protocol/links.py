"""The ways between a server and silos; the only thing that differs between a simulation and a deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

Variant = Literal["private", "clipped", "nonprivate", "evaluation", "own", "one", "alone"]
"""A run with its mechanism, the same without noise, its non-private baseline, which does not clip, the
evaluation of its model on held-out records; and the silos' own models, with what they are compared with
(`Algorithm`): one model, and each silo's training alone.
"""


class Answered(NamedTuple):
    """Who answered a round, and with what."""

    members: Sequence[int]  # positions of the silos that answered, ascending; at least one
    messages: Mapping[str, Tensor]  # theirs, {name: (members, d)}
    # the other silos that were asked, each with a reason made of public values
    left_out: Mapping[int, str] = MappingProxyType({})


class Link(Protocol):
    """A server's way to the silos of one run."""

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        """Ask the silos at the positions `members`; all of them answer in a simulation. Refused if a silo
        refused the request, or too few answered.
        """
