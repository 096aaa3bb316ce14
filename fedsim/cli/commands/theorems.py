"""`fedsim theorems`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsim.cli.app import PRIVACY, app


@app.command(rich_help_panel=PRIVACY)
def theorems(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/thesis-audit.md.")] = False,
) -> None:
    """Show what each theorem's noise truly costs beside what the theorem claims."""
    from fedsim.cli.theorems import show

    show(as_json, markdown)
