"""Secure aggregation: a `Link` through the shuffler to silos whose answers a server only sees as a sum.

The server asks the silos for a round's reports, which it cannot read, sends them all to the shuffler in one
request, and gets back envelopes for itself in random order, and the shuffler's own sum. It opens
the envelopes and adds. A silo whose report did not count is left out of the round by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import CAN_RESUME, Busy, InputError, Lost, Refused
from fedsim.common.store import Store
from fedsim.protocol.copies import digest
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.links import Answered
from fedsim.secagg import shuffling
from fedsim.secagg.agreement import ReportContexts
from fedsim.secagg.envelopes import EnvelopeKey
from fedsim.secagg.reports import aggregators_noise
from fedsim.secagg.roster import Roster
from fedsim.secagg.shuffling import Release, Request
from fedsim.wire.frames import sealed
from fedsim.wire.messages import Hello, Mark
from server.aggregate import Totals
from server.federation import Channel, RemoteSilos

SHUFFLER = "the shuffler"  # its name on a channel
_REQUEST = "request"
Told = TypeVar("Told")


class NotReleased(Refused):
    """A request that the shuffler has not released, and that need not be sent again."""


@dataclass(frozen=True)
class ShufflerClient:
    """The other party of the sums, as a server knows it."""

    channel: Channel  # to the shuffler, under the name `SHUFFLER`
    roster: Roster  # of the federation
    key: EnvelopeKey  # the server's own, that silos seal to
    patience: float  # seconds to wait for an answer of the shuffler
    heads: dict[str, str]  # the last entry known of its chain, by name; shared, updated by replies

    def mark(self) -> Mark:
        """Where the shuffler's chain stands, for silos to seal their reports for. NotReleased if it has lost
        entries that this server has seen, or is not the roster's; Refused if it does not answer.
        """
        body = Hello(head=self.heads.get(self._name, "")).body()
        return self._seen(self._exchanged(body, lambda data: shuffling.greeting(data, self._identity)))

    def released(self, request: Request) -> Release:
        """Its release. NotReleased if it refuses, or is not the roster's; Refused without an answer."""
        release = self._exchanged(request.body(), lambda data: Release.read(data, request, self._identity))
        self._seen(release.mark)
        return release

    @property
    def _identity(self) -> bytes:
        return bytes.fromhex(self.roster.shuffler.identity)

    @property
    def _name(self) -> str:
        """Among the heads: no silo's name has a space."""
        return f"shuffler {self.roster.shuffler.identity}"

    def _seen(self, mark: Mark) -> Mark:
        self.heads[self._name] = mark.head
        return mark

    def _exchanged(self, body: bytes, read: Callable[[bytes], Told]) -> Told:
        replies = self.channel.exchange({SHUFFLER: sealed(body)}, self.patience)
        if SHUFFLER not in replies:
            raise Refused(f"no answer of the shuffler within {self.patience:.3g} s")
        try:
            return read(replies[SHUFFLER])
        except (Busy, Lost):
            raise
        except Refused as refusal:
            raise NotReleased(str(refusal)) from None


