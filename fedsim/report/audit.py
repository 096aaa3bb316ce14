"""An audit's results beside the claims: the file in a run directory, a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pydantic import Field

from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.report.style import GREY, from_zero, label, look, styled
from fedsim.report.summary import Part, read_json, validated
from fedsim.report.tables import TextTable

ADVERSARIES = {
    "worst_server": "malicious server",
    "honest_server": "honest-but-curious server",
    "model": "model alone",
}
_SHORT, _MOVED = ["malicious\nserver", "curious\nserver", "model\nalone"], ["moved", "others\nmoved"]
FILE = "audit.json"
NOTE = "of each bound by itself, not of all silos together"
_AGAIN = "not an audit; write it again by `fedsim audit --run`, or remove it"
PARTIES = {"worst_server": "server", "shuffler": "shuffler", "both": "both together"}  # who reads sums


def adversaries(audit: AuditPart) -> dict[str, str]:
    """The adversaries of an audit, by their names in the table."""
    return PARTIES if audit.sums else ADVERSARIES


def audit_table(audit: AuditPart) -> TextTable:
    """For each audited silo its claim, and the epsilon that each adversary attained.

    A run with secure aggregation has a row for each silo and party; nothing is claimed against a party that
    is not there.
    """
    few = audit.of_silos > len(audit.silos)
    some = f"{len(audit.silos):,} of {audit.of_silos:,} silos" if few else "All silos"
    if audit.sums:
        rows = [(silo, party) for silo in audit.silos for party in PARTIES if silo.by(party) is not None]
        columns: dict[str, Callable[[tuple[AuditedSilo, str]], str]] = {
            "silo": lambda row: row[0].name,
            "read by": lambda row: PARTIES[row[1]],
            "claimed epsilon": lambda row: shown_up(row[0].claimed_against(row[1]), 3),
            "attained": lambda row: _attained(*row),
            "sum moved, of sensitivity": lambda row: _ratio(row[0].sensitivity_ratio, 4),
            "other silos' parts moved": lambda row: _ratio(row[0].cross_silo_ratio, 2),
        }
        caption = f"{some}; lower bounds on epsilon, of what each party reads."
        return TextTable.of(caption, rows, columns, ["silo", "read by", "claimed", "attained", *_MOVED])
    by_silo: dict[str, Callable[[AuditedSilo], str]] = {
        "silo": lambda silo: silo.name,
        "claimed epsilon": lambda silo: shown_up(silo.claimed, 3),
        **({"worth to a person (records)": _worth} if audit.swaps else {}),
        **{f"attained by {name}": partial(_attained, adversary=key) for key, name in ADVERSARIES.items()},
    }
    short = ["silo", "claimed", *["to a person\n(records)"] * audit.swaps, *_SHORT]
    if not audit.swaps:  # else how far one record moves an answer was not tried
        by_silo["answer moved, of sensitivity"] = lambda silo: _ratio(silo.sensitivity_ratio, 4)
        by_silo["other silos' answers moved"] = lambda silo: _ratio(silo.cross_silo_ratio, 2)
        short += _MOVED
    return TextTable.of(f"{some}; lower bounds on epsilon.", audit.silos, by_silo, short)


def _attained(silo: AuditedSilo, adversary: str) -> str:
    attained, claimed = silo.by(adversary), silo.claimed_against(adversary)
    if attained is None:
        return "none"
    if silo.swapped > 1:
        return f"{shown_down(attained.attained, 3)} ({shown_down(attained.attained / silo.claimed, 3)} x)"
    notes = [f"{math.floor(100 * attained.attained / claimed)} %"] if claimed else []
    if attained.attained > claimed and not silo.findings:  # one bound in twenty is above the truth
        notes.append("by chance")
    return shown_down(attained.attained, 3) + (f" ({', '.join(notes)})" if notes else "")


def _worth(silo: AuditedSilo) -> str:
    epsilon = silo.worst_server.claimed
    return f"{'not known' if epsilon is None else shown_up(epsilon, 3)} ({silo.swapped})"


def _ratio(value: float | None, digits: int) -> str:
    return "infinite" if value is None else shown_up(value, digits)


def verdict(audit: AuditPart) -> list[str]:
    """One line, and for each silo whose claim is broken the reason."""
    if audit.broken:
        lines = [f"{silo.name}: {finding}" for silo in audit.silos for finding in silo.findings]
        return ["BROKEN: at least one silo's claim does not hold", *lines]
    swapped = max((silo.swapped for silo in audit.silos), default=1)
    loss = f"what is attained is what a person of {swapped} records loses"
    lines = [f"{loss}: no violation, since the claim is about one record"] * audit.swaps
    if audit.unit == "group":
        lines = ["claimed and attained is epsilon_attribute: of a record's group alone"]
    return ["no claim is broken by what was tried", *lines]


def audit_figure(audit: AuditPart) -> Figure:
    """For each silo a bar for the claim, and one for each adversary within it; of sums a claim for each."""
    silos = audit.silos[:30]
    with styled(1.0 + 0.55 * len(silos)) as (figure, axes):
        rows = np.arange(len(silos), dtype=float)
        bounded: dict[str, Any] = {"color": "white", "edgecolor": GREY, "hatch": "....", "label": "claimed"}
        if not audit.sums:
            axes.barh(rows, [silo.claimed for silo in silos], height=0.86, **bounded)
        for index, (adversary, name) in enumerate(adversaries(audit).items()):
            parts = [silo.by(adversary) for silo in silos]
            values = [0.0 if part is None else part.attained for part in parts]
            settings: dict[str, Any] = {"color": look(index).colour, "hatch": ("", "//", "xx")[index]}
            at = rows + 0.26 * (index - 1)
            if audit.sums:
                claimed = [0.0 if part is None else part.claimed or 0.0 for part in parts]
                axes.barh(at, claimed, height=0.26, **bounded)
                bounded["label"] = None
            axes.barh(at, values, height=0.22, edgecolor="white", linewidth=0.4, label=name, **settings)
        axes.set_yticks(rows, [label(silo.name) for silo in silos])
        axes.set(xlabel="epsilon", ylim=(len(silos) - 0.45, -0.55))
        axes.grid(visible=False, axis="y")
        from_zero(axes, "x")
        return figure


class AttainedPart(Part):
    """An adversary's result: a lower bound on epsilon, and the epsilon claimed against it."""

    attained: float  # the bound to quote, of these:
    estimator: str
    runs: tuple[int, int]  # in each world
    mean_difference: float = 0.0
    plan_curve: float = 0.0
    assumption_free: float
    normality_p: float = 0.0  # of the test of normality
    claimed: float | None = None


