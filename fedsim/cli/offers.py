"""`fedsim offers`: runs that wait for the silo's operator, read and decided beside its daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fedsim.cli.app import DEPLOYMENT, app
from fedsim.cli.ledger import WORDS, State, cost_rows, ledger_of, study_rows, time_of
from fedsim.cli.output import print_facts, printable, say, titled
from fedsim.common.errors import InputError, Refused
from fedsim.common.files import writing
from fedsim.common.plugins import load_none
from fedsim.privacy.rounding import shown_down, shown_up

if TYPE_CHECKING:
    from fedsim.protocol.plan import Part
    from silos.front.pending import Pending, PendingOffers
    from silos.vault.book import Book

_ID = 16  # digits of a digest that stand for it: a server can find another offer that begins with 8 of them
_LEAST = 8
_SILOS = 12  # that are named
_REASON = 200

_HELP = "Runs that wait for a silo's operator (`policy.approve: ask`), beside its daemon."
offers = typer.Typer(help=_HELP, no_args_is_help=True)
app.add_typer(offers, name="offers", rich_help_panel=DEPLOYMENT)
Which = Annotated[str, typer.Argument(metavar="OFFER", help="First digits of an offer's digest, 8 or more.")]


@offers.command("list")
def offers_list(state: State) -> None:
    """Show the offers that wait or were decided, and have not been admitted."""
    book, folder, now = _opened(state)
    table = titled(padding=0, whole=("offer", "asked", "lapses", "decision", "epsilon"), rest="study")
    for each in _waiting(book, folder, now):
        days = [time_of(moment)[:10] for moment in (each.asked, each.lapses)]
        epsilon = shown_up(each.terms["epsilon_guaranteed"])
        decision = folder.decision(each.digest)[0] or "none"
        study = Text(printable(_tree(each)["study"]["name"]))
        table.add_row(each.digest[:_ID], *days, decision, epsilon, study)
    if table.row_count:
        Console().print(table)
    else:
        say(Console(), "No offer waits.")


@offers.command("show")
def offers_show(state: State, offer: Which) -> None:
    """Show what an offer asks for, what it would cost, and what would be left."""
    book, folder, found = _one(state, offer)
    decision = folder.decision(found.digest)[0] or "not decided"
    last = folder.place(found.digest).stat().st_mtime_ns // 1000
    line = f"Offer {found.digest[:_ID]} to silo {book.enrolment.silo}: {decision}."
    asked = f"first {time_of(found.asked)}, last {time_of(last)}"
    rows = [*_facts(found, book), ("Asked", asked), ("Lapses", time_of(found.lapses))]
    print_facts(Console(), [line], rows)


@offers.command("approve")
def offers_approve(state: State, offer: Which) -> None:
    """Approve an offer: this one, at the cost that is shown, once, until it lapses."""
    book, folder, found = _one(state, offer, "approved", "refused")
    print_facts(
        Console(), [f"Offer {found.digest[:_ID]} to silo {book.enrolment.silo}:"], _facts(found, book)
    )
    with writing(folder.folder, "STATE"):
        folder.decide(found.digest, "approved")
    after = "It is admitted when its server asks again, if policy and lifetime allow it then."
    say(Console(), f"Approved {found.digest[:_ID]}. {after}")


@offers.command("refuse")
def offers_refuse(
    state: State,
    offer: Which,
    reason: Annotated[str, typer.Option(help="Words for the server; none by default.")] = "",
) -> None:
    """Refuse an offer, or take its approval back before it is admitted."""
    if len(reason) > _REASON or not reason.isprintable():
        raise InputError("--reason", reason, f"at most {_REASON} printable characters")
    book, folder, found = _one(state, offer, "refused")
    study = printable(_tree(found)["study"]["name"])
    say(Console(), f"Offer {found.digest[:_ID]} to silo {book.enrolment.silo}, for: {study}")
    with writing(folder.folder, "STATE"):
        folder.decide(found.digest, "refused", reason)
    say(Console(), f"Refused {found.digest[:_ID]}; its server is told when it asks again.")


@offers.command("check")
def offers_check(
    file: Annotated[
        Path, typer.Argument(metavar="OFFER.json", help="An offer, as `fedsim deploy` keeps it.")
    ],
    config: Annotated[Path, typer.Option(help="The silo's file (YAML).")],
) -> None:
    """Try an offer out: what it would cost, or why it is refused; nothing is stored or spent."""
    load_none()  # as the daemon
    from silos.front.config import load_config
    from silos.front.tried_out import tried_out
    from silos.vault.book import read

    silo = load_config(config)
    try:
        offer = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        raise InputError("OFFER.json", str(file), "a file with an offer's JSON") from None
    found = tried_out(silo, offer)
    by = "the policy admits it" if silo.policy.approve == "policy" else "it would wait for the operator"
    line = f"Offer {found.digest[:_ID]} to silo {silo.name}: {by}. Nothing was stored or spent."
    print_facts(Console(), [line], _facts(found, read(silo.ledger)))


def _opened(state: Path) -> tuple[Book, PendingOffers, int]:
    """The silo's ledger, its folder of offers, and the time by the ledger."""
    from silos.front.pending import PendingOffers
    from silos.vault.book import read
    from silos.vault.journal import Clock

    file = ledger_of(state)
    book = read(file)
    return book, PendingOffers(file.parent), Clock(book.time).now()


