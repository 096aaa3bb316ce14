"""`python -m fedsim.deployment.forked MODULES PROCESS...`: processes that load their modules once.

Each is a fork, made when MODULES (a comma between two) are loaded and nothing else has happened: no thread of
Python's, no random number, no file. It is what `python -m` with the first of them would be, with its own log.
A PROCESS is the JSON of [name, log, arguments]. Once one ends it is named, and the others end; they do at
SIGTERM. It separates nothing: it is for one user's processes on one machine.
"""

import gc
import json
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from fedsim.common.plugins import load_none


def main() -> int:
    """The exit code: that of the first process that ended, 0 after SIGTERM."""
    load_none()
    first, *_ = map(import_module, sys.argv[1].split(","))
    gc.freeze()  # a look for garbage would write to every page, and so copy it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it waits until there is a handler for it
    started = {}
    for name, log, arguments in map(json.loads, sys.argv[2:]):
        if (pid := os.fork()) == 0:
            with open(log, "ab") as out:
                os.dup2(out.fileno(), 1), os.dup2(out.fileno(), 2)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            sys.argv[1:] = arguments
            return first.main() or 0
        started[pid] = name, log
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        pid, status = os.wait()
        name, log = started.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        print(f"{name} ended (exit code {code}); its log {log} ends:")
        print(*Path(log).read_text(errors="replace").splitlines()[-10:], sep="\n", flush=True)
        return abs(code)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for pid in started:
            with suppress(ProcessLookupError):  # it ended while the signal came
                os.kill(pid, signal.SIGTERM)
        with suppress(ChildProcessError):  # until there is none
            while True:
                os.wait()


if __name__ == "__main__":
    sys.exit(main())
