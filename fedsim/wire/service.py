"""A daemon as a service of the operating system: its exit code, its log and its signals."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedsim.common.errors import InputError, Refused
from fedsim.wire.daemon import Daemon

_BYTES, _OLD = 5_000_000, 3


def exit_code(run: Callable[[], int]) -> int:
    """The exit code of a command; 2 with one line on stderr for what a person can mend."""
    try:
        return run()
    except InputError as error:
        message = f"error: {error}"
    except Refused as error:
        message = f"refused: {error}"
    print(" ".join(message.split()), file=sys.stderr)
    return 2


def end_at_signal() -> None:
    """Have SIGTERM and SIGINT end the process at once: nothing is in hand yet."""
    _on_signal(lambda: sys.exit(0))


def serve(daemon: Daemon) -> bool:
    """Answer until SIGTERM or SIGINT, and finish what is in hand then; False if that takes too long."""
    _on_signal(daemon.stop)
    return daemon.run()


def stopped(finished: bool) -> int:
    """The exit code after `serve`, when everything is closed.

    A thread that is still at work ends here: its round is paid for or released, or neither, and can be asked
    for again.
    """
    if not finished:
        os._exit(0)
    return 0


def _on_signal(act: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: act())


def log_to(file: Path, *packages: str) -> None:
    """Write what these packages log to stderr and to `file`, mode 0600. InputError if the file cannot be
    written.
    """
    logging.raiseExceptions = False  # a full disk is no reason to stop, nor to fill stderr
    try:
        file.touch(mode=0o600)
        kept = RotatingFileHandler(file, maxBytes=_BYTES, backupCount=_OLD, encoding="utf-8")
    except OSError as error:
        raise InputError("state", str(file), f"a file that can be written ({error.strerror})") from None
    handlers = (kept, logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for package in packages:
        top = logging.getLogger(package)
        top.setLevel(logging.INFO)
        for handler in handlers:
            top.addHandler(handler)
