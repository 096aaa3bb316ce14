"""An audit: attack a scenario's transcript, and set what the attack attains beside what is claimed.

Each instrument finds what others miss. The exact search (`sensitivity`) tries whether a record's term is that
record's and within its clip; requests outside the plan (`probes`) and the noise (`noise`) are tried by
themselves; and runs in two worlds (`servers`) show what all of it together lets an adversary tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from fedsim.common.errors import InputError
from fedsim.common.serialise import finite
from fedsim.scenario.resolve import Resolved
from fedsim.testing.attacks import estimate, noise, probes, sensitivity, servers
from fedsim.testing.attacks.estimate import Bounds, Claim, Effort
from fedsim.testing.attacks.parties import Party
from fedsim.testing.attacks.search import Attack, search
from fedsim.testing.attacks.servers import Samples
from fedsim.testing.attacks.setting import Setting, others, prepare

ALARM = 1e-4
"""Probability that a scenario that keeps its promise is found broken, all silos and tests together."""
ADVERSARY: dict[Party, str] = {"server": "worst_server", "shuffler": "shuffler", "both": "both"}
"""Names of adversaries under secure aggregation, by the party that reads the sums."""
Observe = Callable[[str, float], None]  # (what is being done, share of it that is done)


@dataclass(frozen=True)
class SiloAudit:
    """The findings about one silo."""

    name: str
    claim: Claim  # what it was promised
    claims: dict[str, Claim]  # by adversary, where they are promised different things
    exact: sensitivity.Found  # of the search without noise
    noise: noise.Measured  # of the noise alone
    # bounds by adversary: worst_server, honest_server, model; under secure aggregation worst_server,
    # shuffler, both
    adversaries: dict[str, Bounds]
    others: str
    findings: tuple[str, ...]  # what breaks the promise, in words
    swapped: int  # units that the two worlds differ in: more than one where persons attack a plan for records


@dataclass(frozen=True)
class Audit:
    """The findings about all audited silos."""

    resolved: Resolved
    silos: tuple[SiloAudit, ...]
    total: int
    share: float
    effort: Effort
    unit: str = "record"  # what differs, or the plan's

    @property
    def broken(self) -> bool:
        """Whether some silo's promise is."""
        return any(silo.findings for silo in self.silos)


def attack(
    resolved: Resolved,
    share: float = 1.0,
    observe: Observe = lambda what, share: None,
    person: int | None = None,
    groups: bool = False,
) -> Audit:
    """Audit every silo of a small federation, ten of a large one.

    Args:
        share: of the work that brings bounds near the claims, or that fits into about two minutes.
        person: attack by a person of so many records, also where the plan protects a record.
        groups: attack the group of one record alone, and the claim about it.

    Raises:
        InputError: the scenario claims nothing, or its data cannot be read.
        Refused: a silo does not accept the plan.
    """
    setting = prepare(resolved)
    if person is not None:
        if setting.groups_alone:
            hint = "left out: the mechanism protects records' groups alone"
            raise InputError("person", person, hint)
        setting = setting.by_persons(person)
    if groups:
        setting = setting.by_groups()
    silos = setting.audited()
    claims = {silo: estimate.claim_of(setting, silo) for silo in silos}
    planned = estimate.effort(setting, silos, claims, share)
    attacks = {}
    for place, silo in enumerate(silos):
        observe("looking for the worst records and points", place / len(silos))
        attacks[silo] = search(setting, silo)
    points, records = planned.search
    count = _counted(observe, "exact search", len(attacks) * len(setting.kinds) * points * records)
    searched = {i: sensitivity.search(setting, i, attacks[i], points, records, count) for i in silos}
    samples = _sampled(setting, attacks, planned, observe)
    found = [_silo(setting, i, claims[i], attacks[i], searched[i], samples[i], len(silos)) for i in silos]
    return Audit(resolved, tuple(found), len(setting.data), share, planned, _unit(setting))


def _unit(setting: Setting) -> str:
    return "group" if setting.groups_alone else setting.unit.name


