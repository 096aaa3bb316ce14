"""A simulated round played with the real envelopes, roster and shuffler; all keys are drawn for the trial."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedsim.common.identity import Identity
from fedsim.secagg.envelopes import EnvelopeKey
from fedsim.secagg.reports import Form, Occasion, aggregators_noise, seal_report
from fedsim.secagg.roster import parse_roster
from fedsim.secagg.shuffling import Release, Request, messages, totals
from fedsim.simulation.aggregation import Party, Rows, Run, Totals, counts_of, messages_of, totals_of


class ByEnvelopes:
    """Silos seal, the server relays and opens, the second party counts, permutes and adds.

    Where aggregators add the noise it is exact, from the operating system, and so not the seeded noise of
    the other ways.
    """

    def __init__(self, run: Run, party: Party) -> None:
        assert run.resolved.sums is not None
        self._run, self._party, self._sums = run, party, run.resolved.sums
        self._key = EnvelopeKey.draw()
        self._silos = [Identity(Ed25519PrivateKey.generate()) for _ in run.resolved.names]
        pool, privacy = self._sums.pool, run.resolved.scenario.privacy
        tree = {
            "federation": "a simulation",
            "silos": {f"{i:09d}": silo.public for i, silo in enumerate(self._silos)},
            "server": self._key.public,
            "shuffler": party.keys(),
            "min_silos": pool.min_silos,
            "honest_fraction": pool.honest_fraction,
            "noise_by": privacy.noise_by,
        }
        self._roster = parse_roster(tree)
        party.pin(tree)
        self._session = hashlib.sha256(f"{run.digest} {run.trial}".encode()).hexdigest()

    def __call__(self, round_index: int, members: Sequence[int], rows: Rows) -> Totals:
        """The sums over the members (`fedsim.simulation.aggregation.Adder`)."""
        scales = self._run.scales(round_index)
        form = Form(self._sums.mechanism.transport, self._run.resolved.problem.dimension, scales)
        occasion = Occasion(self._session, round_index, self._roster.digest, form)
        whole = form.transport == "messages"
        numbers = messages_of(rows) if whole else counts_of(rows)
        reports = tuple(
            seal_report(own, occasion, self._roster, member, self._silos[member].sign)
            for member, own in zip(members, numbers, strict=True)
        )
        request = Request(occasion, reports)
        identity = bytes.fromhex(self._roster.shuffler.identity)
        release = Release.read(self._party.shuffle(request.body()), request, identity)
        if whole:
            return totals_of(messages(release, self._key).sum(0))
        return totals_of(totals(release, self._roster, self._key, aggregators_noise(form)))
