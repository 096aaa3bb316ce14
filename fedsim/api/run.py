"""A run: what was measured and what it cost whom, in memory or read from a directory."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fedsim.common.errors import InputError, suggest
from fedsim.common.files import atomic_directory, check_free, writing
from fedsim.report import texts
from fedsim.report.outcome import Outcome
from fedsim.report.record import exported
from fedsim.report.run_directory import RunData, move_scenario, read
from fedsim.report.sections.worth import joining_note
from fedsim.report.summary import Privacy
from fedsim.report.tables import Table, figure_html, lines_html

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from sklearn.pipeline import Pipeline
    from torch import nn

    from fedsim.api.at_home import HomeModel
    from fedsim.report.predictor import Predictor
    from fedsim.report.summary import Summary


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """The result of `fedsim.simulate` and of `fedsim.load_run`.

    Attributes:
        results: all of it, as the reports take it.
        failure: why it ended early or is not in its directory, in one line; None where neither is so.
    """

    results: RunData
    failure: str | None = None

    @property
    def source(self) -> Outcome | Path:
        """Where it comes from: a run that has just ended, or a directory."""
        return self.results.source

    @property
    def summary(self) -> Summary:
        """What `summary.json` holds: metrics, participation, the privacy statement, versions."""
        return self.results.summary

    @property
    def scenario(self) -> str:
        """The scenario as YAML, without its seed: the seed is enough to remove the noise."""
        return self.results.scenario

    def table(self, name: str) -> Table:
        """A table of the run's record by its name, such as "groups". InputError if there is none."""
        if name not in (known := exported()):
            raise InputError("table", name, suggest(name, known))
        from fedsim.report.arrow import table_of

        return Table(table_of(self.results, name))

    @property
    def metrics(self) -> Table:
        """One row per evaluation: trial, variant, round, error, loss, auc, ...; simulation only."""
        return self.table("metrics")

    @property
    def ledger(self) -> Table:
        """One row per trial, silo and round that was paid for."""
        return self.table("ledger")

    @property
    def silos(self) -> Table:
        """One row per trial, variant and silo: the final model on its test records; simulation only."""
        return self.table("silos")

    @property
    def groups(self) -> Table:
        """One row per trial, variant, silo (none: all) and group of test records; simulation only."""
        return self.table("groups")

    @property
    def baselines(self) -> Table:
        """One row per trial and baseline: what could be had without the federation; simulation only."""
        return self.table("baselines")

    @property
    def calibration(self) -> Table:
        """Predicted and observed shares of final models, in ten bins; simulation only."""
        return self.table("calibration")

    @property
    def evaluation(self) -> Table:
        """One row per metric that `evaluate` estimates, with the standard error of one trial's noise."""
        return Table(pa.Table.from_pylist([row.tree() for row in self.summary.evaluation]))

    @property
    def spend(self) -> Table:
        """Epsilon that the rounds gone by had cost a silo, in the trial that cost it most."""
        return self.table("spend")

    @cached_property
    def model(self) -> np.ndarray:
        """Final parameters, one row a finished trial, (trials, d); private if the scenario asks for it."""
        return self._models("private" if self.summary.privacy.private else "nonprivate")

    @cached_property
    def nonprivate_baseline(self) -> np.ndarray:
        """Final parameters of the non-private baseline, (trials, d); no rows where the run has none."""
        return self._models("nonprivate")

    def predictor(self, trial: int | None = None, *, nonprivate: bool = False) -> Predictor:
        """A trial's model and its preparation of records: it takes a DataFrame's raw columns.

        Args:
            trial: which; default the first finished one. InputError if there is no such trial.
            nonprivate: take a model without guarantee: the non-private baseline, or that of a run without
                privacy. InputError if the model is not private, and this does not say so.
        """
        from fedsim.report.predictor import predictor_of

        return predictor_of(self.results, trial, nonprivate)

    def at_home(self, silo: str, trial: int | None = None) -> HomeModel:
        """What a silo makes at home of a trial's model and its own training records: one model, used as
        `predictor`'s. **Not private**: it costs nothing as long as it, and whether it is used, stay there.

        InputError: there is no such silo or trial, the silo has fewer than 15 records or those of one class,
        the loss or network is none that is fitted at home, or the run is no simulation.
        """
        from fedsim.api.at_home import home_model

        return home_model(self.results, silo, trial)

    def predict(self, table: Any, trial: int | None = None, *, nonprivate: bool = False) -> pd.DataFrame:
        """A row for each record: its predicted class and every class's probability, or a number in its units.

        Args:
            table: a pandas.DataFrame with the raw columns that the model was trained on, or the path of a CSV
                or Parquet file with them; other columns do no harm.
            trial: see `predictor`, as for `nonprivate`. Its errors, and InputError with the column and row
                that are wrong.
        """
        return self.predictor(trial, nonprivate=nonprivate).predict(table)

    def to_sklearn(self, trial: int | None = None, *, nonprivate: bool = False) -> Pipeline:
        """A linear model as a fitted pipeline of scikit-learn; errors as of `Predictor.to_sklearn`."""
        return self.predictor(trial, nonprivate=nonprivate).to_sklearn()

    def to_torch(self, trial: int | None = None, *, nonprivate: bool = False) -> nn.Module:
        """A torch module of `predictor().features(table)` (`Predictor.to_torch`); errors of `predictor`."""
        return self.predictor(trial, nonprivate=nonprivate).to_torch()

    @property
    def interrupted(self) -> bool:
        """Whether it ended before all trials did."""
        return self.summary.status == "interrupted"

    def save(self, path: str | os.PathLike[str]) -> list[str]:
        """Write a run directory: tables, models, scenario, and the reviewer's page, report.html. Returns the
        names of what is in it. `scenario.yaml` holds the seed, so it is as secret as the records.

        InputError if the directory holds something already, or cannot be written.
        """
        from fedsim.report import page  # with matplotlib, as plots: what prices a run needs neither

        place = check_free(Path(path))
        with writing(Path(path), "out"):
            if isinstance(self.source, Outcome):
                return page.save(self.source, place)
            with atomic_directory(place) as draft:
                shutil.copytree(self.source, draft, dirs_exist_ok=True)
                move_scenario(draft / "scenario.yaml", self.source, place)
        return page.listing(place)

    def plot(self, what: str | None = None) -> Figure:
        """A figure: a metric ("error", "auc", "excess_risk", ...; None: the chosen one) against rounds,
        "calibration", "effects" (of columns), "silos" (the chosen metric on each) or "spend". InputError if
        there is no such figure, or nothing to show in it.
        """
        from fedsim.report.plots import figure_of

        return figure_of(self.results, what or self.summary.metrics.metric)

    def _models(self, variant: str) -> np.ndarray:
        models = [model.numpy() for model in self.results.models.get(variant, {}).values()]
        return np.stack(models) if models else np.empty((0, self.summary.dimension))

    def __repr__(self) -> str:
        return f"Run({texts.result_line(self.summary)}{joining_note(self.summary.joining)})"

    def _repr_html_(self) -> str:
        summary, metrics = self.summary, texts.metrics_table(self.summary)
        lines = [*summary.privacy.notices, *texts.parameter_lines(summary.parameters)]
        lines += [f"warning: {line}" for line in summary.warnings]
        lines += [texts.result_line(summary), *texts.remarks(summary)]
        named = [(texts.METRICS_TITLE, metrics)] if metrics.rows else []
        named += texts.section_tables(summary)
        tables = "".join(lines_html([f"{title}. {table.caption}"]) + table.html for title, table in named)
        return figure_html(self.plot) + lines_html(lines) + tables + silos_html(summary.privacy)


def load_run(path: str | os.PathLike[str]) -> Run:
    """Read a run directory back, as `Run.save` writes it; InputError names the file that is wrong."""
    return Run(read(Path(path)))


def silos_html(privacy: Privacy) -> str:
    """The cost to each silo as HTML; of many silos, to those with the least slack."""
    table = texts.silo_table(privacy)
    return lines_html([table.caption]) + table.html
