"""A process that spends from a ledger and says so after each step: `ledger_process.py LEDGER KILLS SEED`.

It forks children that do so, kills each with SIGKILL at a random moment, and prints for each a JSON line of
what it had said by then. torch is loaded once for all of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from support.ledgers import broadcast, open_run, reply_of

from silos.ledger_file import LedgerFile


def work(path: Path, say: int) -> None:
    """Open, answer what is open, close every tenth round; one line per step that returned."""
    with LedgerFile.open(path) as file:
        while True:
            number = len(file.book.runs) or 1
            run = open_run(file, number if file.open_runs() else number + 1)
            _line(say, "opened", run.run, 0, file.head)
            for index in range(len(run.debited) - bool(_unanswered(run)), 10):
                found = run.find(index, broadcast(index))
                if found is None:
                    run.debit(index, broadcast(index))
                    _line(say, "debited", run.run, index, file.head)
                    run.store(index, reply_of(index), {})
                    _line(say, "replied", run.run, index, run.head_of(index))
            file.close_run(run.run)
            _line(say, "closed", run.run, 0, file.head)


def _unanswered(run: object) -> bool:
    return any(found.under_way for found in run.record.rounds.values())  # type: ignore[attr-defined]


def _line(say: int, *words: object) -> None:
    os.write(say, f"{json.dumps(words)}\n".encode())


def killed(path: Path, rng: random.Random) -> list[list[object]]:
    """What a child said before it was killed."""
    hear, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hear)
        try:
            work(path, say)
        finally:  # any error: the parent sees that nobody had to be killed
            os._exit(1)
    os.close(say)
    heard = b""
    for _ in range(rng.randint(1, 12)):
        heard += os.read(hear, 1 << 16)
    time.sleep(rng.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while part := os.read(hear, 1 << 16):
        heard += part
    os.close(hear)
    assert os.WIFSIGNALED(status), "the child failed by itself"
    return [json.loads(line) for line in heard.decode().splitlines()]


def main(path: Path, kills: int, seed: int) -> None:
    """Print each child's words."""
    rng = random.Random(seed)
    for _ in range(kills):
        print(json.dumps(killed(path, rng)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
