"""Processes of one machine that end together, each with a log of its own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from fedsim.common.process import undisturbed

PATIENCE = 20.0  # seconds that a process has to end when it is told to
LAST_LINES = 12
FAMILY = "FEDSIM_FAMILY"
"""In the environment of a process: the mark of the one that we started, and of those that led to it.

It is how descendants are found whose parents are gone, and which have sessions of their own.
"""


class Ended(Exception):
    """A process that was to stay has ended."""


@dataclass(frozen=True)
class Child:
    """One process: its name, for people, its log, and the mark that it and its descendants bear."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]
    mark: str

    def ended(self) -> Ended:
        """Why nothing goes on: with the last lines of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        said = "".join(f"\n  {line}" for line in lines) or "\n  (nothing)"
        code = self.process.returncode
        return Ended(f"{self.name} ended (exit code {code}); its log {self.log} ends:{said}")


class Processes:
    """Started in the block, and ended with it however it is left; the first that was started ends last.

    All of them and their descendants bear its `mark` in front of their own.
    """

    def __init__(self) -> None:
        self._children: list[Child] = []
        self.mark = _mark(os.environ.get(FAMILY, ""))

    def __enter__(self) -> Self:
        """Nothing is started yet but a watch, which ends all of them should this process be killed."""
        self._watch = subprocess.Popen(
            [sys.executable, "-m", __name__, self.mark], stdin=subprocess.PIPE, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        """End all that were started, and what they started; another Ctrl-C does not cut it short."""
        with undisturbed():
            _end(*self._children[1:])
            _end(*self._children[:1])
            with self._watch:
                self._watch.kill()

    def start(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start a process that appends what it prints to `log`; Ctrl-C at the terminal does not reach it."""
        mark = _mark(self.mark)
        own, nothing = {**os.environ, **(environment or {}), FAMILY: mark}, subprocess.DEVNULL
        with log.open("ab") as out:
            process = subprocess.Popen(
                command, stdin=nothing, stdout=out, stderr=out, env=own, start_new_session=True
            )
        self._children.append(Child(name, log, process, mark))
        return self._children[-1]

    def check(self) -> None:
        """Check that all are there; Ended if one is not."""
        for child in self._children:
            if child.process.poll() is not None:
                raise child.ended()


def finish(commands: Mapping[str, tuple[Sequence[str], Path]]) -> None:
    """Run commands, each with its log, by name, side by side to their ends; Ended if one failed."""
    with Processes() as processes:
        left = [processes.start(name, *each) for name, each in commands.items()]
        while left:
            time.sleep(0.05)
            for child in left:
                if child.process.poll():
                    raise child.ended()
            left = [child for child in left if child.process.returncode is None]


def _end(*children: Child) -> None:
    """End them and whatever they started, also what does not listen and what their own deaths left behind."""
    until = time.monotonic() + PATIENCE
    for child in children:
        child.process.terminate()
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, until - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGKILL)  # its session
        child.process.wait()
    _kill(*(child.mark for child in children))


def end_family(mark: str) -> int:
    """End all that bear a mark, whoever started them, by force if they do not listen; their number."""
    found = set(marked(mark))
    for each in found:
        with suppress(psutil.NoSuchProcess):
            each.terminate()
    until = time.monotonic() + PATIENCE
    while not all(map(over, found)) and time.monotonic() < until:
        time.sleep(0.05)
    _kill(mark)
    return len(found)


def marked(*marks: str) -> Iterator[psutil.Process]:
    """The processes that bear one of the marks, or a mark that follows one of them."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # gone, or another user's
            if process.environ().get(FAMILY, "").startswith(marks):
                yield process


def over(process: psutil.Process) -> bool:
    """True of a zombie too: the process that inherits it may never reap it."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


def _mark(family: str) -> str:
    return f"{family}/{secrets.token_hex(8)}"


def _kill(*marks: str) -> None:
    """Until none is left: one that is killed may have started another meanwhile."""
    until, family = time.monotonic() + PATIENCE, set(marked(*marks))
    while family and time.monotonic() < until:
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        time.sleep(0.02)
        family = {each for each in family | set(marked(*marks)) if not over(each)}


if __name__ == "__main__":  # the watch of `Processes`: its stdin ends when the process that holds it does
    sys.stdin.buffer.read()
    end_family(sys.argv[1])
