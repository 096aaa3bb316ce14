"""A silo's metrics for Prometheus: what its answers and receipts say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from fedsim.wire.connections import MetricsAt
from fedsim.wire.daemon import Daemon
from fedsim.wire.metrics import Metric, answers, exposed, info, single
from silos.front.config import ROOT
from silos.front.silo import Silo
from silos.vault.journal import SECOND


def exposed_silo(at: MetricsAt, silo: Silo, daemon: Daemon) -> AbstractContextManager[None]:
    """While the block lasts; InputError if the port is taken, or the library is not installed."""
    return exposed(at, f"{ROOT}.metrics", lambda: _read(silo, daemon))


def _read(silo: Silo, daemon: Daemon) -> Iterator[Metric]:
    """Public numbers: kinds of answers, which the server has; prices, of plans and the number of units."""
    with silo.ledger.lock:
        book = silo.ledger.book
        account, runs = book.account, list(book.runs.values())
        costs = {"cap": account.caps.total, "charged": account.charged, "reserved": account.reserved}
        rounds = sum(len(run.rounds) for run in runs)
    yield info()
    yield answers(daemon.answered)
    yield single("open_runs", "Runs that hold a reservation.", sum(run.open for run in runs))
    yield single("rounds_paid_total", "Rounds that were paid for.", rounds)
    for name, cost in costs.items():
        yield Metric(f"lifetime_{name}", f"Lifetime account: {name}.", cost.tree(), "account")
    end = book.enrolment.expires / SECOND
    yield single("lifetime_end_timestamp_seconds", "After this nothing is released.", end)
