"""`fedsim audit`: attack a scenario, and show what that attains beside what is claimed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from math import floor
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from fedsim.api.audit import Audit, audit
from fedsim.api.run import load_run
from fedsim.cli.tables import rendered, say, shown
from fedsim.common.errors import InputError
from fedsim.report.audit_section import audit_table
from fedsim.results.audit_file import FILE, AuditPart
from fedsim.scenario.model import Scenario

BROKEN = 1


def show(
    scenario: Scenario | None, overrides: Sequence[str], run: Path | None, effort: float, json_wanted: bool
) -> int:
    """Audit a scenario, or that of a run directory, and print a table or JSON; the exit code.

    Raises:
        InputError: bad scenario, data or directory; or a scenario that claims nothing.
        Refused: a silo does not accept the plan.
    """
    if (scenario is None) == (run is None):
        both = [scenario.name, str(run)] if scenario else []
        raise InputError("fedsim audit", both, "name a scenario, or --run DIR")
    if run is not None and overrides:
        raise InputError("--set", list(overrides), "a run has its scenario; audit that, or another one")
    start = time.perf_counter()
    given = scenario or load_run(run)  # type: ignore[arg-type]
    found = audit(given, effort=effort, progress=True)
    if run is not None:
        found.save(run)
    if json_wanted:
        typer.echo(json.dumps(found.tree, indent=2, allow_nan=False))
    else:
        _print(found, time.perf_counter() - start, run)
    return BROKEN if found.broken else 0


def _print(found: Audit, seconds: float, run: Path | None) -> None:
    console, part = Console(), found.part
    title = f"{found.tree['scenario']}: epsilon that attacks attained of each claim"
    console.print(rendered(audit_table(part), title), "", sep="\n")
    for line in _said(found.tree, part, seconds):
        say(console, line)
    for line in found.verdict:
        say(console, line[0].upper() + line[1:], "bold red" if part.broken else "bold")
    if run is not None:
        say(console, f"Wrote {shown(run / FILE)} and the run's page")


def _said(found: dict[str, Any], part: AuditPart, seconds: float) -> Iterator[str]:
    silos, search = found["silos"], found["search"]
    if found["of_silos"] > found["audited"]:
        yield f"Audited: {found['audited']} of {found['of_silos']} silos, evenly in order of their claims."
    runs = sorted({sum(silo["worst_server"]["runs"]) for silo in silos})
    span = f"{runs[0]:,}" if len(runs) == 1 else f"{runs[0]:,} to {runs[-1]:,}"
    honest = max((sum(silo["honest_server"]["runs"]) for silo in silos if "honest_server" in silo), default=0)
    said = f"by the worst server, {honest:,} by the honest one" if honest else "by each party"
    yield (
        f"Attained: lower bounds, {part.confidence.bound:.0%} confidence each, one in twenty above the truth "
        f"by chance; {span} runs a silo {said}."
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
        yield f"By the plan's own trade-off curve; without any assumption at most {free} of a claim."
    answers = sum(silo["answers_searched"] for silo in silos)
    yield (
        f"Moved: the largest change of an answer by one record, over its sensitivity, in {answers:,} answers "
        f"without noise ({search['records']} records, {search['points']} broadcasts); others: of another "
        "silo's answer."
    )
    noise = [silo["noise_ratio"] for silo in silos]
    yield f"Noise: {min(noise):.3f} to {max(noise):.3f} times what is stated. {seconds:,.0f} s."
