"""The command line. Heavy imports wait until a command needs them: `fedsim --help` answers at once."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import typer

from fedsim.cli.app import app
from fedsim.cli.streams import outlive_readers
from fedsim.common.lazily import HEAVY, lazily

COMMANDS = (
    "simulate",
    "sweep",
    "compare",
    "report",
    "predict",
    "export",
    "privacy",
    "audit",
    "bounds",
    "theorems",
    "up",
    "deploy",
    "certs",
    "node",
    "silo",
    "shuffler",
    "ledger",
    "parts",
    "check",
    "schema",
    "schema_from",
    "inspect",
    "new",
)
"""Modules of `fedsim.cli.commands`, each of which registers with `app`, as `fedsim --help` lists them."""

for _name in COMMANDS:
    import_module(f"fedsim.cli.commands.{_name}")


def main() -> Any:
    """Entry point. A silo's or a server's image holds only the commands of its side."""
    outlive_readers()
    lazily(*HEAVY)
    try:
        return app(prog_name="fedsim")
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.partition(".")[0] not in ("fedsim", "silos", "server"):
            raise
        typer.echo(f"error: this command needs {name}, which is not part of this installation", err=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
