"""Results of a run, on every runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedsim.common.files import OF_TRIAL, remove_models
from fedsim.data.recipe import Fitted
from fedsim.protocol.links import Variant
from fedsim.protocol.plan import Admitted, Statement, Terms
from fedsim.report.model_file import read_models, write_models
from fedsim.report.record import (
    DAMAGED,
    ENDED,
    Ended,
    Finished,
    HasMetrics,
    Measurement,
    Record,
    Row,
    SiloStatement,
)
from fedsim.report.summary import FEW, Deployment, Interval
from fedsim.scenario.metric import METRICS
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved

Observer = Callable[[Measurement], None]


def value(row: HasMetrics, name: str) -> float | None:
    """A metric of a row; None where it was not measured.

    >>> from fedsim.report.record import SiloMeasurement
    >>> value(SiloMeasurement(0, "private", "a", 0.5, 0.7, 9, {"auc": 0.75}), "auc")
    0.75
    """
    own: float | None = row._asdict().get(name)
    return row.more.get(name) if own is None else own


def mean(values: Sequence[float | None]) -> float | None:
    """None if there is no value, or one is missing.

    >>> mean([1.0, 3.0]), mean([1.0, None])
    (2.0, None)
    """
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present and len(present) == len(values) else None


def interval90(values: np.ndarray) -> Interval:
    """The 5th and 95th percentile, where 90 % of single runs fall; of fewer than `FEW` the extremes."""
    low, high = np.percentile(values, [0, 100] if len(values) < FEW else [5, 95])
    return float(low), float(high)


def metric_text(row: HasMetrics, metric: str) -> str:
    """`test error 0.1234`."""
    number = value(row, metric)
    return f"{METRICS[metric].title} {'not defined' if number is None else f'{number:.4f}'}"


@dataclass(frozen=True)
class TrialResult:
    """A finished trial."""

    trial: int  # its number
    models: dict[Variant, Tensor]  # the final parameters of each variant, flat (d,)
    statements: list[Statement]  # each silo's account of the run
    rows: list[Any] = field(default_factory=list)  # rows of `fedsim.report.record`'s tables
    fitted: Fitted | None = None  # how its records were prepared; None where only the silos know


class NotKept(Exception):
    """A trial that has ended could not be written."""


class Results:
    """Results of a run so far, in a record, so that an interrupted run loses no finished trial.

    Args:
        record: where finished trials are appended; on disk with the file of it.
        folder: the run's directory, which has the record's file, and each trial's models until the run has
            ended; None: they stay in memory.
    """

    def __init__(self, record: Record | None = None, folder: Path | None = None) -> None:
        self._record, self.folder = record or Record(), folder
        self._unfinished: list[Any] = []
        self.trials: dict[int, TrialResult] = {}

    def add(self, measurement: Measurement) -> None:
        """Add a measurement; a number that is not finite, such as an error over no spread, becomes None."""
        self._unfinished.append(Measurement(*map(_defined, measurement)))

    def finish(self, result: TrialResult) -> None:
        """Append a trial that has ended, with what was measured in it.

        NotKept if it cannot be written, and is in memory only.
        """
        self.trials[result.trial] = result
        self._unfinished += [*result.rows, *(_row(result.trial, each) for each in result.statements)]
        rows = [row for row in self._unfinished if row.trial == result.trial]
        try:
            digest = ""
            if self.folder is not None:
                digest = write_models(result.models, result.fitted, self._file(result.trial))
            recipe = None if result.fitted is None else result.fitted.recipe.model_dump_json()
            self._record.append(key_of(result.trial), [*rows, Finished(result.trial, digest, recipe)])
        except OSError as error:
            raise NotKept(error.strerror or str(error)) from None
        self._unfinished = [row for row in self._unfinished if row.trial != result.trial]

    def recall(self, tell: Callable[[str], None]) -> None:
        """Take up the trials that the record has; `tell` gets a line about each damaged one."""
        for finished in self._record.rows(Finished):
            trial, key = finished.trial, key_of(finished.trial)
            file = self._file(trial)
            try:
                models, fitted = read_models(file, finished.models_sha256, finished.recipe)
                statements = [_statement(row) for row in self._record.rows(SiloStatement, key)]
            except (OSError, ValueError, KeyError, TypeError):  # a statement's fields differ between versions
                tell(f"{file} {DAMAGED}")
                self._record.drop(key)
                continue
            self.trials[trial] = TrialResult(trial, models, statements, [], fitted)

    def rows(self, kind: type[Row]) -> list[Row]:
        """All rows of a table's class, in order of their trials, those of unfinished trials among them."""
        rows = [*self._record.rows(kind), *(row for row in self._unfinished if type(row) is kind)]
        return sorted(rows, key=lambda row: getattr(row, "trial", 0))

    def end(self, rows: Sequence[Any]) -> None:
        """Append that the run has ended, with what was measured in unfinished trials; the models of single
        trials go where it is `finished`. OSError if it cannot be written: the run has not ended.
        """
        self._record.append(ENDED, [*self._unfinished, *rows])
        self._unfinished = []
        (ended,) = self._record.rows(Ended)
        if self.folder is not None and ended.status == "finished":
            remove_models(self.folder)

    def copy(self, file: Path, rows: Sequence[Any]) -> None:
        """Write the record of a run that has ended to a new file, `rows` as of `end`; OSError likewise."""
        self._record.copy(file, {ENDED: self._record.entry(ENDED) or [*self._unfinished, *rows]})

    def _file(self, trial: int) -> Path:
        return (self.folder or Path()) / f"{OF_TRIAL}{trial}.safetensors"

    @property
    def kept(self) -> int:
        """The number of finished trials that the record has."""
        return len(self._record.rows(Finished))

    def left(self, trials: int) -> list[int]:
        """The trials that have not ended, of so many."""
        return self._record.missing(range(trials), key_of)


