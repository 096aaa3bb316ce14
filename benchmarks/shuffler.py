"""Seconds of processor time that a round of sums takes with real shares, and with envelopes.

    python benchmarks/shuffler.py [--silos 1000] [--dimension 1000] [--rounds 5]

Everything happens in this process: what all silos do, what the shuffler does and what the server does. In a
federation each silo has a machine of its own, and what silos do is divided by their number.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.rosters import Parties

from fedsim.secagg.reports import Form, add, split, total
from fedsim.secagg.shuffling import Release, Request, totals
from shuffler.keys import Keys
from shuffler.rounds import Shuffler
from shuffler.store import MemoryStore

Times = dict[str, float]


def timed(spent: Times, part: str, act: Callable[[], Any]) -> Any:
    """What `act` returns; its processor time is added to the part's."""
    began = time.process_time()
    result = act()
    spent[part] = spent.get(part, 0.0) + time.process_time() - began
    return result


def shares(counts: np.ndarray[Any, Any], spent: Times) -> np.ndarray[Any, Any]:
    """A round of additive shares alone: split, both sums, total."""
    ours, theirs = timed(spent, "split", lambda: split(counts))
    return timed(spent, "add, decode", lambda: total(add(ours), add(theirs)))


def envelopes(
    parties: Parties, shuffler: Shuffler, counts: np.ndarray[Any, Any], form: Form, index: int, spent: Times
) -> np.ndarray[Any, Any]:
    """A round as the protocol has it: reports, one release, the server's half."""
    context = parties.context(index, form=form)
    numbers = counts[:, None]
    reports = timed(
        spent,
        "silos: split, sign, seal twice",
        lambda: tuple(parties.report(i, row, context) for i, row in enumerate(numbers)),
    )
    request = Request(context, reports)
    frame = timed(spent, "shuffler: open, verify, add, permute, sign", lambda: shuffler.shuffle(request))
    identity, quiet = bytes.fromhex(shuffler.keys.identity.public), np.zeros(form.words, np.uint64)
    return timed(
        spent,
        "server: verify, open, add, decode",
        lambda: totals(
            Release.read(frame, request, identity),
            parties.roster,
            parties.server,
            quiet,
        )[0],
    )


def show(title: str, spent: Times, rounds: int) -> None:
    """A line for each part."""
    print(f"{title}: {sum(spent.values()) / rounds:.3f} s")
    for part, seconds in spent.items():
        print(f"    {part}: {seconds / rounds:.3f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--silos", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    parties, form = Parties(asked.silos), Form("shares", asked.dimension, (0.0,))
    keys = Keys(parties.shuffler, parties.shuffler_identity)
    shuffler = Shuffler([parties.roster], keys, MemoryStore())
    counts = np.random.default_rng(0).integers(-(2**40), 2**40, (asked.silos, asked.dimension))
    truth, plain, sealed = counts.sum(axis=0), Times(), Times()
    for index in range(asked.rounds):
        assert (shares(counts, plain) == truth).all()
        assert (envelopes(parties, shuffler, counts, form, index, sealed) == truth).all()
    print(f"{asked.silos} silos, d = {asked.dimension}; {os.cpu_count()} processors, processor time a round")
    show("shares", plain, asked.rounds)
    show("envelopes", sealed, asked.rounds)


if __name__ == "__main__":
    main()
