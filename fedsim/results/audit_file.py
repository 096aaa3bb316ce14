"""The file of an audit in a run directory."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fedsim.common.errors import InputError

FILE = "audit.json"
_AGAIN = "write it again by `fedsim audit --run`, or remove it"


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class AttainedPart(_Part):
    """What one adversary attained: a lower bound on epsilon."""

    attained: float
    estimator: str
    runs: tuple[int, int]
    assumption_free: float


class AuditedSilo(_Part):
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


class ConfidencePart(_Part):
    """Of the bounds, and how often a sound run would be called broken."""

    bound: float
    false_alarm: float


class AuditPart(_Part):
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
    if not path.exists():
        return None
    try:
        return AuditPart.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, OSError) as error:  # pydantic's and json's errors are ValueErrors
        reason = str(error).splitlines()[0]
        raise InputError("RUN", str(path), f"not an audit ({reason}); {_AGAIN}") from None
