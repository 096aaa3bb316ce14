"""Hostile frames into a daemon's socket and into the parser, as a command; `--frames 500000` for all of it.

One frame in ten goes to a daemon process over its socket, the others to the parser in this process:
changed ones (`support.mutations`), replays of what was sent and answered, absurd lengths, streams that are
cut. The parser refuses or reads them; the daemon refuses, hangs up, or answers as it would have, and a round
that it debits is one that it has answered. Then honest requests are answered, and both have their size.
"""

import argparse
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":  # pytest has it on its path
    sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from support.daemons import Silo, running_silos
from support.mutations import Message, mutated
from support.one_server import OneServer, broadcast, frame, offer

from fedsim.common.errors import Refused
from fedsim.wire.dial import dial
from fedsim.wire.frames import decode, opened
from fedsim.wire.messages import Ask, Close, Hello, Offer
from silos.vault.book import read

ROUNDS = 40
GROWTH = 64 << 20
"""Bytes that either process may grow by after the first tenth of the frames."""
LENGTHS = (0, 1, 67, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
_LENGTH = struct.Struct(">Q")


class Found(NamedTuple):
    """Kinds of answers (hung-up connections among them), and growth in bytes of parser and daemon."""

    kinds: Counter[str]
    grown: tuple[int, int]
    seconds: float


def fuzz(frames: int, seed: int = 0) -> Found:
    """Send them.

    Raises:
        AssertionError: something was answered, debited, kept or lost that should not be.
    """
    began, rng, kinds = time.perf_counter(), random.Random(seed), Counter[str]()
    with running_silos(1, max_rounds=ROUNDS) as made:
        silo = made["silo-1"]
        with OneServer(silo.socket, silo.identity) as server:
            server.offer(offer(num_rounds=ROUNDS, epsilon=2.0))
            server.ask(0)
            known, said = server.received[server.run, 0][-1], set[tuple[str, int]]()
            processes, before = (psutil.Process(), psutil.Process(silo.pid)), (0, 0)
            for i, data in enumerate(islice(_hostile(server.run, known, rng), frames)):
                if i == frames // 10:
                    before = _sizes(processes)
                if i % 10:
                    kinds["parser: " + _parsed(data)] += 1
                    continue
                kind, where = _sent(server, silo, data, rng)
                kinds[kind] += 1
                if where is not None:
                    said.add(where)
            grown = tuple(now - then for now, then in zip(_sizes(processes), before, strict=True))
            assert set(kinds) <= {"refusal", "greeting", "admission", "reply", "hung up", *_PARSER}, kinds
            assert max(grown) < GROWTH, grown
            _check_debits(silo, said | {(server.run, 0)})
            assert server.hello().kind == "greeting"
            assert [server.ask(ROUNDS - 2).kind for _ in range(2)] == ["reply"] * 2
            first, again = server.received[server.run, ROUNDS - 2]
            assert first == again
            assert {0, ROUNDS - 2} <= set(server.close().rounds)
            refused = sum(" refused: " in line for line in silo.said.read_text().splitlines())
            assert refused >= kinds["refusal"]  # each has its line in the log, and some were not waited for
        assert silo.stop() == 0
    return Found(kinds, (grown[0], grown[1]), time.perf_counter() - began)


_PARSER = ("parser: refused", "parser: read")


def corpus(run: str, admitted: Offer, rounds: Iterable[int]) -> list[Message]:
    """Messages round an open run: its offer and others, asks of these rounds and of no run, a close."""
    shown = [
        Hello(),
        admitted,
        offer(session=2),
        offer(session=3, problem={"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}}),
        Close(run="0" * 64, head=""),
    ]
    asked = [(Ask(run=run, round=r, head=""), broadcast(r)) for r in rounds]
    asked.append((Ask(run="0" * 64, round=0, head=""), broadcast(0)))
    return [(m.kind, m.model_dump(mode="json"), arrays) for m, arrays in [*((m, {}) for m in shown), *asked]]


def _hostile(run: str, known: bytes, rng: random.Random) -> Iterator[bytes]:
    """Without end; one in twenty is a replay of an earlier one, or of the daemon's own answer."""
    asked = frame(Ask(run=run, round=0, head=""), broadcast(0))
    messages = corpus(run, offer(num_rounds=ROUNDS, epsilon=2.0), (0, 1, 2, ROUNDS - 1, ROUNDS))
    sent, new = [known, asked], mutated(messages, rng.random())
    while True:
        if rng.random() < 0.05:
            yield rng.choice(sent)
            continue
        data = next(new)
        if len(data) < 10_000:
            sent[2:] = [*sent[2:][-100:], data]
        yield data


def _parsed(data: bytes) -> str:
    try:
        decode(opened(data)[0])
    except Refused:
        return "refused"
    return "read"


def _sent(
    server: OneServer, silo: Silo, data: bytes, rng: random.Random
) -> tuple[str, tuple[str, int] | None]:
    """The answer's kind, and of a reply run and round; one in fifty has a length of its own, or is cut."""
    if rng.random() < 0.02:
        with dial(silo.socket, 10) as connection:
            length = rng.choice(LENGTHS) if rng.random() < 0.5 else len(data)
            connection.sendall((_LENGTH.pack(length) + data[: rng.randrange(len(data) + 1)])[:100_000])
        return "hung up", None
    answer = server.exchange(data)[_LENGTH.size :]
    if not answer:  # longer than this silo takes
        server.close_connection()
        return "hung up", None
    told = decode(opened(answer)[0])
    return told.kind, (told.head["run"], told.head["round"]) if told.kind == "reply" else None


def _check_debits(silo: Silo, answered: set[tuple[str, int]]) -> None:
    """A round that was paid for was answered: nothing was debited for what was refused."""
    runs = read(silo.ledger).runs
    paid = {(run, r) for run, record in runs.items() for r in record.rounds}
    assert paid == answered, (len(paid), len(answered))
    assert all(each.reply for record in runs.values() for each in record.rounds.values())


def _sizes(processes: tuple[psutil.Process, psutil.Process]) -> tuple[int, int]:
    first, second = (process.memory_info().rss for process in processes)
    return first, second


def main() -> None:
    given = argparse.ArgumentParser(description="Hostile frames into a daemon and the parser.")
    given.add_argument("--frames", type=int, default=2_000)
    given.add_argument("--seed", type=int, default=0)
    asked = given.parse_args()
    found = fuzz(asked.frames, asked.seed)
    print(f"{asked.frames} frames in {found.seconds:.0f} s: {dict(sorted(found.kinds.items()))}")
    print(f"the parser's process grew by {found.grown[0] >> 10} kB, the daemon by {found.grown[1] >> 10} kB")


if __name__ == "__main__":
    main()
