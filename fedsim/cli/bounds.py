"""`fedsim bounds`: the theory's upper and lower bounds for a scenario, and over what a run of it measured.

`fedsim theorems`: claimed against true epsilon, and which claims fail. Its numbers are computed by
`python -m benchmarks.thesis.audit`, which is not installed; what it writes is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from fedsim.cli.app import PRIVACY, AsJson, DataDir, Overrides, ScenarioOrRun, app, data_from, fail, ready
from fedsim.cli.output import print_json, print_notices, say, shown, titled
from fedsim.common.errors import InputError
from fedsim.privacy.rounding import shown_down, shown_up

if TYPE_CHECKING:
    from fedsim.report.plots import Line
    from fedsim.report.run_directory import RunData
    from fedsim.scenario.model import Scenario
    from fedsim.scenario.resolve import Resolved
    from fedsim.theory.bound_table import Bound
    from fedsim.theory.symbols import Symbols
    from fedsim.theory.theorem import Check


NOTE = "every constant and logarithmic factor in n, R and N is set to one: compare slopes, not heights"
UNEQUAL = "n is the smallest, noise is xi = min(Xi / M', xi_max / M), constants are of N p_i f (Theorem 140)"
SUMS = (
    "SDP bounds count on two parties of which one keeps to the protocol, central ones on the server; ISRL "
    "ones hold for silos that trust no other party, and secure aggregation may beat them"
)
CLASS = (
    "lower ISRL bounds are for algorithms that compose as advanced composition does (C = 1) and spend at "
    "most about 1/n a round; that is not checked"
)
MOMENTS = (
    "Theorems 57 to 63 bound a moment of gradients in place of their norm: a lower one among them says "
    "nothing of bounds that rest on L, and is for algorithms that are zCDP, as those with Gaussian noise are"
)
_RUN = "Run directory: draw the bounds over what it measured, as figures/bounds."
Found = Sequence[tuple["Bound", float | None, str]]


@app.command(rich_help_panel=PRIVACY)
def bounds(
    scenario: ScenarioOrRun = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    run: Annotated[Path | None, typer.Option(help=_RUN)] = None,
) -> None:
    """Show the theory's upper and lower bounds on the run's excess risk, constants set to one."""
    with data_from(data_dir):
        if (scenario is None) == (run is None):
            fail("error: SCENARIO: give a scenario file, or --run and a run directory")
        loaded = None if scenario is None else ready(scenario, overrides)
        _show(loaded, overrides or [], as_json, run)


def _show(scenario: Scenario | None, overrides: Sequence[str], as_json: bool, run: Path | None) -> None:
    """Print what applies to a scenario or a run, and what the other bounds need; a run's are drawn too."""
    from fedsim.report.privacy_statement import how
    from fedsim.report.run_directory import read
    from fedsim.report.sections.training import OBJECTIVE
    from fedsim.scenario.load import load
    from fedsim.scenario.resolve import resolve
    from fedsim.theory.bound_table import applying

    content = None if run is None else read(run)
    resolved = resolve(scenario or load(run / "scenario.yaml", overrides))  # type: ignore[operator]
    symbols = resolved.symbols
    symbols.need("a bound")
    found = applying(symbols)
    drawn = [] if content is None or run is None else _drawn(content, run, resolved, symbols, found)
    if as_json:
        _print_json(resolved, symbols, found, content, drawn)
        return
    console = Console()
    print_notices(console, how(resolved)["notices"])
    numbers = {key: value for key, value in _shown(symbols).items() if value is not None}
    shown_numbers = ", ".join(f"{key} = {value:.6g}" for key, value in numbers.items())
    say(console, f"{resolved.scenario.name}: {shown_numbers}")
    if symbols.differ:
        say(console, f"{', '.join(symbols.differ)} differ: {UNEQUAL}")
    _table(console, found, symbols)
    if content is not None and (part := content.summary.objective):
        say(console, *OBJECTIVE.lines(part, content.summary))
    moments = [] if symbols.moment is None else [MOMENTS]
    notes = (NOTE, CLASS, *moments, *([] if resolved.sums is None else [SUMS]))
    say(console, *(f"Note: {note}." for note in notes))
    if drawn:
        say(console, f"Wrote {', '.join(map(shown, drawn))}")


