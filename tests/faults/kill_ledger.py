"""SIGKILL and loss of power to processes that spend from a silo's ledger: `kill_ledger.py --help`.

Each process opens the ledger, pays for rounds, stores answers of random bytes, and says, after each step has
returned, what would have left the silo by then. It is killed at a random moment, or at a random one of the
calls that change the ledger's files. In some cases the machine loses power besides: of the writes that were
not synchronised (`write_log.c` records all) any part is lost. Then the ledger must open, and hold whatever
was said: no round with two answers, none unpaid, nothing lost that had left. Prints the counts as JSON; the
exit code is 1 if anything was violated.
"""

import argparse
import ctypes
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import torch  # noqa: E402
from support.ledgers import broadcast, enrolled, gaussian, open_run  # noqa: E402
from support.power_loss import after_loss, calls, ends, files_of, made, put_back  # noqa: E402

from fedsim.common.chain import chained, reading  # noqa: E402
from fedsim.common.errors import InputError, Refused  # noqa: E402
from silos.vault.book import LEDGER, read  # noqa: E402
from silos.vault.ledger import Reply  # noqa: E402
from silos.vault.ledger_file import LedgerFile  # noqa: E402

LOG, LIBRARY = 900, "LEDGER_WRITE_LOG"
ROUNDS, KILLS_A_LEDGER = 12, 40
Word = tuple[str, str, int, str]
"""What was said: a step, the run, the round, and a hash: the answer's, or the chain's head."""


def _hash(reply: Reply) -> str:
    return hashlib.sha256(reply["g"].numpy().tobytes()).hexdigest()


def _step(file: LedgerFile, say: int, rng: random.Random) -> None:
    """One round of the newest run, or its end; a round that an earlier process began is gone on with."""

    def said(step: str, index: int, what: str) -> None:
        os.write(say, f"{json.dumps([step, run.run, index, what])}\n".encode())

    runs = file.open_runs()
    run = runs[-1] if runs else open_run(file, len(file.book.runs) + 1, gaussian(ROUNDS, 1e-6))
    said("opened", 0, file.head)
    last = run.record.last
    if last is not None and (stored := run.find(last, broadcast(last))) is not None:
        said("answered", last, _hash(stored))
    begun = [index for index, found in run.record.rounds.items() if found.under_way]
    index = begun[0] if begun else len(run.debited)
    if index == ROUNDS:
        file.close_run(run.run)
        said("closed", 0, file.head)
        return
    run.debit(index, broadcast(index))
    said("debited", index, file.head)
    reply = {
        "g": torch.frombuffer(
            bytearray(os.urandom(rng.choice([40, 4_000, 40_000, 400_000]))), dtype=torch.uint8
        )
    }
    run.store(index, reply, {})
    said("answered", index, _hash(reply))


def _work(path: Path, say: int, rng: random.Random, careless: bool) -> None:
    while True:
        with LedgerFile.open(path) as file:
            if careless:  # commits wait for no disk
                file.connection.execute("PRAGMA synchronous = OFF")
            for _ in range(rng.randint(1, 30)):
                _step(file, say, rng)


def killed(path: Path, log: Path, rng: random.Random, careless: bool) -> list[Word]:
    """What a process said before it was killed."""
    hear, say = os.pipe()
    moment, call, seed = rng.random() * 0.25, rng.randrange(1, rng.choice([50, 200, 800])), rng.random()
    at_call = rng.random() < 0.5
    log.write_bytes(b"")
    child = os.fork()
    if child == 0:
        os.close(hear)
        try:
            os.dup2(os.open(log, os.O_APPEND | os.O_WRONLY), LOG)
            if at_call:
                ctypes.c_long.in_dll(ctypes.CDLL(os.environ[LIBRARY]), "die_at").value = call
            _work(path, say, random.Random(seed), careless)
        finally:  # any error: the parent sees that it did not have to be killed
            os._exit(1)
    os.close(say)
    if not at_call:
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    heard = b""
    while part := os.read(hear, 1 << 16):
        heard += part
    os.close(hear)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise Violation("a process could not go on with the ledger")
    return [tuple(json.loads(line)) for line in heard.decode().splitlines()]


class Violation(Exception):
    """The ledger's promise is broken."""


def check(path: Path, words: list[Word]) -> None:
    """The ledger opens and holds all that was said."""
    try:
        book = read(path)
        with reading(path, LEDGER) as connection:
            heads = {entry.hash.hex() for entry in chained(connection, LEDGER)}
    except (Refused, InputError) as error:
        cause = "" if error.__cause__ is None else f" ({error.__cause__})"
        raise Violation(f"{error}{cause}") from None
    answers: dict[tuple[str, int], str] = {}
    for step, name, index, what in words:
        run = book.runs.get(name)
        if run is None:
            raise Violation("a run is lost")
        if step != "answered" and what not in heads:
            raise Violation("an entry is lost")
        if step == "closed" and run.open:
            raise Violation("a closed run is open")
        if step in ("debited", "answered") and index not in run.rounds:
            raise Violation("a round left and is not paid for")
        if step == "answered":
            if run.rounds[index].reply is None:
                raise Violation("an answer is lost")
            if answers.setdefault((name, index), what) != what:
                raise Violation("a round has two answers")


def lose_power(path: Path, before: dict[str, bytes], log: Path, rng: random.Random) -> None:
    """Undo what was not synchronised."""
    record, found = calls(log.read_bytes()), files_of(path)
    if found not in (made(before, each) for each in ends(record)):
        raise Violation("the record of writes is not what was written")  # then it would prove nothing
    put_back(path, after_loss(before, record, rng))


def main(kills: int, losses: int, seed: int, careless: bool) -> int:
    """Kill, check, and print what was found."""
    rng, count, start = random.Random(seed), Counter[str](), time.monotonic()
    with_loss = set(rng.sample(range(kills), losses))
    violations: list[str] = []
    for first in range(0, kills, KILLS_A_LEDGER):
        with tempfile.TemporaryDirectory() as folder:
            path, log = enrolled(Path(folder))[0], Path(folder) / "log"
            words: list[Word] = []
            for kill in range(first, min(first + KILLS_A_LEDGER, kills)):
                before = files_of(path)
                try:
                    words += killed(path, log, rng, careless)
                    count["kills"] += 1
                    if kill in with_loss:
                        lose_power(path, before, log, rng)
                        count["with loss of power"] += 1
                    check(path, words)
                except Violation as found:
                    lost = ", with loss of power" if kill in with_loss else ""
                    violations.append(f"kill {kill}{lost}: {found}")
                    break
            count["rounds answered"] += len({word[1:3] for word in words if word[0] == "answered"})
    seconds = round(time.monotonic() - start)
    print(json.dumps({**count, "seconds": seconds, "violations": violations}, indent=2))
    return int(bool(violations))


def _preloaded() -> None:
    """Begin again with the record of writes in this process, if it is not."""
    if LIBRARY not in os.environ:
        library = Path(tempfile.mkdtemp()) / "write_log.so"
        build = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "write_log.c")]
        subprocess.run(build, check=True)
        told = {"LD_PRELOAD": str(library), LIBRARY: str(library), "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **told})


if __name__ == "__main__":
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--kills", type=int, default=40)
    given.add_argument("--power-losses", type=int, default=20, help="how many of the kills, at most all")
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--careless", action="store_true", help="a ledger that waits for no disk: must fail")
    told = given.parse_args()
    _preloaded()
    sys.exit(main(told.kills, told.power_losses, told.seed, told.careless))
