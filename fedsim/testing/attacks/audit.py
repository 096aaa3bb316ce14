"""An audit: attack a scenario's transcript, and set what the attack attains beside what is claimed.

Each instrument finds what others miss. The exact search (`sensitivity`) tries whether a record's term is that
record's and within its clip; requests outside the plan (`probes`) and the noise (`noise`) are tried by
themselves; and runs in two worlds (`servers`) show what all of it together lets an adversary tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite

from fedsim.common.errors import InputError
from fedsim.common.serialise import finite
from fedsim.report.audit import NOTE, AuditedSilo, AuditPart, ConfidencePart
from fedsim.scenario.resolve import Resolved
from fedsim.testing.attacks import estimate, noise, probes, sensitivity, servers
from fedsim.testing.attacks.estimate import Claim
from fedsim.testing.attacks.parties import Party
from fedsim.testing.attacks.search import Attack, search
from fedsim.testing.attacks.servers import Samples
from fedsim.testing.attacks.setting import Setting, others, prepare

ALARM = 1e-4
"""Probability that a scenario that keeps its promise is found broken, all silos and tests together."""
ADVERSARY: dict[Party, str] = {"server": "worst_server", "shuffler": "shuffler", "both": "both"}
"""Names of adversaries under secure aggregation, by the party that reads the sums."""
Observe = Callable[[str, float], None]  # (what is being done, share of it that is done)


def attack(
    resolved: Resolved,
    share: float = 1.0,
    observe: Observe = lambda what, share: None,
    person: int | None = None,
    groups: bool = False,
) -> AuditPart:
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
            raise InputError("person", person, "left out: the mechanism protects records' groups alone")
        setting = setting.by_persons(person)
    setting = setting.by_groups() if groups else setting
    silos = setting.audited()
    claims = {silo: estimate.claim_of(setting, silo) for silo in silos}
    planned, worst, honest = estimate.effort(setting, silos, claims, share)
    attacks = {}
    for place, silo in enumerate(silos):
        observe("looking for the worst records and points", place / len(silos))
        attacks[silo] = search(setting, silo)
    points, records = planned.values()
    count = _counted(observe, "exact search", len(attacks) * len(setting.kinds) * points * records)
    searched = {i: sensitivity.search(setting, i, attacks[i], points, records, count) for i in silos}
    samples = _sampled(setting, attacks, worst, honest, observe)
    found = [_silo(setting, i, claims[i], attacks[i], searched[i], samples[i], len(silos)) for i in silos]
    return AuditPart(
        scenario=resolved.scenario.name,
        broken=any(silo.findings for silo in found),
        confidence=ConfidencePart(bound=estimate.CONFIDENCE, note=NOTE, false_alarm=ALARM),
        effort=share,
        unit=_unit(setting),
        search=planned,
        audited=len(found),
        of_silos=len(setting.data),
        silos=found,
    )


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
    setting: Setting, attacks: dict[int, Attack], worst: dict[int, int], honest: int, observe: Observe
) -> dict[int, dict[str, Samples]]:
    """Scores of the malicious parties, and without secure aggregation of the honest-but-curious server."""
    readers, sums = _readers(setting), setting.resolved.sums
    stage = "malicious server" if sums is None else "server, shuffler and both"
    count = _counted(observe, stage, 2 * len(readers) * sum(worst.values()))
    samples = {
        silo: {
            name: servers.malicious(own, silo, chosen, worst[silo], count)
            for name, own in readers.items()
            if isfinite(own.admitted[silo].epsilon_guaranteed)
        }
        for silo, chosen in attacks.items()
    }
    if sums is not None:
        return samples
    count = _counted(observe, "honest-but-curious server", 2 * honest)
    read = servers.honest_but_curious(setting, servers.choose_pairs(setting, attacks), honest, count)
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
) -> AuditedSilo:
    alarm = ALARM / (2 * silos)  # one half for the noise, one for the runs
    measured = noise.measure(setting.as_added(), silo, chosen, alarm)
    claims = _claims(setting, silo, samples)
    outside = probes.probe(setting, silo, chosen)
    findings = [*_exact_findings(found, _unit(setting)), *outside, *measured.faults]
    for shared in dict.fromkeys(claims.values()):
        own = [each for name, each in samples.items() if claims[name] == shared]
        findings += estimate.proven(own, shared, alarm * len(own) / len(samples))
    adversaries = {name: estimate.bounds(*each, claims[name]) for name, each in samples.items()}
    most = adversaries["worst_server"].attained
    return AuditedSilo(
        name=setting.resolved.names[silo],
        n=claim.n,
        delta=claim.delta,
        claimed=claim.epsilon,
        attained=most,
        swapped=setting.swap(silo),
        attained_share=most / claim.epsilon if claim.epsilon else None,
        sensitivity_ratio=finite(found.sensitivity),
        cross_silo_ratio=finite(found.cross),
        answers_searched=found.asked,
        noise_ratio=measured.ratio,
        noise_correlation=measured.repeated,
        noise_p=measured.p,
        other_records=others(setting, silo),
        **adversaries,
        findings=findings,
    )


def _claims(setting: Setting, silo: int, adversaries: Iterable[str]) -> dict[str, Claim]:
    """The silo's claim against each adversary: of a person who is swapped, what that of a record is worth."""
    read = {name: estimate.claim_of(own, silo) for name, own in _readers(setting).items()}
    claims = {name: read.get(name, read["worst_server"]) for name in adversaries}
    if setting.swapped == 1:
        return claims
    return {name: estimate.worth(claim, setting.swap(silo)) for name, claim in claims.items()}


def _exact_findings(found: sensitivity.Found, unit: str) -> list[str]:
    lines = [found.repeated] if found.repeated else []
    if found.sensitivity > 1 + sensitivity.TOLERANCE:
        ratio = f"{found.sensitivity:.4g} times its sensitivity"
        lines.append(f"one {unit} moves an answer by {ratio} ({found.where['sensitivity']})")
    if found.cross > sensitivity.TOLERANCE:
        lines.append(
            f"one {unit} moves another silo's answer by {found.cross:.4g} times that silo's "
            f"sensitivity ({found.where['cross']})"
        )
    return lines
