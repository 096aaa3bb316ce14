"""Finished runs: `fedsim compare`, `fedsim report`, `fedsim predict` and `fedsim export`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedsim.cli.app import RUNS, app, spoken
from fedsim.cli.output import dated, print_notices, say, shown, titled
from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError
from fedsim.common.files import check_free, writing

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.report.comparison import Comparison
    from fedsim.report.predictor import Predictor


@app.command(rich_help_panel=RUNS)
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run and sweep directories.")],
    points: Annotated[
        Path | None, typer.Option(help="CSV of published points: series, epsilon, error[, low, high].")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric to compare, such as auc; default: the first run's.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Metric to draw it against, such as parity_gap; default: epsilon.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New directory; default runs/comparison-TIME.")] = None,
) -> None:
    """Put runs and sweeps into one table and one figure, a metric against epsilon or another, on a page."""
    from fedsim.report.comparison import FILES, compared, source_of
    from fedsim.report.sweep_summary import SHARED

    comparison = compared([source_of(directory) for directory in runs], points, metric, against)
    folder = check_free(out or dated("comparison"))
    console = Console()
    print_notices(console, comparison.notices)
    console.print(_table(comparison))
    if SHARED in comparison.not_private:
        say(console, f"Not private: {SHARED}.")
    comparison.save(folder)
    say(console, f"Wrote {shown(folder)}/ ({', '.join(FILES)})")


def _table(comparison: Comparison) -> Table:
    text = comparison.text
    table = titled(text.caption, texts=text.columns[:2], numbers=text.columns[2:])
    for row in text.rows:
        table.add_row(*row)
    return table


@app.command(rich_help_panel=RUNS)
def report(directory: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]) -> None:
    """Write the reviewer's page of a run: report.html, which needs no network, and its figures."""
    from fedsim.report.page import write_page

    written = write_page(directory)
    typer.echo(f"Wrote {written} and its figures")


Trial = Annotated[int | None, typer.Option(min=0, help="Whose model; default: the first finished trial's.")]
_NONPRIVATE = "Take a model without privacy: the non-private baseline, or that of a run without privacy."
NonPrivate = Annotated[bool, typer.Option("--nonprivate", help=_NONPRIVATE)]
_SPOKEN = {"table": "TABLE", "trial": "--trial", "nonprivate": "--nonprivate", "model": "RUN"}
_UNSAFE = "Loading it runs code that is in it: load only files from yourself or people you trust."


@app.command(rich_help_panel=RUNS)
def predict(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file; needs no target or silo column.")
    ],
    out: Annotated[Path, typer.Option(help="New file, .csv or .parquet.")],
    keep: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="COLUMN", help="Column of TABLE to keep beside; may be repeated."),
    ] = None,
    trial: Trial = None,
    nonprivate: NonPrivate = False,
) -> None:
    """Predict the records of a table with a run's model, in their order."""
    from fedsim.api.run import load_run

    with spoken(_SPOKEN), _new_file(out, (".csv", ".parquet")) as draft:
        model = load_run(directory).predictor(trial, nonprivate=nonprivate)
        made = _predicted(model, table, keep or [])
        made.to_csv(draft, index=False) if draft.suffix == ".csv" else made.to_parquet(draft, index=False)
    typer.echo(f"Wrote {shown(out)}")


def _predicted(model: Predictor, table: Path, keep: Sequence[str]) -> pd.DataFrame:
    """Predictions for every record of `table`, the columns `keep` before them."""
    from fedsim.data.table import open_table

    opened = open_table(table, "table", model.recipe.reading)
    for name in keep:
        opened.require(name, "--id")
    made, read = model.predict(table), opened.read(keep) if keep else {}
    for name in reversed(dict.fromkeys(keep)):
        if name in made.columns:
            raise InputError("--id", name, "is the name of a column of predictions; rename it in the table")
        made.insert(0, name, read[name].to_pandas())
    return made


class Format(StrEnum):
    """A library that a model can be written for, or a format of tables."""

    SKLEARN = "sklearn"
    TORCH = "torch"
    PARQUET = "parquet"


_SUFFIXES = {Format.SKLEARN: [".joblib"], Format.TORCH: [".safetensors", ".pt"]}
_NEW = "New file: .joblib for sklearn; .safetensors or .pt for torch's state_dict. New folder for parquet."


@app.command(rich_help_panel=RUNS)
def export(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run directory; for parquet a sweep's too.")
    ],
    to: Annotated[Format, typer.Option(help="For which library, or in which format of tables.")],
    out: Annotated[Path, typer.Option(help=_NEW)],
    trial: Trial = None,
    nonprivate: NonPrivate = False,
) -> None:
    """Write a run's model for use outside fedsim, as a scikit-learn pipeline or a torch state_dict; or the
    tables of a run or a sweep, as Parquet files.
    """
    if to is Format.PARQUET:
        _export_tables(directory, out, models=trial is not None or nonprivate)
        return
    from fedsim.api.run import load_run

    with _new_file(out, _SUFFIXES[to]) as draft:
        model = load_run(directory).predictor(trial, nonprivate=nonprivate)
        if to is Format.SKLEARN:
            import joblib

            joblib.dump(model.to_sklearn(), draft)
        else:
            import torch
            from safetensors.torch import save_file

            state = {
                name: value.clone().contiguous() for name, value in model.to_torch().state_dict().items()
            }
            torch.save(state, draft) if draft.suffix == ".pt" else save_file(state, draft)
    typer.echo(f"Wrote {shown(out)}")
    if to is Format.SKLEARN:
        typer.echo(_UNSAFE)


def _export_tables(directory: Path, out: Path, models: bool) -> None:
    if models:
        raise InputError("--to", "parquet", "writes tables of all trials: leave --trial and --nonprivate out")
    from fedsim.report.arrow import export as written

    typer.echo(f"Wrote {shown(out)}/ ({', '.join(written(directory, out))})")


@contextmanager
def _new_file(place: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    """Yield where to write; `place` is checked before anything is done for it, and is whole or not there."""
    if place.suffix not in suffixes:
        raise InputError("--out", str(place), f"must end in {' or '.join(suffixes)}")
    if place.exists():
        raise InputError("--out", str(place), "exists already; name a new file")
    if not place.parent.is_dir():
        raise InputError("--out", str(place), "is in no folder that exists")
    with writing(place), atomic_file(place) as draft:
        yield draft