def _drawn(run: RunData, directory: Path, resolved: Resolved, symbols: Symbols, found: Found) -> list[Path]:
    """Draw the figures; a run that measured nothing is refused before its bounds are looked at."""
    from fedsim.report.page import FIGURES
    from fedsim.report.plots import draw, measured

    columns = measured(run)
    proximal = resolved.scenario.algorithm.name.startswith("prox_")
    # Without secure aggregation ISRL bounds alone; with it also SDP and central ones, for comparison.
    trusts = {"ISRL": ""} if resolved.sums is None else {t: f"{t}, " for t in ("SDP", "ISRL", "central")}
    lines = [
        line._replace(name=named + line.name)
        for trust, named in trusts.items()
        for bound, value, _ in found
        if value is not None and bound.trust == trust
        for line in _lines(bound, value, symbols, proximal)
    ]
    if not any(line.column in columns for line in lines):
        hint = "states no constants that a bound on what it measured needs: --set assumptions.L=1 and so on"
        raise InputError("--run", str(directory), hint)
    return draw(run, lines, directory, FIGURES)


def _lines(bound: Bound, value: float, symbols: Symbols, proximal: bool) -> list[Line]:
    """Bounds on excess risk of the strongest class that is assumed, and on gradients.

    What is measured is the training objective: a lower bound on the population's risk says nothing of it.
    """
    from fedsim.report.plots import Line

    if bound.risk == "squared gradient":
        return [Line("gradient_mapping_sq", bound.source, bound.side, value)]
    curved = "proximal-PL" if proximal and bound.side == "upper" else "strongly convex"
    beside = bound.side == "lower" and bound.risk == "population"
    if beside or bound.functions != (curved if symbols.mu is not None else "convex"):
        return []
    return [Line("excess_risk", f"{bound.source} ({bound.risk})", bound.side, value)]


def _print_json(
    resolved: Resolved, symbols: Symbols, found: Found, run: RunData | None, drawn: Sequence[Path]
) -> None:
    from fedsim.report.plots import measured
    from fedsim.theory.bound_table import conditions

    statement = {
        "scenario": resolved.scenario.name,
        "constants": NOTE,
        "lower_bounds": CLASS,
        **({} if resolved.sums is None else {"trust": SUMS}),
        "setting": _shown(symbols) | {"differ": list(symbols.differ)},
        "bounds": [_plain(*row, conditions(row[0], symbols)) for row in found],
    }
    if run is not None:
        statement |= {
            "measured": {key: dict(run.summary.metrics)[key] for key in measured(run)},
            "objective": run.summary.objective.tree() if run.summary.objective else {},
            "figures": [str(path) for path in drawn],
        }
    print_json(statement)


def _shown(symbols: Symbols) -> dict[str, float | None]:
    """The theorems' numbers, without the lists that they are made of."""
    lists = ("claims", "law", "differ", "even", *(["heaviest"] if symbols.heaviest == 1 else []))
    return {key: value for key, value in asdict(symbols).items() if key not in lists} | {"xi": symbols.xi}


def _plain(bound: Bound, value: float | None, reason: str, asked: Sequence[Check]) -> dict[str, object]:
    named = {"functions": bound.functions, "trust": bound.trust, "risk": bound.risk}
    named |= {"side": bound.side, "source": bound.source}
    met = [{"condition": c.condition, "value": c.value, "needs": c.bound, "met": c.holds} for c in asked]
    return {**named, "value": value, **({"not_applicable": reason} if reason else {"conditions": met})}


def _table(console: Console, found: Found, symbols: Symbols) -> None:
    from fedsim.theory.bound_table import conditions

    table = titled(padding=0)  # fits into 80 characters
    for column in ("functions", "trust", "risk", "side", "theorem"):
        table.add_column(column)
    table.add_column("bound", justify="right")
    asked: dict[Check, list[str]] = {}
    for bound, value, _ in found:
        if value is None:
            continue
        checks = conditions(bound, symbols)
        mark = "" if all(check.holds for check in checks) else "*"
        row = (bound.functions, bound.trust, bound.risk, bound.side, bound.source)
        table.add_row(*row, f"{value:.3g}{mark}")
        for check in checks:
            asked.setdefault(check, []).append(bound.source)
    console.print(table)
    for check in sorted(asked, key=lambda check: not check.holds):  # unmet ones last, marked as in the table
        met = "  met" if check.holds else "* not met"
        here = check.value if isinstance(check.value, str) else f"{check.value:.6g}"
        theorems = "; ".join(dict.fromkeys(source[source.index("Theorem") :] for source in asked[check]))
        say(console, f"{met}: {check.condition}, here {here} and {check.bound} ({theorems})")
    for reason in dict.fromkeys(reason for _, _, reason in found if reason):
        names = [f"{bound.functions} ({bound.source})" for bound, _, why in found if why == reason]
        say(console, f"Not shown, {reason}: {'; '.join(names)}")


