"""`fedsim privacy`: the cost of a run before it happens; `fedsim audit`: attacks on what it claims."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from fedsim.cli import app as shared
from fedsim.cli.app import DONE, FAILED, PRIVACY, app, data_from, fail, ready
from fedsim.cli.output import print_json, print_notices, print_silos, rendered, say, shown
from fedsim.common.errors import InputError
from fedsim.privacy.rounding import shown_down, shown_up

if TYPE_CHECKING:
    from fedsim.api.audit import Audit
    from fedsim.privacy.convert import Guarantee
    from fedsim.report.conversions import Conversions, SiloConversions
    from fedsim.report.tables import TextTable
    from fedsim.scenario.model import Scenario
    from fedsim.testing.attacks.daemons import DaemonAudit


MOST_ROWS = 5
_WIDE = 10_000


@app.command(rich_help_panel=PRIVACY)
def privacy(
    scenario: shared.ScenarioFile,
    overrides: shared.Overrides = None,
    data_dir: shared.DataDir = None,
    as_json: shared.AsJson = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Price every silo again by dp-accounting (slower).")
    ] = False,
    conversions: Annotated[
        bool, typer.Option("--conversions", help="Convert to group, user-level and central DP.")
    ] = False,
) -> None:
    """Show what the run would cost each silo and the noise it would use; reads no feature values."""
    with data_from(data_dir):
        loaded = ready(scenario, overrides, single=False)
        from fedsim.api.price import price
        from fedsim.report.texts import parameter_lines

        found = price(loaded, verify=verify, conversions=conversions).statement
        if as_json:
            typer.echo(found.json_text())
            return
        console = Console()
        print_notices(console, found.notices)
        say(console, *parameter_lines(found.parameters))
        console.print(str(found), highlight=False)
        print_silos(console, found)
        if found.conversions:
            show_conversions(console, found.conversions)


def show_conversions(console: Console, values: Conversions) -> None:
    """Print (epsilon, delta) in other units of the silos of largest epsilon, and of the federation.

    "no guarantee" stands where delta would reach 0.1 (`fedsim.report.conversions`).
    """
    console.print(f"Central DP of {values.central_of}: {_cell(values.central)}", highlight=False)
    if not values.silos:
        return
    silos = sorted(values.silos, key=_weakest_first)
    groups = max((silo.group for silo in silos), key=len)
    heads = [*(f"{entry.records} records" for entry in groups), "whole silo", "to set for user level"]
    rows = {silo.name: _cells(silo, len(groups)) for silo in silos[:MOST_ROWS]}
    rules = ", ".join(sorted({silo.group_rule for silo in silos}))
    rest = f"; and {len(silos) - MOST_ROWS} more silos (--json)" if len(silos) > MOST_ROWS else ""
    _print_fitting(console, heads, rows, f"groups by {rules}{rest}")


def _cells(silo: SiloConversions, groups: int) -> list[str]:
    cells = [_cell(entry.guarantee) for entry in silo.group]
    recipe = silo.record_level_for_user_level_budget
    to_set = "only up to epsilon 1"
    if recipe is not None:  # rounded down, so that it may be set to the number shown
        to_set = f"({shown_down(recipe.epsilon)}, {shown_down(recipe.delta, 2)})"
    return [*cells, *[""] * (groups - len(cells)), _cell(silo.user_level), to_set]


def _print_fitting(
    console: Console, heads: Sequence[str], rows: Mapping[str, Sequence[str]], caption: str
) -> None:
    """A table, or on a terminal too narrow for it a line a number: half a number is a wrong one."""
    columns = [Column(head.replace("for user", "for\nuser"), justify="right", no_wrap=True) for head in heads]
    table = Table("silo", *columns, title="(epsilon, delta) in other units", box=SIMPLE_HEAD, caption=caption)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    unbounded = console.options.update(max_width=_WIDE)
    if console.measure(table, options=unbounded).maximum <= console.width:
        console.print(table)
        return
    console.print(f"(epsilon, delta) in other units ({caption}):", markup=False)
    for name, cells in rows.items():
        say(console, f"{name}:")
        say(console, *(f"  {head}: {cell}" for head, cell in zip(heads, cells, strict=True) if cell))


def _weakest_first(silo: SiloConversions) -> float:
    first = silo.group[0].guarantee if silo.group else silo.user_level
    return -first.epsilon if first else float("-inf")


def _cell(guarantee: Guarantee | None) -> str:
    return f"({shown_up(guarantee.epsilon)}, {shown_up(guarantee.delta, 2)})" if guarantee else "no guarantee"


_EFFORT = "Share of the default work: 0.1 for a first look, 10 for more."
_DAEMONS = "Attack two real daemons of a silo over sockets in DIR; started there unless they run."
_UNIT = (
    "person: swap a person of --records, whatever the plan protects, to see what one loses. "
    "group: change the group of one record alone, and compare with the claim about that."
)


@app.command(rich_help_panel=PRIVACY)
def audit(
    scenario: shared.ScenarioOrRun = None,
    overrides: shared.Overrides = None,
    data_dir: shared.DataDir = None,
    run: Annotated[
        Path | None, typer.Option(help="A run directory: audit its scenario and put the result on its page.")
    ] = None,
    effort: Annotated[float, typer.Option(min=0.001, max=1000, help=_EFFORT)] = 1.0,
    daemons: Annotated[Path | None, typer.Option(metavar="DIR", help=_DAEMONS)] = None,
    unit: Annotated[str | None, typer.Option(help=_UNIT)] = None,
    records: Annotated[
        int, typer.Option(min=2, help="With --unit person: the aligned records of a person.")
    ] = 100,
    silo: Annotated[
        str | None, typer.Option(help="With --daemons: which silo; default the one with the largest epsilon.")
    ] = None,
    as_json: shared.AsJson = False,
) -> None:
    """Attack a scenario's transcript and show what that attains of each silo's claim; exit code 1 if a
    claim is broken."""
    with data_from(data_dir):
        if unit not in (None, "person", "group") or (unit and daemons):
            fail("error: --unit is person or group, without --daemons; or left out: a plan has its own unit")
        loaded = None if scenario is None else ready(scenario, overrides)
        if daemons is not None:
            if run is not None:
                fail("error: --daemons attacks by a scenario, --run audits a directory: give one of them")
            broken = _daemons(loaded, daemons, silo, effort, as_json)
        elif silo is not None:
            fail("error: --silo chooses whose daemon is attacked: give --daemons DIR too")
        else:
            attacks = {"person": records if unit == "person" else None, "groups": unit == "group"}
            broken = _transcript(loaded, overrides, run, as_json, effort=effort, **attacks)
        raise typer.Exit(FAILED if broken else DONE)


def _transcript(
    scenario: Scenario | None, overrides: Sequence[str] | None, run: Path | None, as_json: bool, **how: Any
) -> bool:
    """Audit a scenario, or that of a run directory, and print a table or JSON; whether a claim is broken.

    `how` are arguments of `fedsim.audit`.
    """
    from fedsim.api.audit import audit as attack
    from fedsim.api.run import load_run
    from fedsim.report.audit import FILE, audit_table

    if (scenario is None) == (run is None):
        both = [scenario.name, str(run)] if scenario else []
        raise InputError("fedsim audit", both, "name a scenario, or --run DIR")
    if run is not None and overrides:
        raise InputError("--set", list(overrides), "a run has its scenario; audit that, or another one")
    start = time.perf_counter()
    given = scenario or load_run(run)  # type: ignore[arg-type]
    found = attack(given, progress=True, **how)
    if run is not None:
        found.save(run)
    title = f"{found.tree['scenario']}: epsilon that attacks attained of each claim"
    _print(found, audit_table(found.part), title, _lines(found, time.perf_counter() - start), as_json)
    if run is not None and not as_json:
        say(Console(), f"Wrote {shown(run / FILE)} and the run's page")
    return found.broken


def _daemons(scenario: Scenario | None, folder: Path, silo: str | None, effort: float, as_json: bool) -> bool:
    """Attack a folder's daemons as a malicious server and print what that attains; True if a claim breaks."""
    from fedsim.api.audit import audit_daemons

    if scenario is None:
        raise InputError("fedsim audit", None, "name the scenario that the daemons are to be attacked by")
    found = audit_daemons(scenario, folder, silo=silo, effort=effort, progress=True)
    tree = found.tree
    title = f"{tree['scenario']}: epsilon that a malicious server attained of a daemon's claim"
    share = floor(100 * tree["assumption_free"] / tree["claimed"]) if tree["claimed"] else 0
    lines = [
        f"Attained: a lower bound at {tree['confidence']['bound']:.0%} confidence, by the "
        f"{tree['estimator']}; without any assumption {share} % of the claim. Noise: over what is stated.",
        f"Real noise, over sockets: {tree['runs_a_minute']:,.0f} runs a minute in each world.",
        *(f"The daemons say: {notice}" for notice in tree["notices"]),
    ]
    _print(found, found.table, title, lines, as_json)
    return found.broken


