"""`fedsim report`: the reviewer's page of a run that is already there."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsim.report.page import FIGURES, write_page


def show(directory: Path) -> None:
    """Write the page and its figures into the run directory.

    Raises:
        InputError: it is no run directory of this version, or cannot be written.
    """
    page = write_page(directory)
    typer.echo(f"Wrote {page} and {page.parent / FIGURES}/")
