"""Read a run directory back, refusing one that is half there or of another version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from fedsim.common.errors import InputError
from fedsim.results.audit_file import AuditPart, read_audit
from fedsim.results.summary import FORMAT

Model = TypeVar("Model", bound=BaseModel)
METRICS = ("trial", "variant", "round", "test_error", "test_loss", "excess_risk", "gradient_mapping_sq")
AGAIN = "a run directory is what `fedsim simulate` writes; run the scenario again"


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class SiloRow(_Part):
    """What a silo allowed, guaranteed and spent; `epsilon_claimed` is what a theorem says, where one does."""

    name: str
    n: int
    epsilon_budget: float | None
    delta: float
    epsilon_guaranteed: float | None
    epsilon_claimed: float | None = None
    epsilon_spent: float | None
    noise_multiplier: float
    releases: int


class PrivacyPart(_Part):
    """See `fedsim.results.privacy_statement.statement`."""

    unit: str
    adjacency: str
    guarantee: str
    mechanism: str
    calibration: str
    sampler: list[str]
    accountant: str
    epsilon_spent_note: str
    trusted: list[str]
    not_private: list[str]
    notices: list[str] = []
    silos: list[SiloRow]


class Trials(_Part):
    """How many repetitions."""

    asked: int
    finished: int


class Summary(_Part):
    """The part of `summary.json` that a page shows."""

    format: int
    scenario: str
    status: str
    algorithm: str
    problem: str
    runtime: str
    trials: Trials
    rounds: int
    dimension: int
    wall_seconds: float
    metrics: dict[str, Any]
    participation: dict[str, Any] = {}
    heterogeneity: dict[str, Any] = {}
    objective: dict[str, Any] = {}
    privacy: PrivacyPart
    versions: dict[str, str]
    environment: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run directory's content; tables as {column: values}."""

    directory: Path
    summary: Summary
    scenario: str
    description: str
    metrics: dict[str, list[Any]]
    silos: dict[str, list[Any]]
    spend: dict[str, list[Any]]
    audit: AuditPart | None = None


def read(directory: Path) -> Run:
    """Read everything that the page needs; no data set, no Ray.

    Raises:
        InputError: names the file that is missing, damaged, or of another version.
    """
    if not directory.is_dir():
        raise InputError("RUN", str(directory), f"no such directory; {AGAIN}")
    summary = _summary(directory / "summary.json")
    scenario, description = scenario_of(directory / "scenario.yaml")
    return Run(
        directory,
        summary,
        scenario,
        description,
        _table(directory / "metrics.parquet", METRICS),
        _table(directory / "silos.parquet", ("trial", "variant", "silo", "test_error", "test_loss")),
        _table(directory / "spend.parquet", ("silo", "round", "epsilon_spent", "budget")),
        read_audit(directory),
    )


def _summary(path: Path) -> Summary:
    try:
        tree = json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise InputError(
            "RUN", str(path), f"line {error.lineno}: not valid JSON, cut short?; {AGAIN}"
        ) from None
    found = tree.get("format") if isinstance(tree, dict) else None
    if found != FORMAT:
        wrote = tree.get("versions", {}) if isinstance(tree, dict) else {}
        version = wrote.get("fedsim-isrl", "unknown") if isinstance(wrote, dict) else "unknown"
        expected = (
            f"format {found!r}, written by fedsim {version}; this version reads format {FORMAT}: {AGAIN}"
        )
        raise InputError("RUN", str(path), expected)
    return validated(Summary, tree, path, AGAIN)


def validated(kind: type[Model], tree: Any, path: Path, remedy: str) -> Model:
    """The contents of a file as a model; InputError with the first thing that is wrong."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError("RUN", str(path), f"{where}: {first['msg'].lower()}; {remedy}") from None


def scenario_of(path: Path) -> tuple[str, str]:
    """A scenario file's text without its seed, which removes the noise, and the description in it; InputError
    if it is damaged or missing.
    """
    try:
        tree = yaml.safe_load(text_of(path))
    except yaml.YAMLError:
        tree = None
    if not isinstance(tree, dict):
        raise InputError("RUN", str(path), f"not a scenario, cut short?; {AGAIN}")
    shown = {key: value for key, value in tree.items() if key != "seed"}
    return yaml.safe_dump(shown, sort_keys=False), str(tree.get("description", ""))


def text_of(path: Path) -> str:
    """A file's text; InputError if it is damaged or missing."""
    return str(_opened(path, lambda: path.read_text(encoding="utf-8")))


def _table(path: Path, columns: tuple[str, ...]) -> dict[str, list[Any]]:
    table = _opened(path, lambda: pq.read_table(path))
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise InputError("RUN", str(path), f"has no column {missing[0]!r}; {AGAIN}")
    return {name: table[name].to_pylist() for name in columns}


def _opened(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except FileNotFoundError:
        raise InputError("RUN", str(path), f"is missing; {AGAIN}") from None
    except (pa.ArrowException, UnicodeDecodeError):
        raise InputError("RUN", str(path), f"is damaged, cut short?; {AGAIN}") from None
    except OSError as error:
        reason = error.strerror or "damaged"
        raise InputError("RUN", str(path), f"cannot be read ({reason}); {AGAIN}") from None
