"""A hundred thousand frames that break the protocol: refused, and the silo is as it was."""

import logging
from collections import Counter
from itertools import islice
from typing import Any

import psutil
import pytest
from faults.fuzz_frames import corpus, fuzz
from support.daemons import LIFETIME, enrolled_silo, short_folder
from support.mutations import mutated
from support.one_server import broadcast, frame, offer

from fedsim.wire.frames import decode, opened
from fedsim.wire.messages import Ask
from silos.front.config import load_config
from silos.front.silo import Silo
from silos.vault.book import Book

ROUNDS = 3
GROWTH = 64 << 20
"""Bytes that a process may grow by, however many frames came."""
ALL_SPENT = {**LIFETIME, "epsilon": 2.0, "delta": 1e-5}

RUN = offer(num_rounds=ROUNDS, epsilon=2.0, delta=1e-5)
"""It takes the whole account, so that no changed offer is one that fits."""


def paid(book: Book) -> Any:
    return book.account.left, {run: sorted(each.rounds) for run, each in book.runs.items() if each.rounds}


def check_answers(kinds: Counter[str], replies: set[bytes], known: bytes) -> None:
    """Nearly all were refused, a few were what they would have been, and no reply is a new one."""
    assert set(kinds) <= {"refusal", "greeting", "admission", "reply"}
    assert kinds["refusal"] > 0.9 * kinds.total()
    assert kinds["greeting"] > 0
    assert replies <= {known}


@pytest.mark.parametrize("count", [4_000, pytest.param(95_000, marks=pytest.mark.slow)])
def test_frames_into_a_silo(count, caplog):
    caplog.set_level(logging.CRITICAL)  # which would keep a record of each
    with short_folder() as folder:
        silo = Silo.open(load_config(enrolled_silo(folder, lifetime=ALL_SPENT)))
        run = decode(opened(silo.answer(frame(RUN)))[0]).head["run"]
        for r in range(ROUNDS):
            known = silo.answer(frame(Ask(run=run, round=r, head=""), broadcast(r)))
        before, process = paid(silo.ledger.book), psutil.Process()
        kinds: Counter[str] = Counter()
        replies = set()
        for i, data in enumerate(islice(mutated(corpus(run, RUN, range(ROUNDS + 1)), seed=1), count)):
            if i == count // 10:
                memory = process.memory_info().rss
            answer = silo.answer(data)
            kind = decode(opened(answer)[0]).kind
            kinds[kind] += 1
            if kind == "reply":
                replies.add(answer)
        check_answers(kinds, replies, known)
        assert process.memory_info().rss - memory < GROWTH
        assert paid(silo.ledger.book) == before
        assert silo.answer(frame(Ask(run=run, round=ROUNDS - 1, head=""), broadcast(ROUNDS - 1))) == known
        silo.close()


@pytest.mark.parametrize("count", [4_000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_frames_into_a_daemon_and_the_parser(count):
    kinds = fuzz(count).kinds
    assert kinds["refusal"] > 0.07 * count
    assert (
        min(kinds[kind] for kind in ("greeting", "reply", "hung up", "parser: refused", "parser: read")) > 0
    )
