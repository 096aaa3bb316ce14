"""A daemon as a service of the operating system: its exit code and its signals."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from fedsim.common.errors import InputError, Refused
from fedsim.wire.daemon import Daemon

FAILED = 74
"""The exit code of a daemon that has failed (EX_IOERR of sysexits.h)."""


def exit_code(run: Callable[[], int]) -> int:
    """The exit code of a command; 2 with one line on stderr for what its operator can mend."""
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
    """Answer until SIGTERM or SIGINT, or it fails, and finish what is in hand; False if that is too long."""
    _on_signal(daemon.stop)
    # A signal just before the wait for clients, or in another thread, does not end that wait; a byte does.
    signal.set_wakeup_fd(daemon.wake.fileno())
    try:
        return daemon.run()
    finally:
        signal.set_wakeup_fd(-1)


def stopped(daemon: Daemon, finished: bool) -> int:
    """The exit code after `serve`, when everything is closed.

    A thread still at work ends here: its round is paid for or released, or neither, and can be asked again.
    """
    code = FAILED if daemon.failed else 0
    if not finished:
        os._exit(code)
    return code


def _on_signal(act: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: act())
