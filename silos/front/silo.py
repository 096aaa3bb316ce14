"""A deployed silo: messages in, signed messages out, whatever carries them.

What leaves is what `fedsim.wire.messages` has, and of that only replies are made of records: they are
what the gate of an admitted run returns (`silos.vault.gate`), each after its round was debited and the reply
stored on the disk. A refusal says what was asked, what the policy allows, what the ledger holds, or that a
run broke down, never how: the exception goes into the log, by its type and place. So a server learns from
whatever it sends nothing that is made of records, but for those replies. How long an answer takes is not
covered.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from pydantic import ValidationError
from torch import Tensor

from fedsim.common import installed
from fedsim.common.errors import InputError, Refused
from fedsim.common.identity import Identity
from fedsim.common.section import check_few
from fedsim.wire.frames import MAX_HEAD, Frame, decode, opened, sealed
from fedsim.wire.messages import (
    Admission,
    Ask,
    Close,
    Closed,
    Greeting,
    Hello,
    Offer,
    Profile,
    Refusal,
    Reply,
    evaluation_of,
    named,
)
from silos.front.config import ROOT, Config, Policy
from silos.front.enrolled import (
    check_enrolment,
    check_modes,
    for_the_owner,
    largest_dimension,
    no_ledger,
    own_of,
)
from silos.front.ledger_time import away, life
from silos.front.open_runs import OpenRuns
from silos.front.own_records import OwnRecords, read_published, read_records
from silos.front.self_test import check_machine
from silos.vault.book import DAY
from silos.vault.journal import SECOND
from silos.vault.ledger import RunLedger
from silos.vault.ledger_file import LedgerFile
from silos.vault.vault import Vault, spent_of

if TYPE_CHECKING:  # the last two are loaded where the operator decides, or rosters are pinned
    from fedsim.protocol.plan import Part
    from fedsim.protocol.rows import Rows
    from fedsim.wire.messages import Message
    from silos.front.pending import PendingOffers
    from silos.front.pooled import Pinned

log = logging.getLogger("silos.silo")

_ARRAYS = 4  # arrays of the largest dimension in a broadcast; fedsim's own algorithms send two at most
_BROKEN = "the silo could not answer (see its log)"
_MODELS: dict[str, type[Hello | Offer | Ask | Close]] = {m.kind: m for m in (Hello, Offer, Ask, Close)}
_LOST = (
    "the silo's ledger does not hold what this server has seen of it: it is an older copy, or another silo's"
)


class Silo:
    """One silo, for any number of threads."""

    def __init__(
        self,
        own: Profile,
        policy: Policy,
        runs: OpenRuns,
        vault: Vault,
        identity: Identity,
        pending: PendingOffers | None,
    ) -> None:
        self._own, self._policy, self._runs, self._vault = own, policy, runs, vault
        self.ledger, self._identity, self._pending = vault.ledger, identity, pending
        self._told: list[str] = []

    @classmethod
    def open(cls, config: Config, insecure_simulation: bool = False) -> Self:
        """Read the records, check them and the policy against the enrolment, and take the ledger; for tests,
        an `insecure_simulation` draws noise from the seed that the configuration has. InputError if the silo
        is not enrolled, or is not what was enrolled; Refused if the ledger is damaged, or another process
        holds it.
        """
        simulation = config.insecure_simulation
        if (simulation is not None) != insecure_simulation:
            hint = "needs --insecure-simulation, and that needs it: noise from a seed keeps nothing private"
            raise InputError(f"{ROOT}.insecure_simulation", simulation and simulation.model_dump(), hint)
        check_machine()
        own, records, identity, runs = parts(config)
        pending, approvals = None, None
        ledger = LedgerFile.open(config.ledger, {"notices": list(runs.notices)})
        try:
            check_enrolment(config, ledger.enrolment, records, identity)
            for line in for_the_owner(config, records):
                print(f"warning: {line}", file=sys.stderr, flush=True)
            if config.policy.approve == "ask":
                from silos.front.pending import PendingOffers

                pending = PendingOffers(config.state, config.policy.approve_days)
                pending.begin(ledger.now())
                approvals = pending.folder
            seed = None if simulation is None else (simulation.seed, simulation.trial, simulation.run)
            rows = _parts(config, records, identity)
            vault = Vault(rows, config.policy.rules, ledger, identity, approvals, seed)
        except BaseException:
            ledger.close()
            raise
        return cls(own, config.policy, runs, vault, identity, pending)

    @property
    def frame_bytes(self) -> int:
        """Length of the longest frame that the protocol needs."""
        return MAX_HEAD + _ARRAYS * 8 * largest_dimension(self._policy, self._own)

    def close(self) -> None:
        """Let the ledger go; every further frame is refused."""
        self.ledger.close()

    def answer(self, data: bytes) -> bytes:
        """The frame that answers a frame; whatever the bytes are, what is wrong with them is a refusal."""
        try:
            return self._signed(*self._answer(data))
        except Refused as refusal:
            return self._signed(Refusal.of(refusal), {})
        except Exception as error:  # its text may be made of records
            log.error("%s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
            return self._signed(Refusal(reason=_BROKEN), {})

    def tend(self) -> bool:
        """Write an entry after a day without one: the next start sees for how long no silo ran."""
        with suppress(Refused), self.ledger.lock:
            if self.ledger.now() >= self.ledger.book.time + DAY:
                self.ledger.note("alive", {})
        return not self.ledger.failed

    def _signed(self, message: Message, arrays: Mapping[str, Tensor]) -> bytes:
        body = message.body(arrays)
        return sealed(body, self._identity.sign(body))

    def _answer(self, data: bytes) -> tuple[Message, Mapping[str, Tensor]]:
        frame = decode(opened(data)[0])
        message = parsed(frame)
        self.ledger.check_usable()
        if not self.ledger.knows(message.head):
            raise Refused(_LOST)
        if isinstance(message, Ask):
            return self._ask(message, frame.arrays)
        if frame.arrays:
            raise Refused(f"a frame of kind {frame.kind} has no arrays")
        match message:
            case Hello():
                return self._greeting(), {}
            case Offer():
                return self._admission(message), {}
            case Close():
                return self._closed(message), {}

    def _greeting(self) -> Greeting:
        lines = self.warn()
        if self.ledger.now() > self.ledger.enrolment.expires:
            raise Refused("; ".join(lines))
        return Greeting(
            **dict(self._own),
            version=installed.version(),
            notices=(*self._runs.notices, *lines),
            time=self.ledger.now() // SECOND,
            head=self.ledger.head,
        )

    def warn(self) -> list[str]:
        """What is to be known of the ledger's time; into the log when it changes, so at most once a day."""
        now = self.ledger.now()
        lines = [*life(self.ledger.book, now), *away(now)]
        if lines != self._told:
            self._told = lines
            for line in lines:
                log.warning(line)
        return lines

    def _admission(self, offer: Offer) -> Admission:
        """Admit a run, durably, before anything of it is released; once only, however often it is offered."""
        text = offer.text
        digest = named(text)
        run = self.ledger.session(offer.session) or self._opened(offer, text, digest)
        if run.record.offer != digest:
            raise Refused("this session is known with another offer")
        if self._pending is not None:
            self._pending.remove(digest)
        return Admission(session=offer.session, run=run.run, **run.record.terms, head=run.record.admitted)

    def _opened(self, offer: Offer, text: str, digest: str) -> RunLedger:
        evaluation = offer.evaluated
        self.ledger.check_room(text, self._policy.max_runs)
        if self._pending is not None:
            self._pending.check(digest, self.ledger.now())
            if offer.records == "holdout" and not self._evaluates(offer):
                self._pending.check_not_approved(digest)
        made, plan = self._runs.considered(offer)
        run = self._vault.admit(plan, offer.session, text, offer.study.model_dump())
        if run is None:
            assert self._pending is not None
            if made.isolated is not None:
                made.isolated.close()
            self._pending.wait(offer, made, plan, self.ledger.now(), self._runs.considered)
        self._runs.admitted(self._vault, run.run, made, plan)
        log.info("admitted run %s of the study %s", run.run, ascii(offer.study.name))
        if evaluation is not None:
            try:
                self._admission(evaluation)
            except Exception as error:  # is answered when it is offered
                log.warning("its evaluation is not admitted: %s", type(error).__name__)
        return run

    def _evaluates(self, offer: Offer) -> bool:
        """Whether it is the evaluation of an admitted run."""
        return any(evaluation_of(session) == offer.session for session in self.ledger.book.sessions)

    def _ask(self, ask: Ask, broadcast: Mapping[str, Tensor]) -> tuple[Message, Mapping[str, Tensor]]:
        run = self._vault.open(ask.run)
        arrays = self._runs.answer(self._vault, run, ask.round, broadcast, ask.mark)
        paid, head = run.digest(ask.round), run.head_of(ask.round)
        return Reply(run=ask.run, round=ask.round, broadcast=paid, head=head), arrays

    def _closed(self, close: Close) -> Closed:
        self.ledger.expire()
        run = self.ledger.run(close.run)
        evaluation = self.ledger.session(evaluation_of(run.record.session)) if close.over else None
        for each in (evaluation, run):
            if each is not None and each.open:
                self._runs.close(self._vault, each)
        record = run.record
        spent = record.facts.get("epsilon_spent")  # none where its days were over
        return Closed(
            run=run.run,
            epsilon_spent=spent_of(run, self._runs.plan(run)) if spent is None else spent,
            rounds=tuple(run.debited),
            broadcasts=tuple(run.digest(r) for r in run.debited),
            receipt=self._vault.receipt(run),
            head=record.after,
        )


