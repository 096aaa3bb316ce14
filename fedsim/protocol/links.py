"""The ways between a server and silos; the only thing that differs between a simulation and a deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from torch import Tensor

from fedsim.protocol.terms import Admitted, Statement

Variant = Literal["private", "nonprivate"]
"""A run with its mechanism, and its twin without one."""


class Link(Protocol):
    """A server's way to the silos of one run."""

    def answer(
        self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]
    ) -> Mapping[str, Tensor]:
        """The members' messages {name: (members, d)}, in the order of `members`.

        Raises:
            Refused: a silo refused the request.
        """
        ...


class Hosts(Protocol):
    """All silos of a trial, in one process or several; members are positions in canonical order."""

    def open(self, variant: Variant, rounds: Sequence[Sequence[int]]) -> list[Admitted]:
        """Admission of every silo for its own rounds, in canonical order.

        Raises:
            Refused: a silo does not accept the plan.
        """
        ...

    def answer(
        self, variant: Variant, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]
    ) -> Mapping[str, Tensor]:
        """The members' messages, as `Link.answer`."""
        ...

    def statements(self, variant: Variant) -> list[Statement]:
        """Each silo's account, in canonical order."""
        ...
