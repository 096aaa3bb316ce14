"""`fedsim predict`: a table in, a table out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsim.api.run import load_run
from fedsim.cli.new_file import new_file
from fedsim.cli.tables import shown
from fedsim.common.errors import InputError
from fedsim.data.table import open_table

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".parquet")
_SPOKEN = {"table": "TABLE", "trial": "--trial", "nonprivate": "--nonprivate", "model": "RUN"}


def run(
    directory: Path, table: Path, out: Path, keep: Sequence[str], trial: int | None, nonprivate: bool
) -> None:
    """Write predictions for every record of `table`, the columns `keep` before them.

    Raises:
        InputError: names the file, column or row that is wrong, and what would be right.
    """
    try:
        with new_file(out, SUFFIXES) as draft:
            _write(_predicted(directory, table, keep, trial, nonprivate), draft)
    except InputError as error:
        first, dot, rest = error.field.partition(".")
        raise InputError(_SPOKEN.get(first, first) + dot + rest, error.value, error.expected) from None
    typer.echo(f"Wrote {shown(out)}")


def _predicted(
    directory: Path, table: Path, keep: Sequence[str], trial: int | None, nonprivate: bool
) -> pd.DataFrame:
    model = load_run(directory).predictor(trial, nonprivate=nonprivate)
    opened = open_table(table, "table", model.recipe.reading)
    for name in keep:
        opened.require(name, "--id")
    made, read = model.predict(table), opened.read(keep) if keep else {}
    for name in reversed(dict.fromkeys(keep)):
        if name in made.columns:
            raise InputError("--id", name, "is the name of a column of predictions; rename it in the table")
        made.insert(0, name, read[name].to_pandas())
    return made


def _write(made: pd.DataFrame, place: Path) -> None:
    if place.suffix == ".csv":
        made.to_csv(place, index=False)
    else:
        made.to_parquet(place, index=False)
