"""The command line. Heavy imports wait until a command needs them: `fedsim --help` answers at once."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import typer

from fedsim.cli.app import app
from fedsim.common.process import HEAVY, lazily


def main() -> Any:
    """Entry point. A silo's or a server's image holds only the commands of its side."""
    sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)
    lazily(*HEAVY)
    gc.set_threshold(500_000)  # modules are no garbage: looking through them is an eighth of a short run
    try:
        return app(prog_name="fedsim")
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.partition(".")[0] not in ("fedsim", "silos", "server", "shuffler"):
            raise
        typer.echo(f"error: this command needs {name}, which is not part of this installation", err=True)
        return 2


def _outliving(stream: TextIO) -> TextIO:
    if type(stream) is not io.TextIOWrapper:
        return stream
    stream.flush()
    return _Stream(stream)


class _Stream(io.TextIOWrapper):
    """A standard stream that leads nowhere once its reader is gone: `fedsim simulate | head` is saved."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._replaced = stream  # to be kept: it closes the file when it goes
        lines, through = stream.line_buffering, stream.write_through
        super().__init__(stream.buffer, stream.encoding, stream.errors, None, lines, through)

    def write(self, text: str) -> int:
        with self._dropping():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            super().flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
