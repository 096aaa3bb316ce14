"""The malicious server against running daemons: real processes, real noise, and nothing but frames.

Two daemons hold records that differ in one (`neighbours`). The server plays the scenario's plan with both,
run after run, at the broadcasts that tell most, and scores what it hears by its likelihood ratio (`reading`).
What that attains is a lower bound on epsilon, to be compared with what the daemons claimed at admission.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, inf
from typing import Any

from fedsim.common.errors import InputError
from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.report.audit import AttainedPart
from fedsim.report.tables import TextTable
from fedsim.testing.attacks import estimate
from fedsim.testing.attacks.audit import ALARM, Observe
from fedsim.testing.attacks.daemon_pair import OPTION, Openings, Runs, Worlds
from fedsim.testing.attacks.estimate import Claim
from fedsim.testing.attacks.neighbours import WORLDS, Neighbours, noise, scores
from fedsim.testing.attacks.noise import Measured, judged
from fedsim.testing.attacks.probes import outside, probe_daemon
from fedsim.testing.attacks.setting import Setting
from fedsim.wire.messages import Admission, Offer
from silos.vault.considered import SEEDED

_SECONDS, _RUN, _ROUND, _NUMBER = 100.0, 0.03, 0.01, 2e-5
"""Seconds that an audit takes by default; and seconds a run, a round and a number drawn are taken to cost."""
_LEAST_RUNS, _WORTH_IT, _LISTENED = 25, 3000, 512


@dataclass(frozen=True)
class DaemonAudit:
    """The findings about a silo's daemon."""

    setting: Setting
    silo: int
    admission: Admission  # what it claimed; the same in both worlds
    worst: AttainedPart  # bounds that the malicious server attained
    noise: Measured  # over what is stated
    findings: tuple[str, ...]  # what breaks the promise, in words
    alarm: float  # probability of findings about daemons that keep it
    share: float  # of the default work
    minutes: float  # of the runs alone

    @cached_property
    def tree(self) -> dict[str, Any]:
        """Plain values; `fedsim audit --daemons DIR --json` prints them."""
        admission, worst, claimed = self.admission, self.worst, self.worst.claimed
        resolved = self.setting.resolved
        return {
            "scenario": resolved.scenario.name,
            "daemons": True,
            "broken": self.broken,
            "confidence": {"bound": estimate.CONFIDENCE, "false_alarm": self.alarm},
            "effort": self.share,
            "silo": resolved.names[self.silo],
            "n": resolved.sizes[self.silo],
            "delta": admission.delta,
            "claimed": claimed,
            "attained_share": worst.attained / claimed if claimed else None,
            **worst.model_dump(exclude={"claimed"}),
            "runs_a_minute": worst.runs[0] / self.minutes if self.minutes else None,
            "noise_multiplier": admission.noise_multiplier,
            "noise_ratio": self.noise.ratio,
            "noise_correlation": self.noise.repeated,
            "noise_p": self.noise.p,
            "notices": list(admission.notices),
            "findings": list(self.findings),
        }

    @property
    def broken(self) -> bool:
        """Whether the daemons' claim does not hold."""
        return bool(self.findings)

    @property
    def verdict(self) -> list[str]:
        """One line, and where the claim is broken the reason."""
        if not self.broken:
            return ["the claim is not broken by what was tried"]
        return ["BROKEN: the daemons' claim does not hold", *self.findings]

    @property
    def table(self) -> TextTable:
        """A table of one row: the silo's claimed and attained epsilon."""
        tree = self.tree
        share = f" ({floor(100 * tree['attained_share'])} %)" if tree["attained_share"] is not None else ""
        cells = {
            "silo": tree["silo"],
            "n": f"{tree['n']}",
            "delta": shown_up(tree["delta"], 4),
            "claimed epsilon": shown_up(tree["claimed"], 3),
            "attained by malicious server": f"{shown_down(tree['attained'], 3)}{share}",
            "runs a data set": f"{min(tree['runs']):,}",
            "noise": f"{tree['noise_ratio']:.3f}",
        }
        short = ["silo", "n", "delta", "claimed", "malicious\nserver", "runs a\ndata set", "noise"]
        return TextTable("Lower bound on epsilon.", list(cells), [list(cells.values())], short=short)


