"""The file of an audit in a run directory."""

from __future__ import annotations

from pathlib import Path

from fedsim.results.summary import Part, read_json, validated

FILE = "audit.json"
_AGAIN = "not an audit; write it again by `fedsim audit --run`, or remove it"


class AttainedPart(Part):
    """What one adversary attained: a lower bound on epsilon, and what is claimed against it."""

    attained: float
    claimed: float | None = None
    estimator: str
    runs: tuple[int, int]
    assumption_free: float


class AuditedSilo(Part):
    """One silo; a ratio that is infinite is None.

    Of sums over silos `worst_server` reads totals, `shuffler` is the second party, `both` are the two.
    """

    name: str
    claimed: float
    attained: float
    sensitivity_ratio: float | None
    cross_silo_ratio: float | None
    noise_ratio: float
    worst_server: AttainedPart
    honest_server: AttainedPart | None = None
    model: AttainedPart | None = None
    shuffler: AttainedPart | None = None
    both: AttainedPart | None = None
    findings: list[str]

    def by(self, adversary: str) -> AttainedPart | None:
        """What this adversary attained."""
        found: AttainedPart | None = getattr(self, adversary)
        return found

    def claimed_against(self, adversary: str) -> float:
        """Epsilon."""
        found = self.by(adversary)
        return self.claimed if found is None or found.claimed is None else found.claimed


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

    @property
    def sums(self) -> bool:
        """Whether silos' answers were added up."""
        return any(silo.shuffler or silo.both for silo in self.silos)


def read_audit(directory: Path) -> AuditPart | None:
    """A run's audit, if there is one.

    Raises:
        InputError: the file is damaged.
    """
    path = directory / FILE
    return validated(AuditPart, read_json(path, _AGAIN), path, _AGAIN) if path.exists() else None