@dataclass(frozen=True)
class SummedSilos:
    """See the module; for one run."""

    silos: RemoteSilos  # of the roster, whose messages are reports (`server.replies.Reports`)
    shuffler: ShufflerClient  # who adds the other shares
    contexts: ReportContexts  # of the reports
    totals: Totals  # reads sums
    kept: KeptRequest  # where a request is until its round is over

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        """One round; the one row of its messages is weighed and added already. Refused if too few silos
        answered, or the shuffler does not release the round; Lost if it never will, or what the silos sent
        makes no sum. The very same request is all that the shuffler will ever answer of this round.
        """
        least = self.shuffler.roster.min_silos
        if len(members) < least:
            raise Refused(f"{len(members)} silos take part, and a sum has at least {least}")
        try:
            asked, release = self._released(round_index, broadcast, members)
        except NotReleased:  # silos say whether they can answer what the shuffler's process of now releases
            asked, release = self._released(round_index, broadcast, members)
        there = list(release.silos)
        if not set(there) <= set(asked.members) or len(there) < least:
            raise Lost("the shuffler counts silos that sent no report, or too few")
        lost = {m: "the shuffler did not count its report" for m in asked.members if m not in there}
        try:
            sums = self._sums(release)
        except Refused as refusal:  # and there is no other release of the round
            raise Lost(str(refusal)) from None
        message = self.totals.message(round_index, broadcast, sums, there)
        if not all(float(value.abs().max()) <= LIMITS.max_point for value in message.values()):  # or NaN
            why = f"the sum has an entry that is not finite or above {LIMITS.max_point:g}: some silo sent "
            raise Lost(f"{why}something else than its contribution, and it is not known which")
        rows = {name: value.unsqueeze(0) for name, value in message.items()}
        return Answered(there, rows, {**asked.left_out, **lost})

    def _released(
        self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]
    ) -> tuple[Asked, Release]:
        sent = digest(broadcast).hex()
        asked = self.kept.find(self.contexts.run, round_index, sent)
        if asked is None:
            mark = self.shuffler.mark()  # new for each round: a shuffler may have been started anew between
            answered = self.silos.answer(round_index, broadcast, members, mark)
            reports = tuple(row.numpy().tobytes() for row in answered.messages["report"])
            request = Request(self.contexts.of(round_index, mark.start), reports)
            asked = Asked(sent, request, answered.members, answered.left_out)
            self.kept.keep(asked)
        try:
            return asked, self.shuffler.released(asked.request)
        except NotReleased:
            self.kept.remove()  # other silos may make one that is
            raise

    def _sums(self, release: Release) -> dict[str, Tensor]:
        """By the number of the query, (d,) float64."""
        form, key = release.context.form, self.shuffler.key
        if form.transport == "shares":
            sums = shuffling.totals(release, self.shuffler.roster, key, aggregators_noise(form))
        else:
            whole = shuffling.messages(release, key)
            if len(whole) < len(release.silos):
                raise Refused("a silo's envelope does not open, and it is not known whose")
            sums = whole.sum(0)
        return {str(number): torch.from_numpy(row.astype(np.float64)) for number, row in enumerate(sums)}


class Asked(NamedTuple):
    """A round's request."""

    broadcast: str  # SHA-256 of what silos were asked, as hexadecimal
    request: Request  # with their reports
    members: Sequence[int]  # positions of the silos whose reports are in it, in the same order
    left_out: Mapping[int, str]  # the others that were asked, each with the reason


@dataclass(frozen=True)
class KeptRequest:
    """The newest request of a run, on the disk until the next one.

    A shuffler answers one request a round, and the very same one again. So a server that was killed between
    its request and the answer must be able to send it again byte for byte: the silos' reports, in order.
    """

    store: Store  # the run's record, which holds the request beside the rounds

    def keep(self, asked: Asked) -> None:
        """Write it for good, in place of the one before; InputError if it cannot be written."""
        head = {
            "broadcast": asked.broadcast,
            "members": list(asked.members),
            "left_out": {str(member): reason for member, reason in asked.left_out.items()},
        }
        try:
            self.store.keep(_REQUEST, json.dumps(head).encode() + b"\n" + asked.request.body())
        except OSError as error:
            hint = f"a disk with room for a round's reports; {CAN_RESUME}"
            raise InputError("record", str(error), hint) from None

    def find(self, run: str, round_index: int, broadcast: str) -> Asked | None:
        """The request of this round, if it is kept. InputError if what is kept cannot be read."""
        try:
            if (kept := self.store.body(_REQUEST)) is None:
                return None
            line, _, body = kept.partition(b"\n")
            head, request = json.loads(line), Request.read(body)
            left_out = {int(member): str(reason) for member, reason in head["left_out"].items()}
            found = Asked(head["broadcast"], request, list(head["members"]), left_out)
        except (OSError, ValueError, LookupError, TypeError, Refused):
            raise InputError("record", _REQUEST, "is damaged, or of another version") from None
        this_one = request.context.run, request.context.round, found.broadcast
        return found if this_one == (run, round_index, broadcast) else None

    def remove(self) -> None:
        """Forget it: another request may be sent for the round."""
        self.store.drop(_REQUEST)
