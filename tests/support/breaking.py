"""What a test breaks in a daemon's process before it serves: given to `Silo.start` as `before`."""

import os
import signal
from functools import wraps
from typing import Any

PLACES = ("before debit", "after debit", "after noise", "after store", "mid-send")


def around(owner: Any, name: str, before: Any = None, after: Any = None) -> None:
    """Replace a method by one that calls `before` and `after` with what it is given."""
    real = getattr(owner, name)

    @wraps(real)
    def wrapped(*given: Any, **named: Any) -> Any:
        if before is not None:
            before(*given)
        result = real(*given, **named)
        if after is not None:
            after(*given)
        return result

    setattr(owner, name, wrapped)


def kill_at(place: str, round_index: int) -> None:
    """Arrange that this process kills itself at a place of a round, as a loss of power would."""
    from fedsim.wire.daemon import Daemon
    from fedsim.wire.frames import framed, head_of, opened
    from silos.vault.gate import OpenRound
    from silos.vault.ledger import RunLedger
    from silos.vault.releases import RoundReleases

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    now: list[int] = []

    def at_round(_: Any, asked: int, *rest: Any) -> None:
        if asked == round_index:
            die()

    def half_sent(_: Any, client: Any, kind: str, data: bytes) -> None:
        if kind == "reply" and head_of(opened(data)[0])[1]["round"] == round_index:
            whole = framed(data)
            client.connection.sendall(whole[: len(whole) // 2])
            die()

    match place:
        case "before debit":
            around(RunLedger, "debit", before=at_round)
        case "after debit":
            around(RunLedger, "debit", after=at_round)
        case "after noise":
            around(OpenRound, "ask", before=lambda opened, *_: now.append(opened._round))
            around(RoundReleases, "_release", after=lambda *_: at_round(None, now[-1]))
        case "after store":
            around(RunLedger, "store", after=at_round)
        case "mid-send":
            around(Daemon, "_give", before=half_sent)


def kill_at_write(number: int) -> None:
    """Arrange that this process kills itself before it syncs, moves or removes a file the so manieth time."""
    left = [number]

    def before(real: Any) -> Any:
        @wraps(real)
        def wrapped(*given: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given)

        return wrapped

    os.fsync, os.replace, os.unlink = before(os.fsync), before(os.replace), before(os.unlink)


def obeying_modes() -> None:
    """Files' modes hold for this process too where tests run as root: it gives its capabilities up."""
    import ctypes

    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    assert ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)()) == 0


def clock_at(*ahead: float) -> None:
    """The clock of the day is so many seconds ahead, at one look after the other, again and again."""
    import itertools
    import time

    real, wrong = time.time_ns, itertools.cycle(ahead)
    time.time_ns = lambda: real() + int(next(wrong) * 1e9)
    time.time = lambda: time.time_ns() / 1e9


def slow_answers() -> None:
    """A round takes a second, after the daemon has said that it is at one."""
    import logging
    import time

    from silos.vault.gate import Gate

    real = Gate.asked

    def slow(*given: Any) -> Any:
        logging.getLogger("silos").info("at a round")
        time.sleep(1)
        return real(*given)

    Gate.asked = slow


def unbounded_rounds() -> None:
    """A round may take any time; the daemon says when it is at one."""
    import logging
    from math import inf

    import silos.front.workload
    from silos.vault.gate import OpenRound

    silos.front.workload.SECONDS = inf
    around(OpenRound, "ask", before=lambda *_: logging.getLogger("silos").info("at a round"))
