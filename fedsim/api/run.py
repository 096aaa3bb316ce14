"""A run: what was measured and what it cost whom, in memory or read from a directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from safetensors.numpy import load_file

from fedsim.api.table import Table, html_table
from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.report.page import write_page
from fedsim.report.remarks import remarks
from fedsim.report.silo_table import silo_table
from fedsim.results.outcome import Outcome, Variant, variants
from fedsim.results.read import Run as Content
from fedsim.results.read import Summary, read
from fedsim.results.spend import spend_table
from fedsim.results.summary import summarise
from fedsim.results.write import check_free, ledger_table, metrics_table, model_file, silos_table, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLES: dict[str, Callable[[Outcome], pa.Table]] = {
    "metrics": metrics_table,
    "ledger": ledger_table,
    "silos": silos_table,
    "spend": spend_table,
}
_VARIANTS: tuple[Variant, ...] = get_args(Variant)
FIGURES: dict[str, Callable[[Content], Figure | None]] = {}


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """What `fedsim.simulate` returns and `fedsim.load_run` reads.

    Attributes:
        summary: `summary.json`, typed: metrics, participation, the privacy statement, versions.
        scenario: the scenario as it was run, as nested mappings; `fedsim.simulate(run.scenario)` repeats the
            run, noise included, so it is as secret as the records.
        tables: `metrics`, `ledger`, `silos` and `spend`, which are properties too.
        model: final parameters of the run, one row a trial, (trials, d).
        twin: those of its twin without clipping and noise; None where there is none. Not private.
        failure: why a trial's process was lost; None where none was.
    """

    summary: Summary
    scenario: dict[str, Any]
    tables: dict[str, Table] = field(repr=False)
    model: np.ndarray
    twin: np.ndarray | None
    content: Content = field(repr=False)
    write: Callable[[Path], object] = field(repr=False)
    failure: str | None = None

    @property
    def metrics(self) -> Table:
        """One row per evaluation: trial, variant, round, test_error, test_loss, ...; simulation only."""
        return self.tables["metrics"]

    @property
    def ledger(self) -> Table:
        """One row per trial, silo and round that was paid for."""
        return self.tables["ledger"]

    @property
    def silos(self) -> Table:
        """One row per trial, variant and silo: the final model on its test records; simulation only."""
        return self.tables["silos"]

    @property
    def spend(self) -> Table:
        """Epsilon that the rounds gone by had cost a silo, in the first trial."""
        return self.tables["spend"]

    @property
    def interrupted(self) -> bool:
        """Whether it ended before all trials did."""
        return self.summary.status == "interrupted"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the run directory: tables, models, scenario, and the reviewer's page, report.html.

        Raises:
            InputError: the directory holds something already, or cannot be written.
        """
        place = check_free(Path(path))
        self.write(place)
        return place

    def plot(self, what: str = "error") -> Figure:
        """A figure: "error" or "excess_risk" or "gradient_mapping_sq" against rounds, "silos", "spend".

        Raises:
            InputError: there is no such figure, or the run has nothing to show in it.
        """
        if what not in FIGURES:
            raise InputError("plot", what, suggest(what, FIGURES))
        figure = FIGURES[what](self.content)
        if figure is None:
            raise InputError("plot", what, "was not measured in this run")
        return figure

    def __repr__(self) -> str:
        return f"Run({_line(self.summary)})"

    def _repr_html_(self) -> str:
        """What matters first: notices, errors, and what each silo paid."""
        lines = [*self.summary.privacy.notices, _line(self.summary), *remarks(self.summary.model_dump())]
        said = "".join(f"<p>{escape(line)}</p>" for line in lines)
        table = silo_table(self.summary.privacy.silos)
        return said + html_table(table.columns, table.rows)


def load_run(path: str | os.PathLike[str]) -> Run:
    """Read a run directory back.

    Raises:
        InputError: names the file that is missing, damaged, or of another version.
    """
    folder = Path(path)
    content = read(folder)
    main: Variant = "nonprivate" if content.summary.privacy.mechanism == "none" else "private"
    models = {
        variant: list(_sorted(load_file(file)).values())
        for variant in _VARIANTS
        if (file := folder / model_file(variant, main)).exists()
    }
    scenario = yaml.safe_load((folder / "scenario.yaml").read_text(encoding="utf-8"))
    dimension = content.summary.dimension
    return Run(
        content.summary,
        scenario,
        {name: Table(pq.read_table(folder / f"{name}.parquet")) for name in TABLES},
        model=_stacked(models.get(main, []), dimension),
        twin=_stacked(models["nonprivate"], dimension)
        if main == "private" and "nonprivate" in models
        else None,
        content=content,
        write=lambda place: shutil.copytree(folder, place, dirs_exist_ok=True),
    )


def of_outcome(outcome: Outcome, failure: str | None) -> Run:
    """The run that has just ended."""
    summary = Summary.model_validate(summarise(outcome))
    tables = {name: table(outcome) for name, table in TABLES.items()}
    scenario = outcome.resolved.scenario.model_dump(mode="json", exclude_none=True)
    shown = {key: value for key, value in scenario.items() if key != "seed"}
    as_read = {name: table.to_pydict() for name, table in tables.items() if name != "ledger"}
    trials = [trial.models for _, trial in sorted(outcome.results.trials.items())]
    dimension, twin = summary.dimension, len(variants(outcome.resolved)) > 1
    return Run(
        summary,
        scenario,
        {name: Table(table) for name, table in tables.items()},
        model=_stacked([models[outcome.main].numpy() for models in trials], dimension),
        twin=_stacked([models["nonprivate"].numpy() for models in trials], dimension) if twin else None,
        content=Content(
            Path(),
            summary,
            yaml.safe_dump(shown, sort_keys=False),
            scenario.get("description", ""),
            **as_read,
        ),
        write=lambda place: _write(outcome, place),
        failure=failure,
    )


def _write(outcome: Outcome, place: Path) -> None:
    write(outcome, place)
    write_page(place)


def _stacked(models: list[np.ndarray], dimension: int) -> np.ndarray:
    return np.stack(models) if models else np.empty((0, dimension))


def _sorted(models: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By number of the trial; names are trial-NUMBER.VARIANT."""
    return dict(sorted(models.items(), key=lambda item: int(item[0].split(".")[0].removeprefix("trial-"))))


def _line(summary: Summary) -> str:
    error = summary.metrics["test_error"]
    shown = "nothing measured to the end" if error is None else f"test error {error:.4f}"
    return f"{summary.scenario}: {shown}, {summary.trials.finished} of {summary.trials.asked} trials"