def key_of(trial: int) -> str:
    """The key of a finished trial's entry."""
    return f"trial {trial}"


def _defined(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _defined(each) for key, each in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value


def _row(trial: int, statement: Statement) -> SiloStatement:
    """A statement as a row, without the silo's share in secure aggregation, which nothing shows."""
    terms = replace(statement.admitted.terms, rounds=list(statement.admitted.terms.rounds), share=None)
    admitted = replace(statement.admitted, terms=terms)
    return SiloStatement(trial, asdict(replace(statement, admitted=admitted)))


def _statement(row: SiloStatement) -> Statement:
    """A row as a statement; rounds without gaps are a range again. TypeError if the fields are others."""
    terms = Terms(**row.fields["admitted"]["terms"])
    planned = terms.rounds
    gapless = range(planned[0], planned[-1] + 1) if planned else range(0)
    if list(gapless) == planned:
        terms = replace(terms, rounds=gapless)
    admitted = Admitted(**{**row.fields["admitted"], "terms": terms})
    return Statement(**{**row.fields, "admitted": admitted})


@dataclass(frozen=True)
class Outcome:
    """A run and how it ended."""

    resolved: Resolved
    results: Results
    wall_seconds: float
    interrupted: bool = False
    heterogeneity: dict[str, Any] | None = None
    admitted: Sequence[Admitted] = ()  # accepted before round 0, of all trials whose participation differs
    deployed: Deployment | None = None  # but for silos that were left out, which its rows have
    evaluated: Sequence[Admitted] = ()  # of the evaluation, accepted before round 0: in every trial the same
    files: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the scenario's files as the run began

    @property
    def main(self) -> Variant:
        """The variant that the scenario asked for."""
        return variants(self.resolved)[0]


def variants(resolved: Resolved) -> list[Variant]:
    """The run's variant, and the non-private baseline where the scenario asks for it."""
    if not resolved.mechanism.private:
        return ["nonprivate"]
    return ["private", "nonprivate"] if resolved.scenario.report.nonprivate_baseline else ["private"]


def measures_costs(resolved: Resolved) -> bool:
    """Whether it is measured what noise, clip and rounds cost: with all baselines of a private run."""
    return len(variants(resolved)) > 1 and resolved.scenario.report.baselines and not penalised(resolved)


def penalised(resolved: Resolved) -> bool:
    """Whether fairness costs it error, which no baseline of the loss alone pays."""
    fairness = resolved.scenario.problem.fairness
    return fairness is not None and fairness.weight > 0


def measures_objective(scenario: Scenario) -> bool:
    """Whether the excess risk is measured: as the scenario sets it, else where the optimum is known."""
    asked, public = scenario.report.excess_risk, scenario.problem.public
    varies = public is not None and (public.weight == "optimal" or public.precondition)
    return scenario.data.knows_optimum and not varies if asked is None else asked
