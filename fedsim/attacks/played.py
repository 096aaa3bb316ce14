"""Runs that the worst server plays with the daemons of both worlds, and what it hears."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedsim.attacks.reading import Line
from fedsim.attacks.two_worlds import WORLDS, Worlds
from fedsim.common.errors import InputError, Refused
from fedsim.wire.messages import Admission, Offer

OPTION = "--daemons"


class Played:
    """Runs of equal lines, of daemons that admit each of them alike.

    Attributes:
        admission: the first one.
        runs: how many there are.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines, self.runs = lines, 0
        self._admission: Admission | None = None
        self._answers: list[list[list[Tensor]]] = [[[] for _ in lines] for _ in WORLDS]

    @property
    def admission(self) -> Admission:
        """What the daemons claim."""
        assert self._admission is not None
        return self._admission

    def fill(self, worlds: Worlds, offer: Offer, wanted: int, done: Callable[[int], None]) -> Refused | None:
        """Play until there are so many runs, or until a daemon refuses: then why."""
        while self.runs < wanted:
            try:
                self._play(worlds, offer)
            except Refused as refusal:
                return refusal
            done(self.runs)
        return None

    def answers(self, world: int) -> list[Tensor]:
        """What each line was answered, (runs, d)."""
        return [torch.stack(rows) for rows in self._answers[world]]

    def _play(self, worlds: Worlds, offer: Offer) -> None:
        """One run more; nothing is kept of one that is broken off."""
        admissions = worlds.offer(offer)
        self._check(admissions)
        runs = [admission.run for admission in admissions]
        heard = [worlds.ask(runs, line.round, line.broadcast) for line in self._lines]
        worlds.close(runs)
        for at, (line, frames) in enumerate(zip(self._lines, heard, strict=True)):
            for world, frame in zip(self._answers, frames, strict=True):
                world[at].append(frame.arrays[line.name].double().reshape(-1))
        self.runs += 1

    def _check(self, admissions: Sequence[Admission]) -> None:
        self._admission = self._admission or admissions[0]
        for admission in admissions:
            if _terms(admission) != _terms(self._admission):
                hint = f"two daemons of one policy: another run was admitted by {_terms(self._admission)}"
                raise InputError(OPTION, _terms(admission), hint)


def _terms(admission: Admission) -> dict[str, object]:
    return admission.model_dump(exclude={"run", "head", "session"})
