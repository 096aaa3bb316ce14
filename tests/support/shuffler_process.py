"""A shuffler as a process of its own, which tests kill and start again."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.breaking import around
from support.daemons import Daemon, entered

Before = Callable[[], None]


class ShufflerProcess(Daemon):
    """An enrolled shuffler, by its shuffler.yaml; it listens at `s.sock` beside it."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, "s.sock", _serve)


@contextmanager
def shuffler_process(file: Path, before: Before | None = None) -> Iterator[ShufflerProcess]:
    """A running one; killed at the end."""
    made = ShufflerProcess(file)
    try:
        yield made.start(before)
    finally:
        made.kill()


def die_before_the_note() -> None:
    """Kill this process when it is about to note its third release."""
    _die(before=True)


def die_after_the_note() -> None:
    """Kill this process when its third release is noted, and not sent."""
    _die(before=False)


def _die(before: bool) -> None:
    from shuffler.store import FileStore

    count = iter(range(3))

    def third(*_: object) -> None:
        if next(count) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    around(FileStore, "note", **{"before" if before else "after": third})


def _serve(file: Path, said: Path, before: Before | None) -> None:
    entered(said, before)
    from shuffler.service import run

    sys.exit(run(file, enrolling=False, health=False))
