"""A shuffler over a small federation, and a server that asks it and reads what it gets."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from support.rosters import FORM, Parties, counts

from fedsim.secagg.reports import Form, ReportContext, add, open_inner, total
from fedsim.secagg.roster import Roster
from fedsim.secagg.shuffling import Release, Request
from shuffler.keys import Keys
from shuffler.rounds import Shuffler
from shuffler.store import FileStore, MemoryStore


class Round:
    """All parties of a round, and every silo's integers; `kind` may be a shuffler that has been weakened."""

    def __init__(
        self,
        parties: Parties | None = None,
        kind: type[Shuffler] = Shuffler,
        form: Form = FORM,
        store: FileStore | None = None,
        rosters: Sequence[Roster] = (),
    ) -> None:
        self.parties = parties or Parties()
        self.keys = Keys(self.parties.shuffler, self.parties.shuffler_identity)
        pinned = (self.parties.roster, *rosters)
        self.shuffler = kind(pinned, self.keys, store := MemoryStore() if store is None else store)
        self.form = form
        self.context = self.parties.context(form=form, start=store.start)
        self.numbers = counts(np.random.default_rng(0), self.parties.count, form)
        self.reports = [self.parties.report(i, row, self.context) for i, row in enumerate(self.numbers)]

    def again(self, store: FileStore) -> Request:
        """The shuffler with other notes, and all reports sealed for their start."""
        self.shuffler.store = store
        self.context = replace(self.context, start=store.start)
        self.reports = [self.parties.report(i, row, self.context) for i, row in enumerate(self.numbers)]
        return self.request()

    def request(self, members: Sequence[int] | None = None, context: ReportContext | None = None) -> Request:
        """The reports of some silos, or of all."""
        chosen = self.reports if members is None else [self.reports[i] for i in members]
        return Request(context or self.context, tuple(chosen))

    def release(self, request: Request | None = None) -> Release:
        """What the server gets."""
        request = request or self.request()
        return self.read(self.shuffler.shuffle(request), request)

    def read(self, frame: bytes, request: Request) -> Release:
        return Release.read(frame, request, bytes.fromhex(self.keys.identity.public))

    def total(self, release: Release) -> np.ndarray[Any, Any]:
        """The result of a server that checks no signature."""
        opened = [open_inner(each, release.context, self.parties.server) for each in release.inner]
        shares = [np.frombuffer(each[68:], "<u8") for each in opened]
        return total(add(shares), release.sum).reshape(len(self.form.scales), self.form.dimension)