def parts(config: Config) -> tuple[Profile, OwnRecords, Identity, OpenRuns]:
    """What a silo is made of beside its ledger; errors as of `Silo.open`."""
    if not config.ledger.is_file():
        raise no_ledger(config)
    check_modes(config.state)
    records, identity = read_records(config), Identity.load(config.state)
    own = own_of(config, records)
    pinned: Pinned | None = None
    if config.rosters:
        from silos.front.pooled import Pinned  # with secure aggregation

        most = config.policy.max_epsilon_colluding
        pinned = Pinned.load(config.rosters, config.name, identity, f"{ROOT}.rosters", most)
    public = read_published(config, records)
    seeded = config.insecure_simulation is not None
    runs = OpenRuns(own, config.policy, seeded, pinned, config.start_child, public)
    return own, records, identity, runs


def _parts(config: Config, records: OwnRecords, identity: Identity) -> dict[Part, Rows]:
    if config.holdout is None:
        return {"training": records.rows}
    training, held_out = records.divided(config.holdout, identity, config.unit)
    return {"training": training, "holdout": held_out}


def parsed(frame: Frame) -> Hello | Offer | Ask | Close:
    """What a frame asks for. Refused if a silo is asked for no such thing, or a field is wrong."""
    model = _MODELS.get(frame.kind)
    if model is None:
        raise Refused(f"a silo is sent one of {', '.join(_MODELS)}, not {frame.kind[:100]!r}")
    try:
        return model.model_validate(frame.head)
    except ValidationError as error:
        check_few(error, frame.kind)
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join([frame.kind, *map(str, first["loc"])])
        given = None if first["type"] == "missing" else first["input"]
        raise Refused(str(InputError(field, given, first["msg"]))) from None
