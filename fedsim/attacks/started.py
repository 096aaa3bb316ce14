"""Daemons of both worlds on this machine: those that somebody started, or new ones with fresh ledgers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedsim.attacks.daemons import Openings
from fedsim.attacks.neighbours import SOCKET, STATE, Neighbours, write
from fedsim.attacks.played import OPTION
from fedsim.attacks.setting import Setting
from fedsim.attacks.two_worlds import WORLDS, Worlds
from fedsim.common.errors import InputError
from fedsim.wire.dial import dial_socket
from server.sockets import Sockets
from silos.config import load_config
from silos.enrolment import enrol

COMMAND = [sys.executable, "-m", "silos"]
_PATIENCE = 120.0  # seconds for a daemon to listen, or to end


def daemons(setting: Setting, found: Neighbours, folder: Path) -> Openings:
    """Those that listen in `folder`, once; or new ones there, again and again, with a lifetime budget each.

    Raises:
        InputError: only one of the two listens, or a daemon cannot be started.
    """
    sockets = [folder / world / SOCKET for world in WORLDS]
    listening = [_listens(socket) for socket in sockets]
    if all(listening):
        yield _opened(sockets)
        return
    if any(listening):
        raise InputError(OPTION, str(folder), "daemons in both world-0 and world-1, or in neither")
    while True:
        yield _started(write(setting, found, folder))


def _listens(socket: Path) -> bool:
    try:
        dial_socket(socket, 5.0).close()
    except OSError:
        return False
    return True


@contextmanager
def _opened(sockets: list[Path]) -> Iterator[Worlds]:
    with Sockets(dict(zip(WORLDS, sockets, strict=True))) as channel:
        yield Worlds(channel)


@contextmanager
def _started(configs: list[Path]) -> Iterator[Worlds]:
    """Daemons with new ledgers, which end with the block."""
    with ExitStack() as stack:
        for config in configs:
            shutil.rmtree(config.parent / STATE, ignore_errors=True)
            enrol(load_config(config))
        running = [stack.enter_context(_process(config)) for config in configs]
        for config, process in zip(configs, running, strict=True):
            _await(config, process)
        yield stack.enter_context(_opened([config.parent / SOCKET for config in configs]))


@contextmanager
def _process(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [*COMMAND, "--config", str(config)]
    with (
        (config.parent / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def _await(config: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE
    while not _listens(config.parent / SOCKET):
        if process.poll() is not None or time.monotonic() > until:
            raise InputError(OPTION, str(config), f"a daemon that starts: {_said(config)}")
        time.sleep(0.05)


def _said(config: Path) -> str:
    lines = (config.parent / "log").read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else "it said nothing"