def _counted(observe: Observe, stage: str, total: int) -> servers.Done:
    """A callback that counts finished work and reports its share of the stage."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        observe(stage, done / total)

    return count


def _sampled(
    setting: Setting, attacks: dict[int, Attack], planned: Effort, observe: Observe
) -> dict[int, dict[str, Samples]]:
    """Scores of the malicious parties, and without secure aggregation of the honest-but-curious server."""
    readers, sums = _readers(setting), setting.resolved.sums
    stage = "malicious server" if sums is None else "server, shuffler and both"
    count = _counted(observe, stage, 2 * len(readers) * sum(planned.worst.values()))
    samples = {
        silo: {
            name: servers.malicious(own, silo, chosen, planned.worst[silo], count)
            for name, own in readers.items()
            if isfinite(own.admitted[silo].epsilon_guaranteed)
        }
        for silo, chosen in attacks.items()
    }
    if sums is not None:
        return samples
    count = _counted(observe, "honest-but-curious server", 2 * planned.honest)
    read = servers.honest_but_curious(setting, servers.choose_pairs(setting, attacks), planned.honest, count)
    return {silo: samples[silo] | read.get(silo, {}) for silo in samples}


def _readers(setting: Setting) -> dict[str, Setting]:
    """By malicious adversary: the server alone, or the parties under secure aggregation."""
    if setting.resolved.sums is None:
        return {"worst_server": setting}
    return {ADVERSARY[party]: setting.read_by(party) for party in setting.parties}


def _silo(
    setting: Setting,
    silo: int,
    claim: Claim,
    chosen: Attack,
    found: sensitivity.Found,
    samples: dict[str, Samples],
    silos: int,
) -> SiloAudit:
    alarm = ALARM / (2 * silos)  # one half for the noise, one for the runs
    measured = noise.measure(setting.as_added(), silo, chosen, alarm)
    claims = _claims(setting, silo, samples)
    outside = probes.probe(setting, silo, chosen)
    findings = [*_exact_findings(found, _unit(setting)), *outside, *measured.faults]
    for shared in dict.fromkeys(claims.values()):
        own = [each for name, each in samples.items() if claims[name] == shared]
        findings += estimate.proven(own, shared, alarm * len(own) / len(samples))
    adversaries = {name: estimate.bounds(*each, claims[name]) for name, each in samples.items()}
    name, beside = setting.resolved.names[silo], others(setting, silo)
    swapped = setting.swap(silo)
    return SiloAudit(name, claim, claims, found, measured, adversaries, beside, tuple(findings), swapped)


def _claims(setting: Setting, silo: int, adversaries: Iterable[str]) -> dict[str, Claim]:
    """The silo's claim against each adversary: of a person who is swapped, what that of a record is worth."""
    read = {name: estimate.claim_of(own, silo) for name, own in _readers(setting).items()}
    claims = {name: read.get(name, read["worst_server"]) for name in adversaries}
    if setting.swapped == 1:
        return claims
    return {name: estimate.worth(claim, setting.swap(silo)) for name, claim in claims.items()}


def _exact_findings(found: sensitivity.Found, unit: str) -> list[str]:
    lines = [found.repeated] if found.repeated else []
    if found.ratios["sensitivity"] > 1 + sensitivity.TOLERANCE:
        ratio = f"{found.ratios['sensitivity']:.4g} times its sensitivity"
        lines.append(f"one {unit} moves an answer by {ratio} ({found.where['sensitivity']})")
    if found.ratios["cross"] > sensitivity.TOLERANCE:
        lines.append(
            f"one {unit} moves another silo's answer by {found.ratios['cross']:.4g} times that silo's "
            f"sensitivity ({found.where['cross']})"
        )
    return lines


_EACH = "of each bound by itself, not of all silos together"


def as_json(found: Audit) -> dict[str, Any]:
    """The findings of an audit as plain values; infinity is null."""
    return {
        "scenario": found.resolved.scenario.name,
        "broken": found.broken,
        "confidence": {"bound": estimate.CONFIDENCE, "note": _EACH, "false_alarm": ALARM},
        "effort": found.share,
        "unit": found.unit,
        "search": found.effort.search._asdict(),
        "audited": len(found.silos),
        "of_silos": found.total,
        "silos": [_row(silo) for silo in found.silos],
    }


def _row(silo: SiloAudit) -> dict[str, Any]:
    adversaries = {
        name: bounds_row(each, silo.claims[name]) | {"claimed": finite(silo.claims[name].epsilon)}
        for name, each in silo.adversaries.items()
    }
    attained = adversaries["worst_server"]["attained"]
    return {
        "name": silo.name,
        "n": silo.claim.n,
        "delta": silo.claim.delta,
        "claimed": silo.claim.epsilon,
        "attained": attained,
        "swapped": silo.swapped,
        "attained_share": attained / silo.claim.epsilon if silo.claim.epsilon else None,
        "sensitivity_ratio": finite(silo.exact.ratios["sensitivity"]),
        "cross_silo_ratio": finite(silo.exact.ratios["cross"]),
        "answers_searched": silo.exact.asked,
        "noise_ratio": silo.noise.ratio,
        "noise_correlation": silo.noise.repeated,
        "noise_p": silo.noise.p,
        "other_records": silo.others,
        **adversaries,
        "findings": list(silo.findings),
    }


def bounds_row(found: Bounds, claim: Claim) -> dict[str, Any]:
    """Bounds as plain values, and the one to quote."""
    value, name = found.attained(estimate.is_gaussian(claim.census), claim.shaped)
    return {
        "attained": value,
        "estimator": name,
        "runs": list(found.runs),
        "mean_difference": found.mean_difference,
        "plan_curve": found.curve,
        "assumption_free": found.assumption_free,
        "normality_p": found.normality,
    }
