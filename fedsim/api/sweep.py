"""`fedsim.sweep`: every combination that a scenario's `sweep` section stands for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fedsim.api.given import ScenarioLike, changes_of, tree_of
from fedsim.api.sweep_progress import watcher
from fedsim.api.table import Table, lines_html, table_html
from fedsim.curves.sweep_page import errors, figure_of
from fedsim.sweeps import run as sweeps
from fedsim.sweeps.cells_table import cells_table
from fedsim.sweeps.engine import Event
from fedsim.sweeps.job import job_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedsim.curves.sweep_summary import SweepSummary


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """What `fedsim.sweep` returns; `ended` has the cells that failed, and why."""

    ended: sweeps.Sweep

    @property
    def summary(self) -> SweepSummary:
        """What `summary.json` holds."""
        return self.ended.summary

    @property
    def interrupted(self) -> bool:
        """Whether cells are missing."""
        return self.ended.interrupted

    @property
    def combinations(self) -> Table:
        """One row per combination: varied and chosen fields, mean test error, cost."""
        return Table(pa.Table.from_pylist([_row(row.tree()) for row in self.summary.combinations]))

    @property
    def cells(self) -> Table:
        """One row per combination and reported trial."""
        return Table(cells_table(self.ended.job, self.ended.results))

    def plot(self) -> Figure:
        """Test error against what was varied, one line per algorithm."""
        return figure_of(self.summary)

    def __repr__(self) -> str:
        return f"Sweep({self._line()})"

    def _line(self) -> str:
        said, failed = self.summary, len(self.ended.results.failures)
        rest = f", {failed} cells failed" if failed else ""
        return f"{said.scenario}: {len(said.combinations)} combinations, {said.status}{rest}"

    def _repr_html_(self) -> str:
        table = errors(self.summary)
        return lines_html([self._line()]) + table_html(table.columns, table.rows)


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in row.items() if key not in ("varied", "chosen")}
    chosen = {f"chosen {field}": value for field, value in (row["chosen"] or {}).items()}
    return {**row["varied"], **chosen, **rest}


def sweep(
    scenario: ScenarioLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: bool | Callable[[Event], None] | None = None,
    **short: Any,
) -> Sweep:
    """Run every combination of a scenario's `sweep` section, tuned, over trials.

    Args:
        scenario: see `fedsim.simulate`, as for `overrides`, `progress` and `short`. The section may be given
            here: `{"sweep.grid": {"privacy.epsilon": [1, 2]}}`.
        out: a directory for cells and results; the same call continues there after an interruption.
        workers: Ray workers; None: one per CPU, or none if the scenario's runtime is in-process; 0: none.

    Returns:
        The sweep. An interrupt returns what there is, and `Sweep.interrupted` is true.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    job = job_of(tree_of(scenario, changes_of(overrides, short)))
    place = None if out is None else Path(out)
    return Sweep(sweeps.run(job, place, workers, watcher(progress), warnings.warn))