class AuditedSilo(Part):
    """One silo; a ratio that is infinite is None.

    Under secure aggregation `worst_server` reads totals, `shuffler` is the second party, `both` are the two.
    """

    name: str
    n: int = 0
    delta: float = 0.0
    claimed: float
    attained: float
    swapped: int = 1  # records of a person who is swapped, where the claim is about one record
    attained_share: float | None = None  # of the claim
    sensitivity_ratio: float | None
    cross_silo_ratio: float | None
    answers_searched: int = 0
    noise_ratio: float  # measured over stated
    noise_correlation: float = 0.0
    noise_p: float = 1.0
    other_records: str = ""
    worst_server: AttainedPart
    honest_server: AttainedPart | None = None
    model: AttainedPart | None = None
    shuffler: AttainedPart | None = None
    both: AttainedPart | None = None
    findings: list[str]  # what breaks the promise, in words

    def by(self, adversary: str) -> AttainedPart | None:
        """The result of an adversary, if it attacked."""
        return dict(self)[adversary]  # type: ignore[no-any-return]

    def claimed_against(self, adversary: str) -> float:
        """Epsilon."""
        attained = self.by(adversary)
        return self.claimed if attained is None or attained.claimed is None else attained.claimed


class ConfidencePart(Part):
    """Confidence of the bounds, and the probability that a sound run is called broken."""

    bound: float
    note: str = NOTE
    false_alarm: float


class AuditPart(Part):
    """The file that `fedsim audit --run` writes."""

    scenario: str = ""
    broken: bool
    confidence: ConfidencePart
    effort: float = 1.0  # share of the default work
    unit: str = "record"  # what differs between two data sets
    search: dict[str, int] = Field({})  # how many broadcasts of each kind of round, and records
    audited: int = 0
    of_silos: int
    silos: list[AuditedSilo]

    @property
    def swaps(self) -> bool:
        """Whether persons attack a plan that protects a record."""
        return any(silo.swapped > 1 for silo in self.silos)

    @property
    def sums(self) -> bool:
        """Whether the run used secure aggregation."""
        return any(silo.shuffler or silo.both for silo in self.silos)


def read_audit(directory: Path) -> AuditPart:
    """A run's audit. InputError if the file is damaged."""
    path = directory / FILE
    return validated(AuditPart, read_json(path, _AGAIN), path, _AGAIN)
