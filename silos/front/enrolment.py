"""Enrolment fixes once what a silo is for its whole life; `silos.front.enrolled` checks it at every start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import exp, floor
from sys import float_info
from typing import Any, Self

from fedsim.common.durable import remove_drafts
from fedsim.common.errors import InputError
from fedsim.common.identity import KEY_FILE, Identity
from fedsim.data.source import RECODING
from fedsim.privacy import gaussian, grid
from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.protocol.batch import FULL
from fedsim.protocol.plan import Release
from fedsim.protocol.statistics import Extent
from fedsim.protocol.unit import RECORD
from fedsim.wire.messages import Profile
from silos.front.config import ROOT, Config
from silos.front.enrolled import check_modes, for_the_owner, largest_dimension, no_ledger, own_of
from silos.front.own_records import OwnRecords, read_records, write_table
from silos.vault.account import Caps
from silos.vault.book import Enrolment
from silos.vault.journal import end_of
from silos.vault.ledger_file import LedgerFile

_LARGE = 10.0  # lifetime epsilon from which on an operator is warned


@dataclass(frozen=True, eq=False)
class Proposed:
    """An enrolment that is not made yet: what it would fix, checked."""

    config: Config
    records: OwnRecords
    own: Profile  # public values of the records
    caps: Caps
    warnings: tuple[str, ...]  # what is allowed, and hardly intended

    @classmethod
    def of(cls, config: Config, write: bool = False) -> Self:
        """Read and check the records and the policy; `write` lets a reader write its table first. InputError
        names what is wrong, or the state of a silo that is enrolled already or was.
        """
        if config.ledger.exists():
            hint = "is enrolled already: a lifetime is fixed once (start the silo without --enrol)"
            raise InputError(f"{ROOT}.state", str(config.state), hint)
        if config.log.exists():
            raise no_ledger(config)
        if config.state.exists():
            check_modes(config.state)
        expires, today = config.policy.lifetime.expires, datetime.now(UTC).date()
        if expires < today:
            hint = f"is past: the last day on which the silo releases anything, today ({today}) or later"
            raise InputError(f"{ROOT}.policy.lifetime.expires", str(expires), hint)
        caps = caps_of(config)
        if write:
            write_table(config)
        records = read_records(config)
        own = own_of(config, records)
        inexact = _inexact(config, caps, own)
        if inexact and not caps.total.epsilon:
            raise InputError(f"{ROOT}.policy.lifetime.epsilon", caps.epsilon, inexact)
        warnings = [*_warnings(config, own.n + own.held_out), *for_the_owner(config, records)]
        return cls(config, records, own, caps, (*warnings, *([inexact] if inexact else ())))

    @property
    def lines(self) -> list[str]:
        """What an operator reads before it is fixed."""
        own, caps, policy = self.own, self.caps, self.config.policy
        lifetime, run = policy.lifetime, policy.rules.run_budget
        classes, units = f", {own.num_classes} classes" if own.num_classes else "", f"{own.unit.name}s"
        classes += f", groups {', '.join(own.groups)}" if own.groups else ""
        today = datetime.now(UTC).date()
        days = (lifetime.expires - today).days
        price = max(float(gaussian.mu(*run)) ** 2, float_info.min)
        fit = floor(min(policy.max_runs, caps.total.mu_sq / price * (1 - 1e-9)))
        times = f"{fit:,} of full batches fit" if fit else "it may use all of the lifetime"
        return [
            f"Enrolment of silo {own.silo} in {self.config.state}. Fixed once, for the silo's whole life:",
            f"  {units}    {own.n:,}, {own.num_features} features{classes}; none is added or changed",
            *(f"  unit       {line}" for line in self._unit),
            *([f"  held out   {own.held_out:,} others, for evaluations alone"] if own.held_out else []),
            f"  lifetime   {_pair(caps.epsilon, caps.delta)}-DP, all that is ever released",
            f"  of it      {_pair(lifetime.sampled.epsilon, lifetime.sampled.delta)} for sampled batches",
            f"  last day   {lifetime.expires} (UTC), in {days:,} days: this machine's clock says {today}",
            "By the policy, which may change:",
            f"  a run      costs at most {_pair(*run)}; {times}",
            *(f"warning: {line}" for line in self.warnings),
        ]

    @property
    def _unit(self) -> list[str]:
        column = getattr(self.config.records, "person_column", None) or "person"
        whose = f"all records of one person (column {column}), {self.own.unit.relation}"
        if self.config.public_silo:
            return ["none: its records are PUBLIC, and are released without clip or noise"]
        labels = ["labels alone: features are not protected"] if self.config.policy.label_dp else []
        return labels if self.own.unit == RECORD else [*labels, whose]


def enrol(config: Config, tell: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """What an operator hands to the federation. Read and check the records, tell what is fixed from now on
    (`Proposed.lines`), draw the identity key, and open the ledger with the policy's lifetime. InputError if
    the records or the policy are wrong, or the silo is enrolled already; Refused if the ledger cannot be
    written.
    """
    policy, proposed = config.policy, Proposed.of(config, write=True)
    for line in proposed.lines:
        tell(line)
    config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_drafts(config.state)  # of an enrolment that was cut short, with keys that were never used
    known = (config.state / KEY_FILE).exists()
    identity = Identity.load(config.state) if known else Identity.create(config.state)
    identity.publish(config.state)  # that enrolment may not have come so far
    own, digest, expires = proposed.own, proposed.records.digest(identity), end_of(policy.lifetime.expires)
    fixed = digest, identity.public, proposed.caps, expires, config.holdout, policy.label_dp, config.unit
    LedgerFile.create(config.ledger, Enrolment(config.name, *fixed, config.public_silo, RECODING))
    told = own.model_dump(include={"n", "num_features", "num_classes"})
    return {"silo": own.silo, "identity": identity.public, **told, "unit": own.unit.name}


def _pair(epsilon: float, delta: float) -> str:
    return f"({shown_up(epsilon)}, {shown_up(delta)})"


def _warnings(config: Config, n: int) -> list[str]:
    """Numbers of a lifetime that promise next to nothing."""
    lifetime, found = config.policy.lifetime, []
    if lifetime.epsilon > _LARGE:
        found.append(
            f"lifetime.epsilon {lifetime.epsilon:g}: what is released may shift the odds about a "
            f"{config.unit.name} by a factor of {exp(lifetime.epsilon):.2g}; usual is {_LARGE:g} at most"
        )
    if lifetime.delta * n >= 1:
        found.append(
            f"lifetime.delta {lifetime.delta:g}: at 1/n ({shown_down(1 / n)}) or more, a whole "
            f"{config.unit.name} may be published; choose far less"
        )
    return found


def _inexact(config: Config, caps: Caps, own: Profile) -> str:
    """Why the lifetime's runs would be refused later, since exact noise is not exactly Gaussian; "" if not.

    The account's cap on that distance falls with e^epsilon. What plans need is proportional to the sum of
    mu^4 of their releases, so at most `max_rounds` (Fresh batches) times mu^2 of a run times mu^2 of all.
    A lifetime with a share for sampled plans, which need none of it, is of use in any case.
    """
    policy, most = config.policy, caps.total.mu_sq
    dimension = min(policy.exact_noise_dimension, largest_dimension(policy, own))
    census = ((Release(FULL, 1.0), policy.max_rounds),)
    at_one = grid.GridGaussian(Extent(dimension, dimension)).distance(census, 1.0)  # of mu = 1 each
    needed = at_one * most * min(most, float(gaussian.mu(*policy.rules.run_budget)) ** 2)
    if needed <= caps.total.distance:
        return ""
    return (
        f"too large for exact noise in {dimension:,} numbers: lower lifetime.epsilon (or per_run, "
        "max_rounds, max_dimension; or exact_noise_dimension, above which noise is in floating point)"
    )


def caps_of(config: Config) -> Caps:
    """The account's caps by the policy; InputError names the field."""
    lifetime = config.policy.lifetime
    try:
        return Caps.of(lifetime.epsilon, lifetime.delta, lifetime.sampled.epsilon, lifetime.sampled.delta)
    except InputError as error:
        raise InputError(f"{ROOT}.policy.{error.field}", error.value, error.hint) from None
