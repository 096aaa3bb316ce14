"""`fedsim new`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import SCENARIOS, app, plain_errors


@app.command(rich_help_panel=SCENARIOS)
def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="An algorithm's name, such as my_algorithm; or the word scenario."
        ),
    ],
    place: Annotated[
        Path | None,
        typer.Argument(metavar="[PLACE]", help="Default ./NAME, a directory; or scenario.yaml, a file."),
    ] = None,
) -> None:
    """Begin an algorithm, as a package with a scenario and tests that pass; or a scenario, with every field
    explained."""
    with plain_errors():
        from fedsim.cli import new as beginning

        if name == beginning.SCENARIO:
            file = place or Path("scenario.yaml")
            beginning.scenario(file)
            typer.echo(f"Wrote {file}; next: fedsim simulate {file}")
            return
        folder = place or Path(name)
        written = beginning.package(name, folder)
        typer.echo(f"Wrote {folder}/ ({', '.join(sorted(map(str, written)))})")
        typer.echo(f"Next: cd {folder}; pip install -e .; fedsim simulate scenario.yaml; pytest")
