"""`python -m fedsim.deployment.forked MODULES PROCESS...`: processes that load their modules once.

Each is a fork of this one, made when the modules are loaded and nothing else has happened: no thread of
Python's, no random number, no file. Then it is the process that `python -m` with the first of MODULES (a
comma between two) would be, with a log of its own. A PROCESS is the JSON of [name, log, arguments]. When one
ends, this one names it, ends the others and then itself; so it does at SIGTERM.

It separates nothing: it is for one user's processes on one machine, as of `fedsim up`.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from fedsim.common.plugins import load_none

_LAST_LINES = 10


def command(modules: Sequence[str], processes: Sequence[tuple[str, Path, Sequence[str]]]) -> list[str]:
    """What runs `main` of the first module in each of the processes: (name, log, arguments)."""
    each = [json.dumps([name, str(log), list(arguments)]) for name, log, arguments in processes]
    return [sys.executable, "-m", __name__, ",".join(modules), *each]


def main() -> int:
    """The exit code: that of the first process that ended, 0 after SIGTERM."""
    load_none()
    first, *_ = map(import_module, sys.argv[1].split(","))
    gc.freeze()  # a look for garbage would write to every page, and so copy it
    logs: dict[int, tuple[str, Path]] = {}
    for name, log, arguments in map(json.loads, sys.argv[2:]):
        if (pid := os.fork()) == 0:
            return _be(first.main, Path(log), arguments)
        logs[pid] = name, Path(log)
    return _wait(logs)


def _be(run: Callable[[], int | None], log: Path, arguments: Sequence[str]) -> int:
    with log.open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.argv[1:] = arguments
    return run() or 0


def _wait(logs: dict[int, tuple[str, Path]]) -> int:
    codes: list[int] = []

    def end(code: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        codes.append(code)
        for pid in logs:
            with suppress(ProcessLookupError):  # `os.wait` may just have had it
                os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, lambda *_: end(0))
    while logs:
        pid, status = os.wait()
        name, log = logs.pop(pid)
        if not codes:
            code = os.waitstatus_to_exitcode(status)
            print(f"{name} ended (exit code {code}); its log {log} ends:")
            print(*log.read_text(errors="replace").splitlines()[-_LAST_LINES:], sep="\n", flush=True)
            end(abs(code))
    return codes[0]


if __name__ == "__main__":
    sys.exit(main())
