"""`fedsim export`: its options."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import RUNS, app, plain_errors
from fedsim.cli.commands.predict import NonPrivate, Trial


class Library(StrEnum):
    """For which a model can be written."""

    SKLEARN = "sklearn"
    TORCH = "torch"


@app.command(rich_help_panel=RUNS)
def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    to: Annotated[Library, typer.Option(help="For which library.")],
    out: Annotated[
        Path, typer.Option(help="New file: .joblib for sklearn; .safetensors or .pt for torch's state_dict.")
    ],
    trial: Trial = None,
    nonprivate: NonPrivate = False,
) -> None:
    """Write a run's model for use outside fedsim: a scikit-learn pipeline, or a torch state_dict."""
    with plain_errors():
        from fedsim.cli.export import run

        run(directory, to.value, out, trial, nonprivate)
