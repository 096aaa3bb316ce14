"""A sweep's `summary.json`: what each combination came to and how it was chosen, as types that write and read
themselves.

A field that does not apply is left out; a number that does not exist, or is infinite, is None.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedsim.common.errors import InputError
from fedsim.common.files import RECORD, of_this_version
from fedsim.common.serialise import canonical
from fedsim.report.summary import (
    AGAIN,
    FILE,
    FORMAT,
    Baseline,
    CombinationRow,
    Labels,
    Part,
    Privacy,
    Setting,
    Summary,
    read_json,
    validated,
)
from fedsim.scenario.model import Criterion

NOT_ENDED = (
    "has not ended; `fedsim simulate --resume`, `fedsim deploy --resume` or the same `fedsim sweep` goes on"
)
SHARED = (
    "runs that differ in step size, clip norm and epsilon alone, taken together, in this sweep or another: "
    "they share noise (common random numbers), so that two of them can show what the noise of each hides"
)
Kind = TypeVar("Kind", bound=Part)


class Runs(Part):
    """Numbers of cells: run, from the record, and failed."""

    made: int
    from_cache: int
    failed: int


class FailureRow(Part):
    """A cell that came to nothing; `kind` is of `fedsim.simulation.failures`."""

    varied: Labels
    chosen: Setting
    trial: int
    kind: str
    message: str


class CandidateRow(Part):
    """A candidate's `values` over repetitions, None where one failed; the criterion's field is their mean."""

    varied: Labels
    private: bool
    candidate: Setting
    final_train_loss: float | None = None
    final_metric: float | None = None
    private_error: float | None = None
    private_metric: float | None = None
    values: list[float | None]
    selected: bool


class Tuning(Part):
    """The choice of candidates."""

    criterion: Criterion
    repetitions: int
    private: bool
    scored_by: str | None = None  # the metric of private scores
    weighing: str | None = None  # of these scores
    candidates: list[CandidateRow]

    def mean(self, candidate: CandidateRow) -> float | None:
        """A candidate's mean of the criterion; None where a run failed."""
        return dict(candidate)[self.criterion]  # type: ignore[no-any-return]


class BaselineGroup(Part):
    """Baselines on the records and the problem of some combinations, by their place; see `Baseline`.

    `varied` is what those have in common.
    """

    varied: Labels
    combinations: list[int]
    baselines: list[Baseline]


class SweepSummary(Part):
    """`metric` is plotted, `against` another if there is one; `error_name` is None where none finished."""

    format: int
    scenario: str
    status: str
    trials: int
    runs: Runs
    wall_seconds: float
    metric: str
    against: str | None = None
    error_name: str | None
    varied: list[str]
    combinations: list[CombinationRow]
    baselines: list[BaselineGroup]
    failures: list[FailureRow]
    tuning: Tuning | None
    privacy: Privacy
    code: dict[str, str]

    def levels(self) -> list[tuple[str, Baseline]]:
        """Every baseline by its label, which names its records and problem where there are several."""
        several = len(self.baselines) > 1
        return [
            (f"{one.label}, {title(group.varied, True)}" if several else one.label, one)
            for group in self.baselines
            for one in group.baselines
        ]

    @property
    def repetitions(self) -> int:
        """The number of trials that baselines are means of."""
        return self.trials

    @property
    def unmeasured(self) -> str:
        """Why there is no value of any metric; empty where there is one."""
        return "" if any(row.trials for row in self.combinations) else "no trial is complete"

    @property
    def chosen(self) -> list[str]:
        """The fields that were tuned."""
        return list(dict.fromkeys(field for row in self.combinations for field in row.chosen or {}))


def read_summary(directory: Path) -> Summary | SweepSummary:
    """The summary of a run's or a sweep's directory. InputError if it is missing, damaged or of another
    version, or if the run or the sweep has not ended.
    """
    from fedsim.report.sections.registry import FullSummary  # with torch, which a refused sweep waits for

    path = directory / FILE
    if not directory.is_dir():
        raise InputError("RUN", str(directory), "no such directory")
    if not path.exists():
        of_this_version("RUN", directory)
        missing = f"{FILE} is missing; `fedsim simulate` and `fedsim sweep` write it"
        raise InputError("RUN", str(directory), NOT_ENDED if (directory / RECORD).exists() else missing)
    tree = read_json(path)
    known = tree if isinstance(tree, dict) else {}
    if known.get("format") != FORMAT:
        wrote = known.get("versions")
        version = wrote.get("fedsim-isrl", "unknown") if isinstance(wrote, dict) else "unknown"
        hint = (
            f"format {known.get('format')!r}, written by fedsim {version}; this version reads format {FORMAT}"
        )
        raise InputError("RUN", str(path), f"{hint}: {AGAIN}")
    if "combinations" in known:
        return validated(SweepSummary, tree, path)
    return validated(FullSummary, tree, path)


def read_only(kind: type[Kind], directory: Path) -> Kind:
    """The summary of a directory that must be of a run, or of a sweep; errors as of `read_summary`."""
    found = read_summary(directory)
    if not isinstance(found, kind):
        raise InputError("RUN", str(directory), f"is of a {'run' if kind is SweepSummary else 'sweep'}")
    return found


def title(varied: Mapping[str, Any], private: bool, without: Collection[str | None] = ()) -> str:
    """The varied fields but those in `without`.

    >>> title({"algorithm": "local_sgd", "privacy.epsilon": 1.5}, private=True)
    'local_sgd, epsilon=1.5'
    >>> title({"algorithm": "local_sgd", "privacy.epsilon": 1.5}, False, without=["privacy.epsilon"])
    'local_sgd (non-private)'
    """
    parts = [
        value if isinstance(value, str) else f"{last_part(field)}={_number(value)}"
        for field, value in varied.items()
        if field not in without
    ]
    return ", ".join(parts or ["the scenario"]) + ("" if private else " (non-private)")


def last_part(field: str) -> str:
    """The last part of a dotted field: `epsilon` of `privacy.epsilon`."""
    return field.rpartition(".")[2]


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, int) else canonical(value)
