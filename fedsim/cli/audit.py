"""`fedsim audit`: attack a scenario, and show what that attains beside what is claimed."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedsim.audit.run import Observe, as_json, audit
from fedsim.cli.tables import shown
from fedsim.common.errors import InputError
from fedsim.report.audit_section import audit_rows, verdict
from fedsim.report.page import write_page
from fedsim.results.audit_file import FILE, AuditPart
from fedsim.results.read import read
from fedsim.scenario.load import load
from fedsim.scenario.resolve import resolve

BROKEN = 1
_EVERY = 10.0  # seconds between two plain lines


def show(
    path: Path | None, overrides: Sequence[str], run: Path | None, effort: float, json_wanted: bool
) -> int:
    """Audit a scenario, or that of a run directory, and print a table or JSON; the exit code.

    Raises:
        InputError: bad scenario, data or directory; or a scenario that claims nothing.
        Refused: a silo does not accept the plan.
    """
    if (path is None) == (run is None):
        raise InputError("fedsim audit", [str(p) for p in (path, run) if p], "name a scenario, or --run DIR")
    if run is not None:
        if overrides:
            raise InputError("--set", list(overrides), "a run has its scenario; audit that, or another one")
        read(run)  # what is wrong with a directory should be said before the work
        path = run / "scenario.yaml"
    assert path is not None
    torch.set_num_threads(1)  # sums depend on the number of threads
    scenario = load(path, overrides)
    if scenario.sweep is not None:
        expected = "is many runs; audit one of them, and leave the section out by --set sweep=null"
        raise InputError("scenario.sweep", sorted(scenario.sweep.model_fields_set), expected)
    resolved = resolve(scenario)
    start = time.perf_counter()
    with _progress() as observe:
        found = as_json(audit(resolved, effort, observe))
    if run is not None:
        _write(found, run / FILE)
        write_page(run)
    if json_wanted:
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        _print(found, time.perf_counter() - start, run)
    return BROKEN if found["broken"] else 0


@contextmanager
def _progress() -> Iterator[Observe]:
    """On stderr: a bar on a screen, plain lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        last = time.monotonic()

        def line(what: str, share: float) -> None:
            nonlocal last
            if time.monotonic() - last >= _EVERY:
                last = time.monotonic()
                console.print(f"{what}: {share:.0%}", highlight=False)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def _write(found: dict[str, Any], path: Path) -> None:
    """Whole, or not at all."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as draft:
            draft.write(json.dumps(found, indent=2, allow_nan=False) + "\n")
        os.chmod(draft.name, 0o644)
        os.replace(draft.name, path)
    except OSError as error:
        raise InputError("RUN", str(path), f"cannot be written ({error.strerror})") from None


def _print(found: dict[str, Any], seconds: float, run: Path | None) -> None:
    console, part = Console(), AuditPart.model_validate(found)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    table.title = f"{found['scenario']}: epsilon that attacks attained of each claim"
    table.add_column("silo", overflow="fold", min_width=7)
    for title in ("claimed", "worst\nserver", "honest\nserver", "model\nalone", "moved", "others\nmoved"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in audit_rows(part.silos):
        table.add_row(*row)
    console.print(table, "", sep="\n")
    for line in _said(found, part, seconds):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in verdict(part):
        style = "bold red" if part.broken else "bold"
        console.print(line[0].upper() + line[1:], style=style, markup=False, highlight=False, soft_wrap=True)
    if run is not None:
        console.print(f"Wrote {shown(run / FILE)} and the run's page", highlight=False, soft_wrap=True)


def _said(found: dict[str, Any], part: AuditPart, seconds: float) -> Iterator[str]:
    silos, search = found["silos"], found["search"]
    if found["of_silos"] > found["audited"]:
        yield f"Audited: {found['audited']} of {found['of_silos']} silos, evenly in order of their claims."
    runs = sorted({sum(silo["worst_server"]["runs"]) for silo in silos})
    span = f"{runs[0]:,}" if len(runs) == 1 else f"{runs[0]:,} to {runs[-1]:,}"
    honest = max((sum(silo["honest_server"]["runs"]) for silo in silos if "honest_server" in silo), default=0)
    yield (
        f"Attained: lower bounds, {part.confidence.bound:.0%} confidence each; {span} runs a silo by the "
        f"worst server, {honest:,} by the honest one."
    )
    if not part.broken and any(silo.attained > silo.claimed for silo in part.silos):
        yield (
            "A bound above its claim is chance here: one in twenty lies above the truth. A claim counts as "
            f"broken where chance would do so in a share of {part.confidence.false_alarm:g} of audits."
        )
    worst = [silo["worst_server"] for silo in silos]
    free = max(
        (row["assumption_free"] / silo["claimed"] for row, silo in zip(worst, silos, strict=True)), default=0
    )
    normal = [row["normality_p"] for row in worst if row["estimator"] == "mean difference"]
    if normal:
        least = min(normal)
        shown_p = "above 0.1" if least >= 0.1 else f"at least {least:.2g}"
        yield (
            f"By the mean difference of scores, which assumes them normal (p {shown_p}); without any "
            f"assumption at most {free:.0%} of a claim."
        )
    else:
        yield f"By the plan's own trade-off curve; without any assumption at most {free:.0%} of a claim."
    answers = sum(silo["answers_searched"] for silo in silos)
    yield (
        f"Moved: the largest change of an answer by one record, over its sensitivity, in {answers:,} answers "
        f"without noise ({search['records']} records, {search['points']} broadcasts); others: of another "
        "silo's answer."
    )
    noise = [silo["noise_ratio"] for silo in silos]
    yield f"Noise: {min(noise):.3f} to {max(noise):.3f} times what is stated. {seconds:,.0f} s."
