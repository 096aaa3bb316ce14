"""`fedsim bounds`: the theory's upper and lower bounds for a scenario, and over what a run of it measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedsim.cli.app import PRIVACY, SCENARIO, DataDir, Overrides, app, data_from, fail, plain_errors
from fedsim.cli.output import print_notices, say, shown, titled
from fedsim.common.errors import InputError

if TYPE_CHECKING:
    from fedsim.report.bounds_figure import Line
    from fedsim.results.run_directory import RunData
    from fedsim.scenario.model import Scenario
    from fedsim.scenario.resolve import Resolved
    from fedsim.theory.bound_table import Bound
    from fedsim.theory.symbols import Symbols
    from fedsim.theory.theorem import Check

NOTE = "every constant and logarithmic factor in n, R and N is set to one: compare slopes, not heights"
UNEQUAL = "n is the smallest, noise is xi = min(Xi / M', xi_max / M), constants are of N p_i f (Theorem 140)"
SUMS = (
    "SDP bounds count on two parties of which one keeps to the protocol, central ones on the server; ISRL "
    "ones are those of silos that trust nobody, which sums over silos may beat"
)
CLASS = (
    "lower ISRL bounds are for algorithms that compose as advanced composition does (C = 1) and spend at "
    "most about 1/n a round; that is not checked"
)
Found = Sequence[tuple["Bound", float | None, str]]


@app.command(rich_help_panel=PRIVACY)
def bounds(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help=f"{SCENARIO}; or --run.")
    ] = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    run: Annotated[
        Path | None,
        typer.Option(help="Run directory: draw the bounds over what it measured, as figures/bounds."),
    ] = None,
) -> None:
    """Show the theory's upper and lower bounds on the run's excess risk, constants set to one."""
    with plain_errors(), data_from(data_dir):
        if (scenario is None) == (run is None):
            fail("error: SCENARIO: give a scenario file, or --run and a run directory")
        from fedsim.cli import early

        loaded = None if scenario is None else early.single(scenario, overrides or [])
        _show(loaded, overrides or [], as_json, run)


def _show(scenario: Scenario | None, overrides: Sequence[str], as_json: bool, run: Path | None) -> None:
    """Print what applies to a scenario or a run, and what the other bounds need; a run's are drawn too."""
    from fedsim.report.remarks import objective
    from fedsim.results.privacy_statement import how
    from fedsim.results.run_directory import read
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
    if content is not None and content.summary.objective:
        for line in objective(content.summary, content.summary.objective):
            say(console, line)
    for note in (NOTE, CLASS, *([] if resolved.sums is None else [SUMS])):
        say(console, f"Note: {note}.")
    if drawn:
        say(console, f"Wrote {', '.join(map(shown, drawn))}")


def _drawn(run: RunData, directory: Path, resolved: Resolved, symbols: Symbols, found: Found) -> list[Path]:
    """Draw the figures; a run that measured nothing is refused before its bounds are looked at."""
    from fedsim.report.bounds_figure import draw, measured
    from fedsim.report.page import FIGURES

    columns = measured(run)
    proximal = resolved.scenario.algorithm.name.startswith("prox_")
    # Of silos that trust nobody only their own; of sums also what they gain, and what no trust could.
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
    from fedsim.report.bounds_figure import Line

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
    from fedsim.report.bounds_figure import measured
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
            "measured": {key: getattr(run.summary.metrics, key) for key in measured(run)},
            "objective": run.summary.objective.tree() if run.summary.objective else {},
            "figures": [str(path) for path in drawn],
        }
    typer.echo(json.dumps(statement, indent=2, allow_nan=False))


def _shown(symbols: Symbols) -> dict[str, float | None]:
    """The theorems' numbers, without the lists that they are made of."""
    lists = ("claims", "law", "differ", "even", *(["heaviest"] if symbols.heaviest == 1 else []))
    return {key: value for key, value in asdict(symbols).items() if key not in lists} | {"xi": symbols.xi}


def _plain(bound: Bound, value: float | None, reason: str, asked: Sequence[Check]) -> dict[str, object]:
    named = {name: getattr(bound, name) for name in ("functions", "trust", "risk", "side", "source")}
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
    _conditions(console, asked)
    for reason in dict.fromkeys(reason for _, _, reason in found if reason):
        names = [f"{bound.functions} ({bound.source})" for bound, _, why in found if why == reason]
        say(console, f"Not shown, {reason}: {'; '.join(names)}")


def _conditions(console: Console, asked: Mapping[Check, Sequence[str]]) -> None:
    """Every condition once with what it meets, those that are not met last and marked as in the table."""
    for check in sorted(asked, key=lambda check: not check.holds):
        met = "  met" if check.holds else "* not met"
        value = check.value if isinstance(check.value, str) else f"{check.value:.6g}"
        theorems = "; ".join(dict.fromkeys(source[source.index("Theorem") :] for source in asked[check]))
        say(console, f"{met}: {check.condition}, here {value} and {check.bound} ({theorems})")
