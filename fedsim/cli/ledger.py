"""`fedsim ledger`: a silo's ledger read beside its daemon, its receipts, and its time after a long pause."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsim.cli.app import DEPLOYMENT, AsJson, app
from fedsim.cli.output import print_facts, print_json, printable, say, titled
from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError, Refused
from fedsim.privacy.rounding import shown_down, shown_up

if TYPE_CHECKING:
    from fedsim.protocol.plan import Part
    from silos.vault.book import Book, Run

WORDS = {
    "mu_sq": "mu^2 of Gaussian plans",
    "epsilon": "epsilon of sampled plans",
    "delta": "delta of sampled plans",
    "distance": "distance of discrete noise",
}
_POOLED = "Runs with secure aggregation count with their cost while server and shuffler do not collude."
_OF = {"training": "", "holdout": "on held-out records "}
_SHORT = 8  # digits of a run's id that stand for it

ledger = typer.Typer(
    help="A silo's ledger, read beside its daemon too; its receipts; its time.", no_args_is_help=True
)
app.add_typer(ledger, name="ledger", rich_help_panel=DEPLOYMENT)
State = Annotated[Path, typer.Argument(metavar="STATE", help="A silo's state folder, or its ledger's file.")]


@ledger.command("show")
def ledger_show(
    state: State,
    delta: Annotated[float | None, typer.Option(help="Delta for the affordable epsilon shown.")] = None,
    head: Annotated[
        str | None, typer.Option(help="Head of a server or receipt, which must be in the hash chain.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the whole ledger; show its runs, what they cost and what is left."""
    from fedsim.privacy.unit_words import change_of
    from silos.front.ledger_time import clocks, life, too_old
    from silos.vault.book import read
    from silos.vault.journal import Clock

    book = read(ledger_of(state), head)
    now = book.time if too_old(book) else Clock(book.time).now()
    notices = [*book.notices, *life(book, now), *clocks(book)]
    change = change_of(book.enrolment.tree().get("unit", {}).get("relation"))
    delta = book.enrolment.caps.delta if delta is None else delta
    if not 0 < delta < 1:
        raise InputError("--delta", delta, "a number in (0, 1)")
    if as_json:
        print_json({**_tree(book, delta), "notices": notices})
        return
    console, caps = Console(), book.enrolment.caps
    print_facts(
        console,
        [
            *notices,
            f"Silo {book.enrolment.silo}: all that it ever releases is ({shown_up(caps.epsilon)}, "
            f"{shown_up(caps.delta)})-DP for {change}, whatever is asked of it.",
            *([_POOLED] if _pooled(book) else []),
            *(
                f"A run of a Gaussian plan {_OF[part]}with delta {shown_down(delta)} may still cost "
                f"epsilon {shown_down(_affordable(book, part, delta))}."
                for part in _parts(book)
            ),
        ],
        [
            ("Life ends", time_of(book.enrolment.expires)),
            ("Entries", f"{book.length}, whole and in order; the last of {time_of(book.time)}"),
            ("Public key", book.enrolment.identity),
            ("Head", book.head),
        ],
    )
    console.print(_account(book))
    console.print(_runs(book))


@ledger.command("receipt")
def ledger_receipt(
    state: State,
    run: Annotated[str, typer.Argument(metavar="RUN", help="First digits of the id of a closed run.")],
    out: Annotated[Path | None, typer.Option(help="File to write; default: the terminal.")] = None,
) -> None:
    """Sign a receipt of what a run cost and did, for a reviewer to check elsewhere."""
    from fedsim.common.identity import Identity
    from silos.vault import ledger_file
    from silos.vault.book import read

    place = ledger_of(state)
    book = read(place)
    found = [name for name in book.runs if name.startswith(run)]
    if len(found) != 1:
        raise InputError("RUN", run, f"the first digits of one run's id; {len(found)} runs begin so")
    signed = ledger_file.signed_receipt(book.enrolment, book.runs[found[0]], Identity.load(place.parent))
    if out is None:
        typer.echo(signed)
        return
    with atomic_file(out) as draft:
        draft.write_text(f"{signed}\n")
    typer.echo(f"Wrote {out}")


