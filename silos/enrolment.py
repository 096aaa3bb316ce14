"""Enrolment: what a silo is for its whole life is fixed once, and checked at every start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from fedsim.common.errors import InputError
from fedsim.common.identity import KEY_FILE, Identity
from silos.account import Caps
from silos.clock import SECOND
from silos.config import ROOT, Config
from silos.ledger_file import LedgerFile
from silos.own_records import OwnRecords, read_records


@dataclass(frozen=True)
class Enrolled:
    """What an operator hands to the federation: all of it is public."""

    silo: str
    identity: str
    n: int
    num_features: int
    num_classes: int


def enrol(config: Config) -> Enrolled:
    """Read and check the records, draw the identity key, and open the ledger with the policy's lifetime.

    Raises:
        InputError: the records or the policy are wrong, or the silo is enrolled already.
        Refused: the ledger cannot be written.
    """
    records, caps = read_records(config), caps_of(config)
    if config.ledger.exists():
        expected = "is enrolled already: a lifetime is fixed once (start the silo without --enrol)"
        raise InputError(f"{ROOT}.state", str(config.state), expected)
    config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = (config.state / KEY_FILE).exists()  # of an enrolment that was cut short
    identity = Identity.load(config.state) if known else Identity.create(config.state)
    expires = config.policy.lifetime.expires
    LedgerFile.create(config.ledger, config.name, records.digest(identity), caps, identity.public, expires)
    return Enrolled(config.name, identity.public, records.n, records.num_features, records.num_classes)


def check_enrolment(config: Config, ledger: LedgerFile, records: OwnRecords, identity: Identity) -> None:
    """Refuse to go on with other records, another key, or another lifetime than those that were enrolled.

    Raises:
        InputError: names what has changed.
    """
    enrolled, lifetime = ledger.enrolment, config.policy.lifetime
    caps, last = enrolled.caps, _last_day(enrolled.expires)
    promised = caps.epsilon, caps.delta, caps.total.epsilon, caps.total.delta, last
    now = lifetime.epsilon, lifetime.delta, lifetime.sampled.epsilon, lifetime.sampled.delta, lifetime.expires
    if config.name != enrolled.silo:
        raise InputError(f"{ROOT}.name", config.name, f"the silo was enrolled as {enrolled.silo!r}")
    if promised != now:
        given = f"epsilon {caps.epsilon:g}, delta {caps.delta:g}, until {last}"
        expected = f"the silo enrolled with another lifetime, which stays as it is ({given})"
        raise InputError(f"{ROOT}.policy.lifetime", lifetime.model_dump(mode="json"), expected)
    if identity.public != enrolled.identity:
        raise InputError(f"{ROOT}.state", str(config.state), "holds another key than the one enrolled")
    if records.digest(identity) != enrolled.records:
        expected = (
            "the records have changed since enrolment; bring back the old ones, or enrol anew elsewhere"
        )
        raise InputError(f"{ROOT}.records", config.records.name, expected)


def _last_day(end: int) -> date:
    return (datetime.fromtimestamp(end / SECOND, UTC) - timedelta(days=1)).date()


def caps_of(config: Config) -> Caps:
    """The account's caps by the policy.

    Raises:
        InputError: names the field.
    """
    lifetime = config.policy.lifetime
    try:
        return Caps.of(lifetime.epsilon, lifetime.delta, lifetime.sampled.epsilon, lifetime.sampled.delta)
    except InputError as error:
        raise InputError(f"{ROOT}.policy.{error.field}", error.value, error.expected) from None
