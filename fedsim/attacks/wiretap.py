"""Listening to a silo half: every single answer of the gate, not only the message made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np
from torch import Tensor

from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Algorithm, Asker, Memory, Public, PublicProblem, Query, ServerHalf


@dataclass(frozen=True)
class Heard:
    """One ask: its queries as the silo half put them, and the gate's answers, each (members, d)."""

    queries: tuple[Query, ...]
    answers: tuple[Tensor, ...]


Tell = Callable[[int, Heard], tuple[Tensor, ...]]
"""(number of the ask in its round, what was heard) to what the silo half is told instead."""


@dataclass
class Tap:
    """What to do with an ask.

    Args:
        full: ask for every record, whatever batch the silo half names.
        tell: keeps the silo half on a path that does not depend on the answers heard.
        greedy: at the end of a round ask once more than the silo half does.
    """

    full: bool = False
    tell: Tell | None = None
    greedy: bool = False
    heard: list[Heard] = field(default_factory=list)
    overheard: list[Heard] = field(default_factory=list)

    def take(self) -> list[Heard]:
        """What was heard since the last time."""
        heard, self.heard = self.heard, []
        return heard

    def listen(self, ask: Asker, queries: tuple[Query, ...]) -> tuple[Tensor, ...]:
        """Put the queries to the gate."""
        if self.full:
            queries = tuple(replace(query, batch=FULL) for query in queries)
        heard = Heard(queries, _answers(ask, queries))
        self.heard.append(heard)
        return heard.answers if self.tell is None else self.tell(len(self.heard) - 1, heard)

    def end(self, ask: Asker) -> None:
        """The silo half has what it asked for; `overheard` is what the gate should have refused."""
        if self.greedy and self.heard:
            queries = self.heard[-1].queries
            with suppress(Exception):
                self.overheard.append(Heard(queries, _answers(ask, queries)))


def _answers(ask: Asker, queries: tuple[Query, ...]) -> tuple[Tensor, ...]:
    return ask(*queries) if len(queries) > 1 else (ask(queries[0]),)


@dataclass(frozen=True)
class Wiretap:
    """An algorithm with a tap between its silo half and the gate."""

    inner: Algorithm
    tap: Tap
    linear: ClassVar[bool] = False

    def server(
        self, w: Tensor, problem: PublicProblem, public: Public, rng: np.random.Generator
    ) -> ServerHalf:
        """The algorithm's own."""
        return self.inner.server(w, problem, public, rng)

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        """The algorithm's own message, overheard."""

        def tapped(*queries: Query) -> Tensor | tuple[Tensor, ...]:
            answers = self.tap.listen(ask, queries)
            return answers if len(queries) > 1 else answers[0]

        message = self.inner.silo(problem, broadcast, cast(Asker, tapped), memory)
        self.tap.end(ask)
        return message