def _waiting(book: Book, folder: PendingOffers, now: int) -> list[Pending]:
    """Offers that had not lapsed at a time, and whose session the ledger does not know."""
    return [each for each in folder.all(now) if _tree(each)["session"] not in book.sessions]


def _one(state: Path, digits: str, *decided: str) -> tuple[Book, PendingOffers, Pending]:
    """As `_opened`, and the offer that waits whose digest begins so; not one that was `decided` so before."""
    book, folder, now = _opened(state)
    there = _waiting(book, folder, 0)
    found = [each for each in there if each.digest.startswith(digits)] if len(digits) >= _LEAST else []
    if len(found) != 1:
        hint = f"the first digits, {_LEAST} or more, of one offer that waits; {len(found)} begin so"
        raise InputError("OFFER", digits, hint)
    if found[0].lapses <= now:
        raise InputError("OFFER", digits, f"lapsed on {time_of(found[0].lapses)}; its server may ask anew")
    if (decision := folder.decision(found[0].digest)[0]) in decided:
        raise InputError("OFFER", digits, f"was {decision} before")
    return book, folder, found[0]


def _tree(offer: Pending) -> Mapping[str, Any]:
    tree: Mapping[str, Any] = json.loads(offer.offer)
    return tree


def _facts(offer: Pending, book: Book) -> list[tuple[str, str]]:
    """What an operator reads: what the run is, who takes part, what it costs and what is left then; the same
    of its evaluation."""
    tree, other, also = _tree(offer), offer.evaluation, []
    federation = f"; of the federation {offer.federation}, by your roster" if offer.federation else ""
    if other is not None:
        also = [
            ("Evaluation", "of the model, once it is trained; decided with this offer"),
            *_costs(other, book),
        ]
    elif offer.also is not None:
        also = [("Evaluation", f"none: {offer.also['refused']}")]
    return [
        *study_rows(tree["study"]),
        ("From", f"not known, since an offer is not signed{federation}"),
        ("Algorithm", f"{tree['algorithm']['name']} on {tree['problem']['name']}, {offer.rounds:,} rounds"),
        *_costs(offer, book),
        *also,
        ("Digest", offer.digest),
        ("Session", tree["session"]),
    ]


def _costs(offer: Pending, book: Book) -> list[tuple[str, str]]:
    """Of one run: whose records answer, with what noise, and what it costs."""
    from silos.vault.account import Cost

    tree, terms = _tree(offer), offer.terms
    part, unit = tree.get("records", "training"), tree.get("unit", {})
    of_person = ("bound", "h", "silos_per_person")  # how its records become one term, and where it may be
    stated = [f"{name} {unit[name]}" for name in of_person if unit.get(name) is not None]
    try:
        book.account.check(Cost(**offer.cost), part)
        left = []
    except Refused as refusal:
        left = [("", str(refusal))]
    return [
        ("Noise", f"multiplier {shown_down(terms['noise_multiplier'])}, {terms['releases']:,} noisy answers"),
        *([("Records", "those that are held out")] if part == "holdout" else []),
        ("Silos", _sizes(tree["shape"]["sizes"], tree["silo"], f"{unit.get('name', 'record')}s")),
        *([("Persons", ", ".join(stated))] if "bound" in unit else []),
        *cost_rows(terms, unit),
        *zip(["Lifetime", "", "", ""], _account(offer.cost, book, part), strict=False),
        *left,
        *(("Notice", line) for line in terms["notices"]),
    ]


def _account(cost: Mapping[str, float], book: Book, part: Part) -> list[str]:
    """Of each number of which the run uses a thousandth or more: its cost, what is left before and after."""
    left = book.account.column(part).left.tree()
    return [
        f"{shown_up(cost[name])} of the {shown_down(left[name])} left, {words}; "
        f"{shown_down(max(0.0, left[name] - cost[name]))} after it"
        for name, words in WORDS.items()
        if cost[name] > left[name] / 1000
    ]


def _sizes(sizes: Mapping[str, int], own: str, units: str) -> str:
    first = ", ".join(f"{name} {sizes[name]:,}" for name in sorted(sizes)[:_SILOS])
    more = f" and {len(sizes) - _SILOS:,} more" if len(sizes) > _SILOS else ""
    said = f"{sum(sizes.values()):,} {units}, as the server says"
    return f"{first}{more}: {said}; {sizes[own]:,} are this silo's"
