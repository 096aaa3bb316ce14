"""Small federations with keys of their own: a roster, its silos' identities, and who opens what."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedsim.common.identity import Identity
from fedsim.secagg.envelopes import EnvelopeKey
from fedsim.secagg.reports import NO_START, Form, ReportContext, seal_report
from fedsim.secagg.roster import Roster, parse_roster

RUN = "5e" * 32


def identity() -> Identity:
    return Identity(Ed25519PrivateKey.generate())


@dataclass
class Parties:
    """Silos s0, s1, ..., a server and a shuffler; `terms` are fields of the roster."""

    count: int = 5
    terms: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.silos = {f"s{i:03d}": identity() for i in range(self.count)}
        self.server, self.shuffler = EnvelopeKey.draw(), EnvelopeKey.draw()
        self.shuffler_identity = identity()
        self.roster = self.made(**self.terms)

    def made(self, **terms: Any) -> Roster:
        return parse_roster(self.tree(**terms))

    def tree(self, **terms: Any) -> dict[str, Any]:
        told = {
            "federation": "test",
            "silos": {name: silo.public for name, silo in self.silos.items()},
            "server": self.server.public,
            "shuffler": {"key": self.shuffler.public, "identity": self.shuffler_identity.public},
            "min_silos": min(3, self.count),
            "honest_fraction": 1.0,
        }
        return {**told, **terms}

    def context(
        self,
        round_index: int = 0,
        roster: Roster | None = None,
        form: Form | None = None,
        start: str = NO_START,
    ) -> ReportContext:
        return ReportContext(RUN, round_index, (roster or self.roster).digest, form or FORM, start)

    def report(
        self,
        position: int,
        numbers: np.ndarray,
        context: ReportContext | None = None,
        roster: Roster | None = None,
    ) -> bytes:
        """Of the silo at a position of a roster; by default of the whole one."""
        roster = roster or self.roster
        name = roster.names[position]
        return seal_report(numbers, context or self.context(), roster, position, self.silos[name].sign)


FORM = Form("shares", 4, (0.0, 0.0))


def counts(rng: np.random.Generator, silos: int, form: Form = FORM) -> np.ndarray:
    """Numbers as silos would have them, (silos, queries, d)."""
    numbers = rng.integers(-(2**40), 2**40, (silos, len(form.scales), form.dimension))
    return numbers if form.transport == "shares" else numbers.astype(float)
