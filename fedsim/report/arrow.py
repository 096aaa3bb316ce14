"""Rows of a record as Arrow's tables, and as Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa

from fedsim.common.files import atomic_directory, check_free, writing
from fedsim.common.serialise import canonical, finite
from fedsim.report.record import MADE_OF, TABLES, CellResult, ReportedCell, exported
from fedsim.report.run_directory import RunData, ended_record, read
from fedsim.report.sweep_summary import SweepSummary, read_only, read_summary
from fedsim.scenario.metric import BY_SKLEARN

_TYPES: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), float | None: pa.float64()}


def columns(name: str) -> dict[str, pa.DataType]:
    """A table's columns and their types; `more` stands for a column of each metric by scikit-learn."""
    types = {field: _TYPES.get(hint, pa.string()) for field, hint in get_type_hints(TABLES[name]).items()}
    if types.pop("more", None):
        types |= dict.fromkeys(BY_SKLEARN, pa.float64())
    return types


def arrow(name: str, rows: Sequence[Any], made_of: Mapping[str, str] | None = None) -> pa.Table:
    """Rows of a table as Arrow's; `made_of` is its metadata, else what it is made of in a simulation."""
    if made_of is None:
        made_of = {"simulation_only": MADE_OF[name]} if name in MADE_OF else {}
    schema = pa.schema(columns(name), metadata=dict(made_of) or None)
    own = {field: i for i, field in enumerate(TABLES[name]._fields)}
    values = [
        [row[own[column]] for row in rows] if column in own else [row.more.get(column) for row in rows]
        for column in schema.names
    ]
    return pa.table(values, schema=schema)


def table_of(run: RunData, name: str) -> pa.Table:
    """One of a run's tables in `exported`; of a deployed run metrics are of public test records."""
    of_server = run.summary.deployment is not None and name in ("metrics", "baselines")
    public = {"public": "made of public records"} if of_server else None
    return arrow(name, run.rows(TABLES[name]), public)


def cells_table(cells: Sequence[tuple[ReportedCell, CellResult]]) -> pa.Table:
    """A sweep's reported trials: varied and chosen fields as columns, then what was measured."""
    rows = [
        {
            **cell.varied,
            **cell.chosen,
            "private": cell.private,
            "trial": cell.trial,
            "error": result.error,
            "loss": result.loss,
            **{name: result.more[name] for name in BY_SKLEARN if name in result.more},
            "epsilon_guaranteed": finite(result.epsilon),
            "worst_silo": result.silo if cell.private else None,
            "noise_multiplier": result.noise_multiplier,
            "seconds": result.seconds,
            "cached": cell.cached,
            "key": cell.key,
        }
        for cell, result in cells
    ]
    names = list(rows[0]) if rows else []
    return pa.table({name: _column([row[name] for row in rows]) for name in names})


def _column(values: Sequence[Any]) -> pa.Array:
    """Values of one type as they are; whole sections, and a mixture, as texts."""
    try:
        if not any(isinstance(value, dict | list) for value in values):
            return pa.array(values)
    except pa.ArrowException:
        pass
    return pa.array([v if v is None or isinstance(v, str) else canonical(v) for v in values], pa.string())


def cells_of(directory: Path) -> pa.Table:
    """The reported trials of a finished sweep's directory. InputError: it has not finished, or is damaged."""
    read_only(SweepSummary, directory)
    record = ended_record(directory)
    return cells_table([(row, record.rows(CellResult, row.key)[0]) for row in record.rows(ReportedCell)])


def export(directory: Path, out: Path) -> list[str]:
    """Write the tables of a run, or the cells of a sweep, as Parquet files into a new folder, which is whole
    or not there; returns their names. InputError: the directory is not whole, or the folder not free.
    """
    import pyarrow.parquet as pq  # which a run does not need

    place = check_free(out)
    if isinstance(read_summary(directory), SweepSummary):
        tables = {"cells": cells_of(directory)}
    else:
        run = read(directory)
        tables = {name: table_of(run, name) for name in exported()}
    with writing(out), atomic_directory(place) as draft:
        for name, table in tables.items():
            pq.write_table(table, draft / f"{name}.parquet")
    return [f"{name}.parquet" for name in tables]
