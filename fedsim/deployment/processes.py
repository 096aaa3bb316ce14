"""Processes of one machine that end together, each with a log of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from fedsim.common.interrupts import undisturbed

PATIENCE = 20.0
"""Seconds that a process has to end when it is told to."""
LAST_LINES = 12


class Ended(Exception):
    """A process that was to stay has ended."""


@dataclass(frozen=True)
class Child:
    """One process: its name, for people, and its log."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    def ended(self) -> Ended:
        """Why nothing goes on: with the last lines of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        said = "".join(f"\n  {line}" for line in lines) or "\n  (nothing)"
        return Ended(
            f"{self.name} ended (exit code {self.process.returncode}); its log {self.log} ends:{said}"
        )


class Processes:
    """Started in the block, and ended with it however it is left; the first that was started ends last."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        """Nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """End all that were started, and what they started; another Ctrl-C does not cut it short."""
        with undisturbed():
            first, rest = self._children[:1], self._children[1:]
            for children in (rest, first):
                end(*(child.process for child in children))

    def start(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start a process that appends what it prints to `log`; Ctrl-C at the terminal does not reach it."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        child = Child(name, log, process)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Check that all are there.

        Raises:
            Ended: one is not.
        """
        for child in self._children:
            if child.process.poll() is not None:
                raise child.ended()


def finish(commands: Mapping[str, tuple[Sequence[str], Path]]) -> None:
    """Run commands side by side to their ends.

    Args:
        commands: with their logs, by the names of the processes.

    Raises:
        Ended: one failed.
    """
    with Processes() as processes:
        started = [processes.start(name, *each) for name, each in commands.items()]
        for child in started:
            if child.process.wait():
                raise child.ended()


def end(*processes: subprocess.Popen[bytes]) -> None:
    """End processes that lead sessions, and whatever they started, also what does not listen."""
    family = [each for process in processes if process.poll() is None for each in _family(process.pid)]
    until = time.monotonic() + PATIENCE
    for process in processes:
        process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its session
        process.wait()
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(family, PATIENCE)


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
