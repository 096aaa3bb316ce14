"""Standard streams whose reader may go: `fedsim simulate ... | head` runs on, and is saved."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def outlive_readers() -> None:
    """From here on, what nobody reads any more is dropped, and nothing else happens."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:
            stream.flush()
            setattr(sys, name, _Stream(stream))


class _Stream(io.TextIOWrapper):
    """A stream that leads nowhere once its reader is gone."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._replaced = stream  # to be kept: it closes the file when it goes
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

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