def attack(
    setting: Setting,
    found: Neighbours,
    offer: Offer,
    openings: Openings,
    share: float = 1.0,
    observe: Observe = lambda what, share: None,
    alarm: float = ALARM,
) -> DaemonAudit:
    """Audit a silo whose two worlds are held by daemons, with a share of the default work. Daemons that keep
    their promise are found broken with probability `alarm`.

    Raises:
        InputError: they are not this scenario's daemons, have seeded noise, or do not answer.
        Refused: they do not admit the run, or break every one off.
    """
    runs, wanted = Runs(found.lines), _wanted(setting, found, share)
    findings: list[str] = []
    seconds = 0.0
    for opening in openings:
        with opening as worlds:
            _check(setting, found.silo, worlds)
            if not runs.count:
                beyond = outside(setting, found.silo)
                findings = list(probe_daemon(worlds.alone(WORLDS[0]), offer, found.lines, beyond))
            start, before = time.perf_counter(), runs.count
            refusal = runs.fill(
                worlds, offer, wanted, lambda count: observe("malicious server, over sockets", count / wanted)
            )
            seconds += time.perf_counter() - start
        if refusal is not None and runs.count == before:
            raise refusal
        if runs.count == wanted:
            break
    admission, n = runs.admission, setting.resolved.sizes[found.silo]
    claim = Claim(setting.census(found.silo), n, admission.epsilon_guaranteed or inf, admission.delta)
    worst, measured, more = _judged(found, runs, claim, alarm)
    findings += more
    judged_so = worst, measured, tuple(findings)
    return DaemonAudit(setting, found.silo, admission, *judged_so, alarm, share, seconds / 60)


def _wanted(setting: Setting, found: Neighbours, share: float) -> int:
    """Runs in each world: enough to bound 0.9 of the scenario's claim, or as many as fit; `share` of that."""
    claim = estimate.claim_of(setting, found.silo)
    wanted = max(_WORTH_IT, estimate.runs_needed(claim, estimate.is_gaussian(claim.census)))
    cost = _RUN + len(found.lines) * (_ROUND + _NUMBER * setting.resolved.problem.dimension)
    return max(_LEAST_RUNS, ceil(share * min(wanted, _SECONDS / cost)))


def _check(setting: Setting, silo: int, worlds: Worlds) -> None:
    outline, name = setting.resolved.outline, setting.resolved.names[silo]
    wanted = (name, setting.resolved.sizes[silo], outline.num_features, outline.num_classes)
    for greeting in worlds.greet():
        found = (greeting.silo, greeting.n, greeting.num_features, greeting.num_classes)
        if found != wanted:
            raise InputError(OPTION, found, f"daemons of (name, n, features, classes) = {wanted}")
        if SEEDED in greeting.notices:
            hint = "a daemon without --insecure-simulation: a seed's noise is none to an attacker"
            raise InputError(OPTION, greeting.silo, hint)


def _judged(
    found: Neighbours, runs: Runs, claim: Claim, alarm: float
) -> tuple[AttainedPart, Measured, list[str]]:
    """Bounds by the runs, their noise, and findings about both, each at half of the alarm rate."""
    n, z = claim.n, runs.admission.noise_multiplier
    worlds = [runs.answers(world) for world in range(len(WORLDS))]
    samples = tuple(scores(found.lines, answers, n, z) for answers in worlds)
    measured = judged(*noise(found.lines, [answers[:_LISTENED] for answers in worlds[0]], n, z), alarm / 2)
    findings = [*measured.faults, *estimate.proven([(samples[0], samples[1])], claim, alarm / 2)]
    return estimate.bounds(samples[0], samples[1], claim), measured, findings