@ledger.command("verify")
def ledger_verify(
    receipt: Annotated[Path, typer.Argument(metavar="RECEIPT", help="A receipt (JSON).")],
    key: Annotated[str, typer.Option(help="The silo's identity.pub, or the 64 digits in it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the receipt's content as JSON.")] = False,
) -> None:
    """Check that a silo signed a receipt as it stands, and show it; needs nothing but its public key."""
    from fedsim.protocol import receipts

    key = _text("--key", Path(key)) if Path(key).is_file() else key
    stated = receipts.verified_receipt(_text("RECEIPT", receipt), key)
    if as_json:
        typer.echo(json.dumps(stated, indent=2, sort_keys=True))
        return
    try:
        notices, rows = _stated(stated)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError, Refused):
        hint = "signed by this key, with other content than a receipt has; --json shows it"
        raise InputError("RECEIPT", str(receipt), hint) from None
    verdict = f"Verified: the silo of this key signed this receipt as it stands, {stated['silo']}."
    print_facts(Console(), [verdict, *notices], rows)


@ledger.command("accept-time")
def ledger_accept_time(
    state: State,
    today: Annotated[
        str | None, typer.Option(metavar="DATE", help="Today in UTC, as you know it; asked for if not given.")
    ] = None,
) -> None:
    """Let a silo that was off for more than 30 days start: its ledger goes on from this machine's time."""
    from silos.front.ledger_time import too_old
    from silos.vault.book import DAY, read
    from silos.vault.journal import SECOND, Journal

    place, console, wall = ledger_of(state), Console(), datetime.now(UTC)
    book, clock = read(place), f"this machine's clock says {wall:%Y-%m-%d %H:%M} UTC"
    old = too_old(book)
    print_facts(
        console,
        old or [f"Nothing to accept: {clock}."],
        [("Last entry", time_of(book.time)), ("Life ends", time_of(book.enrolment.expires))],
    )
    if old:
        given = today or typer.prompt("Today's date in UTC, as you know it (YYYY-MM-DD)")
        if given not in {str((wall + timedelta(days)).date()) for days in (-1, 0, 1)}:
            hint = f"a date as YYYY-MM-DD; {clock}, and where that is wrong, set it right first"
            raise InputError("--today", given, hint)
        Journal.open(place, until=int(wall.timestamp()) * SECOND + DAY).close()
        say(console, f"Accepted: {clock}. The silo's time goes on from it, if it starts within 30 days.")


