"""Where a command prints to: a person's terminal, a program that reads JSON, or nowhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import typer
from rich.console import Console


@dataclass(frozen=True)
class Output:
    """How much is printed.

    Args:
        quiet: nothing but errors.
        as_json: the summary alone on stdout, as JSON; how far it is, and what went wrong, on stderr.
    """

    quiet: bool = False
    as_json: bool = False

    @cached_property
    def progress(self) -> Console:
        """How far it is."""
        return self._console(stderr=self.as_json, quiet=self.quiet)

    @cached_property
    def results(self) -> Console:
        """What came of it, for a person."""
        return self._console(stderr=False, quiet=self.quiet or self.as_json)

    @cached_property
    def errors(self) -> Console:
        """What went wrong: beside the results, where they are shown."""
        return self._console(stderr=self.quiet or self.as_json, quiet=False)

    def summary(self, tree: Mapping[str, Any]) -> None:
        """Print it if JSON is asked for."""
        if self.as_json:
            typer.echo(json.dumps(tree, indent=2, allow_nan=False))

    def _console(self, stderr: bool, quiet: bool) -> Console:
        return Console(stderr=stderr, quiet=quiet)
