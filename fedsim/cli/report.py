"""`fedsim report`: the reviewer's page of a run that is already there."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsim.curves import sweep_page
from fedsim.curves.sweep_summary import is_sweep
from fedsim.report.page import write_page


def show(directory: Path) -> None:
    """Write the page and its figures into the directory of a run or sweep.

    Raises:
        InputError: it is none of this version, or cannot be written.
    """
    page = sweep_page.write_page(directory) if is_sweep(directory) else write_page(directory)
    typer.echo(f"Wrote {page} and its figures")
