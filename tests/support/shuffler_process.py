"""A shuffler as a process of its own, which tests kill and start again."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from support.daemons import PATIENCE

from fedsim.wire.connections import dial_socket

_fork = multiprocessing.get_context("forkserver")
Before = Callable[[], None]


class ShufflerProcess:
    """An enrolled shuffler, which may be started any number of times.

    Args:
        file: its shuffler.yaml; it listens at `s.sock` beside it.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.socket = file, file.parent / "s.sock"
        self.process: BaseProcess | None = None

    def start(self, before: Before | None = None) -> None:
        """Start it, and wait until it listens; `before` is called in it first, a function that pickles."""
        self.process = _fork.Process(target=_serve, args=(self.file, before))
        self.process.start()
        until = time.monotonic() + PATIENCE
        while not self.listens():
            assert self.process.is_alive(), "the shuffler ended"
            assert time.monotonic() < until, "the shuffler does not listen"
            time.sleep(0.005)

    def listens(self) -> bool:
        try:
            dial_socket(self.socket, PATIENCE).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.join(PATIENCE)

    def died(self) -> bool:
        """Whether it has ended by SIGKILL; waits for it."""
        assert self.process is not None
        self.process.join(PATIENCE)
        return self.process.exitcode == -signal.SIGKILL


@contextmanager
def shuffler_process(file: Path, before: Before | None = None) -> Iterator[ShufflerProcess]:
    """A running one; killed at the end."""
    made = ShufflerProcess(file)
    try:
        made.start(before)
        yield made
    finally:
        if made.process is not None and made.process.is_alive():
            made.kill()


def die_before_the_note() -> None:
    """Kill this process when it is about to note its third release."""
    _die(before=True)


def die_after_the_note() -> None:
    """Kill this process when its third release is noted, and nobody has it."""
    _die(before=False)


def _die(before: bool) -> None:
    from shuffler.store import FileStore

    real, count = FileStore.note, iter(range(3))

    def note(self: FileStore, run: str, round_index: int, request: str, reply: bytes) -> None:
        third = next(count) == 2
        if third and before:
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, run, round_index, request, reply)
        if third:
            os.kill(os.getpid(), signal.SIGKILL)

    FileStore.note = note  # type: ignore[method-assign]


def _serve(file: Path, before: Before | None) -> None:
    if before is not None:
        before()
    from shuffler.service import run

    run(file, enrolling=False, health=False)
