"""`fedsim predict`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import RUNS, app, plain_errors

Trial = Annotated[int | None, typer.Option(min=0, help="Whose model; default: the first finished trial's.")]
NonPrivate = Annotated[
    bool,
    typer.Option(
        "--nonprivate", help="Take a model that nothing protects: the twin, or of a run without privacy."
    ),
]


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
    with plain_errors():
        from fedsim.cli.predict import run

        run(directory, table, out, keep or [], trial, nonprivate)
