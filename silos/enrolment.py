"""Enrolment: what a silo is for its whole life is fixed once, and checked at every start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.common.files import remove_drafts
from fedsim.common.identity import KEY_FILE, Identity
from fedsim.privacy import gaussian, grid
from fedsim.protocol.batch import FULL
from fedsim.protocol.plan import Release
from silos.account import Caps
from silos.chain import FILE
from silos.config import ROOT, Config
from silos.journal import SECOND
from silos.ledger_file import LedgerFile
from silos.offers import Own, largest_dimension
from silos.own_records import OwnRecords, read_records, write_table


@dataclass(frozen=True)
class Enrolled:
    """Public values that an operator hands to the federation."""

    silo: str
    identity: str
    n: int
    num_features: int
    num_classes: int


def enrol(config: Config) -> Enrolled:
    """Read and check the records, draw the identity key, and open the ledger with the policy's lifetime.
    InputError if the records or the policy are wrong, or the silo is enrolled already; Refused if the ledger
    cannot be written.
    """
    if config.ledger.exists():
        hint = "is enrolled already: a lifetime is fixed once (start the silo without --enrol)"
        raise InputError(f"{ROOT}.state", str(config.state), hint)
    caps = caps_of(config)
    write_table(config)
    records = read_records(config)
    own = Own(config.name, records.n, records.num_features, records.num_classes)
    _check_exact(config, caps, own)
    config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_modes(config.state)
    remove_drafts(config.state)  # of an enrolment that was cut short, with keys that were never used
    known = (config.state / KEY_FILE).exists()
    identity = Identity.load(config.state) if known else Identity.create(config.state)
    identity.publish(config.state)  # that enrolment may not have come so far
    expires = config.policy.lifetime.expires
    LedgerFile.create(config.ledger, config.name, records.digest(identity), caps, identity.public, expires)
    return Enrolled(own.name, identity.public, own.n, own.num_features, own.num_classes)


def check_modes(state: Path) -> None:
    """Refuse a state that others than its owner may change, or a ledger that they may read. InputError names
    the file; the key's own mode is checked where it is read.
    """
    for place, forbidden, means in [
        (state, 0o022, "must be its owner's alone to write (chmod go-w)"),
        *(
            (file, 0o077, "must be its owner's alone to read and write (chmod 600)")
            for file in state.glob(f"{FILE}*")
        ),
    ]:
        if place.stat().st_mode & forbidden:
            raise InputError(f"{ROOT}.state", str(place), means)


def check_enrolment(config: Config, ledger: LedgerFile, records: OwnRecords, identity: Identity) -> None:
    """Refuse to go on with other records, another key, or another lifetime than those that were enrolled.
    InputError names what has changed.
    """
    enrolled, lifetime = ledger.enrolment, config.policy.lifetime
    caps, last = enrolled.caps, _last_day(enrolled.expires)
    promised = caps.epsilon, caps.delta, caps.total.epsilon, caps.total.delta, last
    now = lifetime.epsilon, lifetime.delta, lifetime.sampled.epsilon, lifetime.sampled.delta, lifetime.expires
    if config.name != enrolled.silo:
        raise InputError(f"{ROOT}.name", config.name, f"the silo was enrolled as {enrolled.silo!r}")
    if promised != now:
        given = f"epsilon {caps.epsilon:g}, delta {caps.delta:g}, until {last}"
        hint = f"the silo enrolled with another lifetime, which stays as it is ({given})"
        raise InputError(f"{ROOT}.policy.lifetime", lifetime.model_dump(mode="json"), hint)
    if identity.public != enrolled.identity:
        raise InputError(f"{ROOT}.state", str(config.state), "holds another key than the one enrolled")
    if records.digest(identity) != enrolled.records:
        hint = "the records have changed since enrolment; bring back the old ones, or enrol anew elsewhere"
        raise InputError(f"{ROOT}.records", config.records.name, hint)


def _last_day(end: int) -> date:
    return (datetime.fromtimestamp(end / SECOND, UTC) - timedelta(days=1)).date()


def _check_exact(config: Config, caps: Caps, own: Own) -> None:
    """Refuse a lifetime whose runs would be refused later, since exact noise is not exactly Gaussian.

    The account's cap on that distance falls with e^epsilon. What plans need is proportional to the sum of
    mu^4 of their releases, so at most `max_rounds` (Fresh batches) times mu^2 of a run times mu^2 of all.
    A lifetime with a share for sampled plans, which need none of it, is of use in any case.
    """
    policy, most = config.policy, caps.total.mu_sq
    dimension = min(policy.exact_noise_dimension, largest_dimension(policy, own))
    census = ((Release(FULL, 1.0), policy.max_rounds),)
    at_one = grid.distance(dimension, census, grid.sensitivity(dimension))  # of mu = 1 each
    needed = at_one * most * min(most, float(gaussian.mu(*policy.run_budget)) ** 2)
    if needed > caps.total.distance and not caps.total.epsilon:
        hint = (
            f"too large for exact noise in {dimension:,} numbers: lower lifetime.epsilon (or per_run, "
            "max_rounds, max_dimension; or exact_noise_dimension, above which noise is in floating point)"
        )
        raise InputError(f"{ROOT}.policy.lifetime.epsilon", caps.epsilon, hint)


def caps_of(config: Config) -> Caps:
    """The account's caps by the policy; InputError names the field."""
    lifetime = config.policy.lifetime
    try:
        return Caps.of(lifetime.epsilon, lifetime.delta, lifetime.sampled.epsilon, lifetime.sampled.delta)
    except InputError as error:
        raise InputError(f"{ROOT}.policy.{error.field}", error.value, error.hint) from None
