"""An offer tried out by a command, beside the running daemon or without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsim.common.errors import Refused
from fedsim.wire.frames import Frame
from fedsim.wire.messages import Offer
from silos.front.config import Config
from silos.front.enrolled import check_enrolment
from silos.front.pending import Pending
from silos.front.silo import parsed, parts
from silos.vault.book import read
from silos.vault.journal import Clock


def tried_out(config: Config, head: Mapping[str, Any]) -> Pending:
    """What becomes of an offer now, beside a running daemon: nothing is spent or stored.

    InputError as of `Silo.open`; Refused where it would not be admitted, whoever decides.
    """
    _, records, identity, runs = parts(config)
    book = read(config.ledger)
    check_enrolment(config, book.enrolment, records, identity)
    offer = parsed(Frame(Offer.kind, {**head, "head": ""}, {}))
    assert isinstance(offer, Offer)
    now = Clock(book.time).now()
    if offer.session in book.sessions:
        raise Refused("the ledger knows the session of this offer: a run of it was admitted")
    book.check_room(offer.text, config.policy.max_runs, now)
    made, plan = runs.considered(offer)
    book.account.check(plan.price.whole, offer.records)
    return Pending.of(offer, made, plan, now, config.policy.approve_days, runs.considered)