Entry = Mapping[str, Any]
"""One theorem: theorem, setting, verdict, slip, conditions [{condition, met, unmet}] and rows.

A row has the claimed epsilon (target), {way to draw a batch: true epsilon}, zcdp, outside and fails.
"""

_LARGEST = 1000  # beyond that a number says no more than the word
_INTRODUCTION = """\
# What the thesis's theorems truly cost

Written by `fedsim theorems --markdown`; a test compares. Each table takes the noise that a theorem of
A. Lowy's thesis (USC 2023) states for a claimed epsilon and prices the plan that it is added to, under
replace-one adjacency, with fedsim's own accountant (`fedsim/privacy/cost.py`): exact for full and disjoint
batches, an upper bound by about 1e-4 where batches are sampled. A claim fails where the true epsilon
exceeds it for some way to draw the batch that the proof covers. The zCDP column is the thesis's own
conversion, rho + 2 sqrt(rho ln(1/delta)), looser than the exact number and shown where it applies. Epsilons
are rounded up, and lower bounds down. Conditions are those that a setting can be checked for, M being 25.

Theorems whose title has SDP or shuffled speak of all silos' messages without their senders. They ask an
oracle for sums of messages, and their proofs use nothing of it but its (epsilon, delta): "any oracle" is the
run with the one that reveals most, exactly (at least, where records are sampled), and "Gaussian sums" the
same run with the least Gaussian noise on each sum that keeps the same (epsilon, delta). M = N unless stated.
"""


@app.command(rich_help_panel=PRIVACY)
def theorems(
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/thesis-audit.md.")] = False,
) -> None:
    """Show what each theorem's noise truly costs beside what the theorem claims."""
    text = (files("fedsim.theory") / "audit.json").read_text(encoding="utf-8")
    entries: Sequence[Entry] = json.loads(text)
    if as_json or markdown:
        typer.echo(text if as_json else page(entries), nl=False)
        return
    console = Console()
    for entry in entries:
        console.print(f"{entry['theorem']}\n{entry['setting']}", style="italic", highlight=False)
        columns = (Column(name, justify="right") for name in _cells(entry["rows"][0]))
        table = Table(*columns, box=SIMPLE_HEAD)
        for row in entry["rows"]:
            *numbers, claim = _cells(row).values()
            short = claim[:5] + (" *" if row["outside"] else "")
            table.add_row(*numbers, short, style="bold" if row["fails"] else "")
        console.print(table)
        outside = "* outside a condition" if any(row["outside"] for row in entry["rows"]) else None
        notes = filter(None, (outside, _met(entry), entry["verdict"], entry["slip"]))
        console.print(*notes, "", sep="\n", highlight=False)


def page(entries: Sequence[Entry]) -> str:
    """docs/thesis-audit.md."""
    return "\n".join([_INTRODUCTION, *map(_section, entries)])


def _section(entry: Entry) -> str:
    rows = [_cells(row) for row in entry["rows"]]
    lines = [f"## {entry['theorem']}", "", f"{entry['setting']}. {entry['verdict']}", ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "|" + " ---: |" * len(rows[0])]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    lines += ["", _met(entry), *(["", entry["slip"]] if entry["slip"] else [])]
    return "\n".join(lines) + "\n"


def _met(entry: Entry) -> str:
    lines = []
    for each in entry["conditions"]:
        unmet = each["unmet"]
        where = f" from {unmet[0]:g} on" if unmet and unmet[0] != entry["rows"][0]["target"] else ""
        lines.append(f"{each['condition']}: {'not met' if unmet else 'met'}{where}")
    return f"Conditions: {'; '.join(lines)}."


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """{column: cell}; all rows of an entry have the same columns."""
    true = {name: _figure(name, value) for name, value in row["true"].items()}
    zcdp = {} if row["zcdp"] is None else {"zCDP": _figure("zCDP", row["zcdp"])}
    outside = f" (outside: {'; '.join(row['outside'])})" if row["outside"] else ""
    claim = ("fails" if row["fails"] else "holds") + outside
    return {"claimed": f"{row['target']:g}", **true, **zcdp, "claim": claim}


def _figure(name: str, value: float) -> str:
    if value > _LARGEST:
        return f"above {_LARGEST:,}"
    return (shown_down if name.endswith("at least") else shown_up)(value, 3)
