"""`fedsim ledger`: a silo's ledger read beside its daemon, and its receipts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedsim.common.errors import InputError
from fedsim.common.files import whole_file
from fedsim.common.identity import Identity
from fedsim.privacy import gaussian
from fedsim.privacy.rounding import shown_down, shown_up
from silos import receipts
from silos.account import Cost
from silos.book import Book, Run, read
from silos.chain import FILE
from silos.clock import SECOND

_WORDS = {
    "mu_sq": "mu^2 of Gaussian plans",
    "epsilon": "epsilon of sampled plans",
    "delta": "delta of sampled plans",
    "distance": "distance of discrete noise",
}
_POOLED = (
    "That counts its runs of sums over silos as what they cost while server and shuffler do not collude."
)
_SHORT = 12  # digits of a run's id that stand for it


def show(state: Path, delta: float | None, head: str | None, as_json: bool) -> None:
    """Check the whole ledger, then print its account and runs.

    Raises:
        InputError: there is no ledger, `head` is not in its chain, or delta is out of bounds.
        Refused: it was altered, is damaged or cannot be read.
    """
    book = read(_file(state), head)
    delta = book.enrolment.caps.delta if delta is None else delta
    if not 0 < delta < 1:
        raise InputError("--delta", delta, "a number in (0, 1)")
    if as_json:
        typer.echo(json.dumps(_tree(book, delta), indent=2, allow_nan=False))
        return
    console, caps = Console(), book.enrolment.caps
    for line in (
        *book.notices,
        f"Silo {book.enrolment.silo}: all that it ever releases is ({shown_up(caps.epsilon)}, "
        f"{shown_up(caps.delta)})-DP for replacing one of its records, whatever is asked of it.",
        *([_POOLED] if _pooled(book) else []),
        f"Its life ends at {_time(book.enrolment.expires)}. Public key {book.enrolment.identity}.",
        f"{book.length} entries, whole and in order; the last of {_time(book.time)}. Head {book.head}.",
        f"A run of a Gaussian plan with delta {shown_down(delta)} may still cost epsilon "
        f"{shown_down(_affordable(book, delta))}.",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(_account(book))
    console.print(_runs(book))


def receipt(state: Path, run: str, out: Path | None) -> None:
    """Write, or print, the signed receipt of a closed run.

    Raises:
        InputError: no run of the ledger, or more than one, begins with `run`; or there is no key.
        Refused: the run is open, or the ledger cannot be read.
    """
    place = _file(state)
    book = read(place)
    found = [name for name in book.runs if name.startswith(run)]
    if len(found) != 1:
        raise InputError("RUN", run, f"the first digits of one run's id; {len(found)} runs begin so")
    signed = receipts.signed(book.enrolment, book.runs[found[0]], Identity.load(place.parent))
    if out is None:
        typer.echo(signed)
        return
    with whole_file(out) as draft:
        draft.write_text(f"{signed}\n")
    typer.echo(f"Wrote {out}")


def verify(file: Path, key: str) -> None:
    """Check a receipt's signature and print what it states.

    Args:
        file: the receipt.
        key: the silo's public key, 64 hexadecimal digits, or a file with it.

    Raises:
        InputError: receipt or key cannot be read.
        Refused: the silo of this key did not sign this.
    """
    key = _text("--key", Path(key)) if Path(key).is_file() else key
    stated = receipts.verified(_text("RECEIPT", file), key)
    typer.echo(json.dumps(stated, indent=2, sort_keys=True))
    typer.echo(f"The silo of this key signed this receipt: {stated['silo']}, run {stated['run']}.", err=True)


def _text(field: str, file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        raise InputError(field, str(file), "a text file that can be read") from None


def _file(state: Path) -> Path:
    return state / FILE if state.is_dir() else state


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds // SECOND, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _affordable(book: Book, delta: float) -> float:
    """The epsilon of a Gaussian plan that takes what is left, rounded down."""
    return float(gaussian.epsilon(sqrt(book.account.left.mu_sq) * (1 - 1e-9), delta))


def _account(book: Book) -> Table:
    table = _titled("Lifetime account")
    table.add_column("", overflow="fold")
    for name in ("cap", "charged", "reserved", "left"):
        table.add_column(name, justify="right", no_wrap=True)
    account = book.account
    columns = [cost.tree() for cost in (account.caps.total, account.charged, account.reserved, account.left)]
    for name, words in _WORDS.items():
        cap, charged, reserved, left = (column[name] for column in columns)
        table.add_row(words, shown_down(cap), shown_up(charged), shown_up(reserved), shown_down(left))
    return table


def _runs(book: Book) -> Table:
    table = _titled("Runs")
    for name in ("run", "opened", "state"):
        table.add_column(name, no_wrap=True)
    pooled = ("colluding",) if _pooled(book) else ()
    for name in ("rounds", "epsilon", *pooled, "delta", "mu^2"):  # as guaranteed; mu^2 as charged
        table.add_column(name, justify="right", no_wrap=True)
    for run in book.runs.values():
        terms = run.terms
        figures = [terms.get("epsilon_guaranteed"), terms.get("delta")]
        figures += [(run.charged or run.price.whole).mu_sq]
        if pooled:  # a run without others' noise has the one epsilon
            figures.insert(1, terms.get("epsilon_colluding", terms.get("epsilon_guaranteed")))
        rounds = f"{len(run.rounds)} of {len(run.price.rounds)}"
        state = "open" if run.open else "closed"
        table.add_row(run.run[:_SHORT], _time(run.opened)[:10], state, rounds, *map(shown_up, figures))
    return table


def _pooled(book: Book) -> bool:
    """Whether a run was one of sums over silos."""
    return any("epsilon_colluding" in run.terms for run in book.runs.values())


def _titled(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)


def _tree(book: Book, delta: float) -> dict[str, Any]:
    account = book.account
    return {
        **book.enrolment.tree(),
        "entries": book.length,
        "head": book.head,
        "time": book.time,
        "notices": book.notices,
        "charged": account.charged.tree(),
        "reserved": account.reserved.tree(),
        "left": account.left.tree(),
        "gaussian_plan_left": {"epsilon": _affordable(book, delta), "delta": delta},
        "runs": [_run(run) for run in book.runs.values()],
    }


def _run(run: Run) -> dict[str, Any]:
    charged: Cost | None = run.charged
    return {
        "run": run.run,
        "session": run.session,
        "open": run.open,
        "opened": run.opened,
        "expires": run.expires,
        "terms": run.terms,
        "planned": len(run.price.rounds),
        "rounds": sorted(run.rounds),
        "answered": sorted(r for r, found in run.rounds.items() if found.reply is not None),
        "reserved": run.price.whole.tree(),
        "charged": None if charged is None else charged.tree(),
        "closed": run.closed or None,
    }
