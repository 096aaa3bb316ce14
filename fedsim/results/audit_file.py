"""The file of an audit in a run directory."""

from __future__ import annotations

from pathlib import Path

from fedsim.results.summary import Part, read_json, validated

FILE = "audit.json"
_AGAIN = "not an audit; write it again by `fedsim audit --run`, or remove it"


class AttainedPart(Part):
    """What one adversary attained: a lower bound on epsilon."""

    attained: float
    estimator: str
    runs: tuple[int, int]
    assumption_free: float


class AuditedSilo(Part):
    """One silo; a ratio that is infinite is None."""

    name: str
    claimed: float
    attained: float
    sensitivity_ratio: float | None
    cross_silo_ratio: float | None
    noise_ratio: float
    worst_server: AttainedPart
    honest_server: AttainedPart | None = None
    model: AttainedPart | None = None
    findings: list[str]

    def by(self, adversary: str) -> AttainedPart | None:
        """What this adversary attained."""
        found: AttainedPart | None = getattr(self, adversary)
        return found


class ConfidencePart(Part):
    """Of the bounds, and how often a sound run would be called broken."""

    bound: float
    false_alarm: float


class AuditPart(Part):
    """The file that `fedsim audit --run` writes."""

    broken: bool
    of_silos: int
    confidence: ConfidencePart
    silos: list[AuditedSilo]


def read_audit(directory: Path) -> AuditPart | None:
    """A run's audit, if there is one.

    Raises:
        InputError: the file is damaged.
    """
    path = directory / FILE
    return validated(AuditPart, read_json(path, _AGAIN), path, _AGAIN) if path.exists() else None
