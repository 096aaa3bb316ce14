"""The shuffler itself: a round's reports in, and what the server may have of them out, once.

What it guarantees, whatever the server does, as long as it keeps to itself what it has opened: of each (run,
round) at most one set of reports is ever released; every one of them is signed by another silo of one roster
that the shuffler's operator has pinned, for this run, round, roster, amount of noise and process of the
shuffler; and there are at least the roster's `min_silos` of them. Where aggregators add noise, a full share
of it is in the sum. The server's envelopes come out in an order drawn from the operating system's entropy.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from secrets import SystemRandom

import numpy as np

from fedsim.common.errors import Behind, InputError, Refused
from fedsim.secagg.reports import Form, Opened, Words, add, aggregators_noise, open_report
from fedsim.secagg.roster import Roster
from fedsim.secagg.shuffling import Release, Request, marked
from fedsim.wire.frames import sealed
from fedsim.wire.messages import Mark
from shuffler.keys import Keys
from shuffler.store import FileStore, released

log = logging.getLogger("shuffler")


class Shuffler:
    """A function of requests and of what it has released before; its methods may be called from any thread.
    InputError if a roster, which its operator has pinned, names other keys.
    """

    def __init__(self, rosters: Iterable[Roster], keys: Keys, store: FileStore) -> None:
        self.rosters = {roster.digest: roster for roster in rosters}
        self.keys, self.store, self._lock = keys, store, threading.Lock()
        for roster in self.rosters.values():
            if roster.shuffler != keys.public:
                hint = f"this shuffler's keys, {keys.public.model_dump()}"
                raise InputError("roster.shuffler", roster.shuffler.model_dump(), hint)

    def shuffle(self, request: Request) -> bytes:
        """The signed frame of the round's one `Release`; for the very same request the very same bytes.
        Refused if the round was released to another request, or this one cannot be released.
        """
        with self._lock:
            noted = self.store.find(request.context.run, request.context.round)
            if noted is not None:
                if noted.request != request.digest:
                    raise Behind("the round was released to another request")
                if noted.reply is None:
                    raise Behind("the round was released, and its reply is not kept any more")
                return noted.reply
            if request.context.start != self.store.start:
                raise Refused("its reports are for another process of the shuffler")
            body = self._released(request).body()
            frame = sealed(body, self.keys.identity.sign(body))
            self.store.note(request.context.run, request.context.round, request.digest, frame)
            return frame

    def mark(self, echoed: str) -> Mark:
        """Where its chain stands; Refused if it has not the entry `echoed` (hexadecimal; "" for none)."""
        with self._lock:
            if echoed and not self.store.knows(echoed):
                raise Refused("the shuffler's notes do not hold what this server has seen: an older copy")
            return marked(self.keys.identity, self.store.newest, self.store.start)

    def _released(self, request: Request) -> Release:
        context = request.context
        roster = self.rosters.get(context.roster)
        if roster is None:
            raise Refused("a roster that this shuffler's operator has not pinned")
        # noise is added by those who add it under the roster, in every query; silos have signed how much
        if roster.noise_by == "aggregators" and not all(context.form.scales):
            raise Refused("a query without noise, where the roster has aggregators add it")
        if roster.noise_by == "silos" and any(context.form.scales):
            raise Refused("noise of aggregators, where the roster has silos add it")
        counted = self._counted(request, roster)
        if len(counted) < roster.min_silos:
            raise Refused(f"{len(counted)} reports count, and the roster needs {roster.min_silos}")
        inner = [report.inner for report in counted.values()]
        SystemRandom().shuffle(inner)
        silos, total = tuple(sorted(counted)), self._summed(counted, context.form)
        entry = released(self.store.newest, context.run, context.round, request.digest)
        mark = marked(self.keys.identity, entry, self.store.start)
        return Release(context, request.digest, silos, tuple(inner), total, mark)

    def _counted(self, request: Request, roster: Roster) -> Mapping[int, Opened]:
        """The first report of each silo that is one, by the silo's position."""
        if len(request.reports) > len(roster.names):
            raise Refused(f"{len(request.reports)} reports of a roster of {len(roster.names)} silos")
        counted: dict[int, Opened] = {}
        for report in request.reports:
            try:
                opened = open_report(report, request.context, roster, self.keys.envelopes)
                if opened.position in counted:
                    raise Refused("a second report of a silo")
            except Refused as refusal:
                log.warning("run %s round %d: %s", request.context.run, request.context.round, refusal)
                continue
            counted[opened.position] = opened
        return counted

    def _summed(self, counted: Mapping[int, Opened], form: Form) -> Words:
        """The sum of the shuffler's shares, with its noise; nothing for messages, which have none."""
        if form.transport == "messages":
            return np.empty(0, np.uint64)
        return add([report.share for report in counted.values()]) + aggregators_noise(form)
