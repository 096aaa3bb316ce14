"""Few kills of what a deployed run consists of: see `kill_runs.py`, the command that does many."""

import random

import pytest
from faults.kill_runs import killed_runs, running
from support.one_server import frame
from support.tap import Exchange

from fedsim.wire.frames import decode, encode, opened, sealed
from fedsim.wire.messages import Ask

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sums", [False, True], ids=["plain", "sums"])
def test_no_kill_makes_two_answers_an_unpaid_one_or_a_run_without_end(sums):
    count = killed_runs(sums, runs=2, kills=12, seed=0)
    assert count["kills"] >= 12
    assert count["replies seen"] > 0


def test_two_answers_and_an_unpaid_one_are_found_out():
    with running(False, random.Random(0)) as parties:
        parties.run(0, kills=1)
        tap = parties.taps["silo-00"]
        request, answer = next(seen for seen in tap.seen if decode(opened(seen.answer)[0]).kind == "reply")
        told = decode(opened(answer)[0])
        other = sealed(encode(told._replace(arrays={name: -row for name, row in told.arrays.items()})))
        tap.seen.append(Exchange(request, other))
        with pytest.raises(AssertionError, match="was answered twice"):
            parties.check()
        tap.seen[-1] = Exchange(frame(Ask(run=told.head["run"], round=99, head="")), answer)
        with pytest.raises(AssertionError, match="was not paid for"):
            parties.check()
