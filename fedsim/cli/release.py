"""`fedsim release`: statistics of the silos' records, each silo's within its budget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsim.cli import app as shared
from fedsim.cli.app import app
from fedsim.cli.output import Output, dated, print_notices, print_silos, rendered, say, shown
from fedsim.common.errors import InputError, suggest

if TYPE_CHECKING:
    from fedsim.api.asked import Asked

_HELP = (
    "COLUMN=KIND[:OPTION,..], such as charges=mean, visits=sum:20, sex=count:female, age=count:65, "
    "sex=histogram, age=histogram:6, age=quantiles:0.05,0.5,0.95; or all=moments, all=components:3."
)


@app.command(rich_help_panel=shared.RUNS)
def release(
    scenario: shared.ScenarioFile,
    request: Annotated[list[str], typer.Argument(metavar="COLUMN=KIND...", help=_HELP)],
    epsilon: Annotated[float | None, typer.Option(help="Each silo's; default: the scenario's.")] = None,
    overrides: shared.Overrides = None,
    data_dir: shared.DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME-TIME.")] = None,
    quiet: shared.Quiet = False,
    as_json: shared.SummaryAsJson = False,
) -> None:
    """Release statistics of the silos' records once, with standard errors, and write the run directory."""
    with shared.data_from(data_dir):
        given, asked, output = shared.ready(scenario, overrides, out), _asked(request), Output(quiet, as_json)
        from fedsim.api.release import release as released
        from fedsim.report.released import released_table

        directory = out or dated(given.name)
        found = released(given, asked, epsilon, out=directory)
        privacy = found.run.summary.privacy
        print_notices(output.results, privacy.notices)
        table = released_table(found.tree)
        output.results.print(rendered(table, given.name))
        say(output.results, table.caption)
        print_silos(output.results, privacy)
        say(output.results, f"Wrote {shown(directory)}/")
        output.summary({**found.tree, "silos": [silo.tree() for silo in privacy.silos]})


def _asked(request: Sequence[str]) -> dict[str, list[Asked]]:
    """{name: what is asked of it}, of arguments as they are typed."""
    from fedsim.api.asked import Asked

    kinds: dict[str, Any] = {kind.__name__.lower(): kind for kind in Asked.__subclasses__()}
    found: dict[str, list[Asked]] = {}
    for text in request:
        name, _, asked = text.partition("=")
        kind, _, options = asked.partition(":")
        if kind not in kinds:
            raise InputError("COLUMN=KIND", text, f"no such kind; {suggest(kind, kinds)}")
        try:
            made = kinds[kind](*map(_number, options.split(","))) if options else kinds[kind]()
        except TypeError:
            raise InputError("COLUMN=KIND", text, "too few or too many options; see --help") from None
        found.setdefault(name, []).append(made)
    return found


def _number(text: str) -> str | float:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text