def _stated(receipt: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
    """A receipt's notices, and {name: what it states}; errors of any kind if it has other content."""
    terms, lifetime, rounds = receipt["terms"], receipt["lifetime"], receipt["rounds"]
    caps, charged = _cost(lifetime["total"]), _cost(receipt["charged"])
    used = [
        f"{shown_up(charged[name])} of {shown_down(caps[name])}, {words}"
        for name, words in WORDS.items()
        if charged[name]
    ]
    rows = [
        ("Opened", time_of(receipt["opened"])),
        ("Closed", time_of(receipt["closed"])),
        *study_rows(receipt.get("study", {})),
        ("Run", receipt["run"]),
        ("Session", receipt["session"]),
        ("Rounds", f"{len(rounds)}, from {rounds[0]} to {rounds[-1]}" if rounds else "none"),
        ("Records", "held out" if receipt.get("part") == "holdout" else "training"),
        *cost_rows(terms, receipt.get("unit", {})),
        (
            "Lifetime",
            f"({shown_up(lifetime['epsilon'])}, {shown_up(lifetime['delta'])})-DP, all runs together",
        ),
        *zip(["Charged", "", "", ""], used or ["nothing"], strict=False),
        ("Public key", receipt["public_key"]),
    ]
    return [*receipt["notices"], *terms.get("notices", ())], rows


def _cost(tree: Mapping[str, float]) -> Mapping[str, float]:
    """The numbers of a cost; ValueError or TypeError if they are others, or none."""
    if tree.keys() != WORDS.keys() or not all(0 <= value < inf for value in tree.values()):
        raise ValueError
    return tree


def study_rows(study: Mapping[str, str]) -> list[tuple[str, str]]:
    """What a run is for, in its server's words."""
    return [("Study", study.get("name") or "not stated"), ("Purpose", study.get("purpose") or "not stated")]


def cost_rows(terms: Mapping[str, Any], unit: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a run costs at most by the silo's terms, for a unit as it is stated, not at all for a record."""
    from fedsim.privacy.unit_words import change_of

    delta, epsilon = shown_up(terms["delta"]), terms["epsilon_guaranteed"]
    bound = f"({shown_up(epsilon)}, {delta})-DP for {change_of(unit.get('relation'))}"
    rows = [("Run's cost", "none, as nothing is guaranteed: public" if epsilon is None else bound)]
    if "epsilon_colluding" in terms:
        colluding = terms["epsilon_colluding"]
        bound = "no guarantee" if colluding is None else f"({shown_up(colluding)}, {delta})-DP"
        rows.append(("", f"{bound} if server and shuffler collude"))
    return rows


def _text(field: str, file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        raise InputError(field, str(file), "a text file that can be read") from None


def ledger_of(state: Path) -> Path:
    """The ledger's file."""
    from silos.vault.book import FILE

    return state / FILE if state.is_dir() else state


def time_of(microseconds: int) -> str:
    """A time of the ledger, microseconds since 1970, to the minute."""
    return datetime.fromtimestamp(microseconds // 10**6, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _affordable(book: Book, part: Part, delta: float) -> float:
    """The epsilon of a Gaussian plan that uses up the account of one part, rounded down."""
    from fedsim.privacy import gaussian

    return float(gaussian.epsilon(sqrt(book.account.column(part).left.mu_sq) * (1 - 1e-9), delta))


def _account(book: Book) -> Table:
    table = titled("Lifetime account", texts=[""], numbers=["cap", "charged", "reserved", "left"])
    account, parts = book.account, _parts(book)
    for part in parts:
        columns = [cost.tree() for cost in (account.caps.total, *account.column(part))]
        for name, words in WORDS.items():
            cap, charged, reserved, left = (column[name] for column in columns)
            words = f"{words}, {part}" if len(parts) > 1 else words
            table.add_row(words, shown_down(cap), shown_up(charged), shown_up(reserved), shown_down(left))
    return table


def _parts(book: Book) -> tuple[Part, ...]:
    """The parts of the silo's records, each with its own column under the same caps."""
    return ("training", "holdout") if book.enrolment.holdout else ("training",)


def _runs(book: Book) -> Table:
    pooled = ("colluding",) if _pooled(book) else ()
    numbers = ("rounds", "epsilon", *pooled, "delta", "mu^2")  # as guaranteed; mu^2 as charged
    table = titled("Runs", padding=0, whole=("run", "opened", "state"), numbers=numbers, rest="study")
    for run in book.runs.values():
        terms = run.terms
        costs = [terms.get("epsilon_guaranteed"), terms.get("delta"), (run.charged or run.price.whole).mu_sq]
        if pooled:  # a run without others' noise has the one epsilon
            costs.insert(1, terms.get("epsilon_colluding", terms.get("epsilon_guaranteed")))
        rounds = f"{len(run.rounds)} of {len(run.price.rounds)}"
        state = ("open" if run.open else "closed") + ", held out" * (run.records == "holdout")
        study = Text(printable(run.study.get("name", "")))
        table.add_row(run.run[:_SHORT], time_of(run.opened)[:10], state, rounds, *map(shown_up, costs), study)
    return table


def _pooled(book: Book) -> bool:
    return any("epsilon_colluding" in run.terms for run in book.runs.values())


def _tree(book: Book, delta: float) -> dict[str, Any]:
    account = book.account
    return {
        **book.enrolment.tree(),
        "entries": book.length,
        "head": book.head,
        "time": book.time,
        "charged": account.charged.tree(),
        "reserved": account.reserved.tree(),
        "left": account.left.tree(),
        "parts": {part: [cost.tree() for cost in account.column(part)] for part in _parts(book)},
        "gaussian_plan_left": {"epsilon": _affordable(book, "training", delta), "delta": delta},
        "runs": [_run(run) for run in book.runs.values()],
    }


def _run(run: Run) -> dict[str, Any]:
    named = {"run": run.run, "session": run.session, "study": run.study, "records": run.records}
    return {
        **named,
        **{"open": run.open, "opened": run.opened, "expires": run.expires, "terms": run.terms},
        "planned": len(run.price.rounds),
        "rounds": sorted(run.rounds),
        "answered": sorted(r for r, found in run.rounds.items() if found.reply is not None),
        "reserved": run.price.whole.tree(),
        "charged": None if run.charged is None else run.charged.tree(),
        "closed": run.closed or None,
    }