def _print(
    found: Audit | DaemonAudit, table: TextTable, title: str, lines: Iterable[str], as_json: bool
) -> None:
    if as_json:
        print_json(found.tree)
        return
    from fedsim.report.tables import capital

    console = Console()
    console.print(rendered(table, title), "", sep="\n")
    say(console, *lines)
    say(console, *map(capital, found.verdict), style="bold red" if found.broken else "bold")


def _lines(audited: Audit, seconds: float) -> Iterator[str]:
    found, part = audited.tree, audited.part
    silos, search = found["silos"], found["search"]
    if found["of_silos"] > found["audited"]:
        yield f"Audited: {found['audited']} of {found['of_silos']} silos, evenly in order of their claims."
    runs = sorted({sum(silo["worst_server"]["runs"]) for silo in silos})
    span = f"{runs[0]:,}" if len(runs) == 1 else f"{runs[0]:,} to {runs[-1]:,}"
    honest = max((sum(silo["honest_server"]["runs"]) for silo in silos if "honest_server" in silo), default=0)
    by = f"by the malicious server, {honest:,} by the honest-but-curious one" if honest else "by each party"
    yield (
        f"Attained: lower bounds, {part.confidence.bound:.0%} confidence each, one in twenty above the truth "
        f"by chance; {span} runs a silo {by}."
    )
    worst = [silo["worst_server"] for silo in silos]
    shares = (row["assumption_free"] / silo["claimed"] for row, silo in zip(worst, silos, strict=True))
    free = f"{floor(100 * max(shares, default=0))}%"
    normal = [row["normality_p"] for row in worst if row["estimator"] == "mean difference"]
    if normal:
        least = min(normal)
        shown_p = "above 0.1" if least >= 0.1 else f"at least {least:.2g}"
        yield (
            f"By the mean difference of scores, which assumes them normal (p {shown_p}); without any "
            f"assumption at most {free} of a claim."
        )
    else:
        curve = "" if worst[0]["estimator"] == "no assumption" else "By the plan's own trade-off curve; "
        yield f"{curve}without any assumption at most {free} of a claim.".capitalize()
    answers = sum(silo["answers_searched"] for silo in silos)
    if not part.swaps:
        unit = found["unit"].replace("group", "record")  # as the verdict says, by its group alone
        yield (
            f"Moved: the largest change of an answer by one {unit}, over its sensitivity, in "
            f"{answers:,} answers without noise ({search['records']} {unit}s, {search['points']} "
            "broadcasts); others: of another silo's answer."
        )
    noise = [silo["noise_ratio"] for silo in silos]
    yield f"Noise: {min(noise):.3f} to {max(noise):.3f} times what is stated. {seconds:,.0f} s."
