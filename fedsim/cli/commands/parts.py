"""`fedsim list`: its options."""

from __future__ import annotations

from fedsim.cli.app import SCENARIOS, app, plain_errors


@app.command("list", rich_help_panel=SCENARIOS)
def list_parts() -> None:
    """List what a scenario can name: algorithms, problems, data sets, partitions, samplers and so on."""
    with plain_errors():
        from fedsim.cli.parts import show

        show()
