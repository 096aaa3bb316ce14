"""What a silo was enrolled as, checked at every start."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.common.identity import Identity
from fedsim.data.source import RECODING
from fedsim.privacy.grid import MAX_RECORDS
from fedsim.problems.glm import BUILT_IN
from fedsim.problems.kinds import NETWORK
from fedsim.protocol.unit import RECORD, stated
from fedsim.wire.messages import Profile
from silos.front.config import ROOT, Config, Policy
from silos.front.own_records import OwnRecords
from silos.vault.book import FILE, Enrolment
from silos.vault.journal import SECOND


def no_ledger(config: Config) -> InputError:
    """The error where a ledger is missing; one that was there must not be replaced by a new enrolment."""
    hint = "has no ledger: no silo is enrolled there (--enrol, once), or its folder or volume is not mounted"
    if config.log.exists():
        hint = "has lost its ledger: a silo has run there. Mount the folder or volume that has it, or "
        hint += "retire the silo; its budget counts as spent"
    return InputError(f"{ROOT}.state", str(config.state), hint)


def check_modes(state: Path) -> None:
    """Refuse a state that others than its owner may change, or a ledger that they may read. InputError names
    the file; the key's own mode is checked where it is read.
    """
    for places, forbidden, means in (
        ([state, *state.glob("offers")], 0o022, "must be its owner's alone to write (chmod go-w)"),
        ([*state.glob(f"{FILE}*")], 0o077, "must be its owner's alone to read and write (chmod 600)"),
    ):
        for place in places:
            if place.stat().st_mode & forbidden:
                raise InputError(f"{ROOT}.state", str(place), means)


def own_of(config: Config, records: OwnRecords) -> Profile:
    """The silo's public numbers, of its unit; under `add_remove` none is made of records.

    InputError where nothing says whose a record is, for persons of more records than exact noise covers, and
    by the number of units that is public: where all records are one person's, and for a holdout that leaves
    fewer than 2 units in a part.
    """
    unit, units = config.unit, records.units(config.unit)
    expected = unit.expected_persons
    if unit != RECORD and units < 2 and expected is None:
        hint = "all records are one person's, so that everything that is sent would be about that person"
        raise InputError(f"{ROOT}.records.person_column", units, hint)
    if unit != RECORD and config.policy.exact_noise_dimension and records.rows.n > MAX_RECORDS:
        hint = f"exact noise covers the rounding of sums over {MAX_RECORDS:,} records, and there are more; "
        hint += "take fewer, or set policy.exact_noise_dimension: 0"
        raise InputError(f"{ROOT}.records", config.records.name, hint)
    count = expected or units
    held_out = round((config.holdout or 0.0) * count)
    if config.holdout is not None and not 2 <= held_out <= count - 2:
        hint = f"holds out {held_out} of {count} {unit.name}s; at least 2, and 2 must be left to train"
        raise InputError(f"{ROOT}.holdout", config.holdout, hint)
    return Profile(
        silo=config.name,
        n=count - held_out,
        held_out=held_out,
        unit=unit,
        num_features=records.num_features,
        num_classes=records.num_classes,
        groups=records.groups,
        public=config.public_silo,
    )


def for_the_owner(config: Config, records: OwnRecords) -> list[str]:
    """Lines that follow from private numbers, and are shown to the owner alone; none tells such a number."""
    lines, most = records.warnings, config.policy.max_records
    if config.unit != RECORD and records.rows.n > most:
        hint = "the silo holds more records, so that a round may take longer than 60 s; privacy is the same"
        lines = [*lines, f"policy.max_records {most:,}: {hint}"]
    count = records.units(config.unit)
    expected = config.unit.expected_persons or count
    if count < 2 * expected and expected < 2 * count:
        return lines
    far = "half or less" if 2 * count <= expected else "twice or more"
    hint = f"the true number is {far}, so that sums and weights are far off; the noise is right"
    return [*lines, f"unit.expected_persons {expected:,}: {hint}"]


def check_enrolment(config: Config, enrolled: Enrolment, records: OwnRecords, identity: Identity) -> None:
    """InputError names what has changed since enrolment: the records, the key, the lifetime or its terms."""
    caps, lifetime = enrolled.caps, config.policy.lifetime
    last = (datetime.fromtimestamp(enrolled.expires / SECOND, UTC) - timedelta(days=1)).date()
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
    for field, own, fixed, span in (
        ("holdout", config.holdout, enrolled.holdout, "life"),
        ("policy.label_dp", config.policy.label_dp, enrolled.label_dp, "account"),
        ("public_silo", config.public_silo, enrolled.public, "life"),
        ("unit", stated(config.unit), stated(enrolled.unit), "account"),
    ):
        if own != fixed:
            hint = f"the silo enrolled with {fixed}, for its whole {span}; enrol anew elsewhere"
            raise InputError(f"{ROOT}.{field}", own, hint)
    if records.digest(identity) != enrolled.records:
        hint = "the records have changed since enrolment; bring back the old ones, or enrol anew elsewhere"
        if records.recoded and enrolled.recoding != RECODING:
            hint = f"the silo enrolled by rule {enrolled.recoding} for categories; by rule {RECODING} they "
            hint += "are other features: give `state` another folder and enrol anew (fedsim silo --config "
            hint += "silo.yaml --enrol); what both lifetimes release adds up"
        raise InputError(f"{ROOT}.records", config.records.name, hint)


def largest_dimension(policy: Policy, own: Profile) -> int:
    """d of the largest model that an offer may name: all but networks' follow from the silo's features."""
    if NETWORK in policy.allowed_problems or policy.plug_ins:
        return policy.max_dimension
    kinds = [BUILT_IN[name] for name in policy.allowed_problems if name in BUILT_IN]
    outputs = max((kind.outputs(own.num_classes) for kind in kinds), default=1)
    return min(policy.max_dimension, own.num_features * outputs)
