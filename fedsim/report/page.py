"""The reviewer's page: one self-contained HTML file, the privacy statement first, and its figures."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fedsim.common.errors import InputError
from fedsim.report import plots
from fedsim.report.audit_section import audit_figure, audit_table, verdict
from fedsim.report.remarks import remarks
from fedsim.report.silo_table import PageTable, silo_table
from fedsim.results.read import Run, SiloRow, Summary, read

PAGE, FIGURES = "report.html", "figures"


@dataclass(frozen=True)
class PageFigure:
    """Markup made by us, and a caption."""

    svg: str
    caption: str


@dataclass(frozen=True)
class PageAudit:
    """The section of a run that was audited."""

    verdict: list[str]
    broken: bool
    table: PageTable
    figure: PageFigure
    confidence: float


def write_page(directory: Path) -> Path:
    """Write report.html and figures/ into a run directory; what was there is replaced once all is ready.

    Raises:
        InputError: the directory is no run directory of this version, or cannot be written.
    """
    run = read(directory)
    return publish(directory, directory / FIGURES, lambda figures: render(run, figures))


def publish(directory: Path, place: Path, render_into: Callable[[Path], str]) -> Path:
    """Write a page whose text `render_into(folder)` makes, with its figures' files in the folder.

    Args:
        directory: where report.html goes.
        place: where the figures' files go, in or below `directory`.
        render_into: see above.

    Raises:
        InputError: the directory cannot be written.
    """
    try:
        draft = Path(tempfile.mkdtemp(prefix=".report-", dir=directory))
    except OSError as error:
        raise InputError("RUN", str(directory), f"cannot be written ({error.strerror})") from None
    try:
        (draft / FIGURES).mkdir()
        (draft / PAGE).write_text(render_into(draft / FIGURES), encoding="utf-8")
        place.mkdir(exist_ok=True)
        for file in (draft / FIGURES).iterdir():
            os.replace(file, place / file.name)
        os.replace(draft / PAGE, directory / PAGE)
    except OSError as error:
        raise InputError("RUN", str(directory), f"cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory / PAGE


def template(name: str) -> Template:
    """One of the package's templates. All that goes into it is escaped but what it marks safe: our SVG."""
    environment = Environment(
        loader=PackageLoader("fedsim.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["count"] = lambda number: f"{number:,}"
    return environment.get_template(name)


def render(run: Run, figures: Path) -> str:
    """The page's text; the figures' files go to the folder `figures`."""
    metrics = run.summary.metrics
    return template(PAGE).render(
        title=run.summary.scenario,
        run=run.summary,
        privacy=run.summary.privacy,
        description=run.description,
        facts=_facts(run.summary),
        table=silo_table(run.summary.privacy.silos),
        error_name=str(metrics.get("error", "test error")),
        audit=_audit(run, figures),
        results=_results(run.summary),
        remarks=remarks(run.summary.model_dump()),
        figures=_figures(run, figures),
        environment=_environment(run.summary),
        scenario=run.scenario,
    )


def _facts(summary: Summary) -> list[tuple[str, str]]:
    said = summary.privacy
    facts = [
        ("Unit", said.unit),
        ("Adjacency", said.adjacency),
        ("Guarantee", said.guarantee),
        ("Trusted", ". ".join(f"{line[0].upper()}{line[1:]}" for line in said.trusted)),
        ("Mechanism", said.mechanism),
        ("Calibration", said.calibration),
        ("Sampler", ", ".join(said.sampler)),
        ("Accountant", said.accountant),
    ]
    if said.mechanism == "none" or not said.silos:
        return facts
    facts.append(("Budgets", _budgets(said.silos)))
    return facts + _claims(said.silos)


def _claims(silos: list[SiloRow]) -> list[tuple[str, str]]:
    claims = [s for s in silos if s.epsilon_claimed is not None]
    under = [s.name for s in claims if _exceeds(s.epsilon_guaranteed, s.epsilon_claimed)]
    verdict = _verdict(under, len(claims), "at most what is claimed", "above the claim")
    return [("True against claimed", verdict)] if claims else []


def _budgets(silos: list[SiloRow]) -> str:
    limited = [silo for silo in silos if silo.epsilon_budget is not None]
    if not limited:
        return f"none in all {len(silos):,} silos: nothing bounds what the run costs"
    over = [silo.name for silo in limited if _exceeds(silo.epsilon_guaranteed, silo.epsilon_budget)]
    return _verdict(over, len(limited), "within its budget", "above its budget")


def _exceeds(cost: float | None, limit: float | None) -> bool:
    """None is infinity."""
    return limit is not None and (cost is None or cost > limit)


def _verdict(failed: list[str], total: int, good: str, bad: str) -> str:
    if not failed:
        return f"guaranteed epsilon is {good} in all {total:,} silos"
    more = f" and {len(failed) - 5:,} more" if len(failed) > 5 else ""
    return f"guaranteed epsilon is {bad} in {len(failed):,} of {total:,} silos: {', '.join(failed[:5])}{more}"


def _results(summary: Summary) -> tuple[str, str]:
    """The final error, and the twin's where there is one."""
    twin = "" if summary.privacy.mechanism == "none" else _value(summary.metrics, "test_error_nonprivate")
    return _value(summary.metrics, "test_error") or "not measured, no trial is complete", twin


def _value(metrics: dict[str, Any], name: str) -> str:
    value, interval = metrics.get(name), metrics.get(f"{name}_interval90")
    if value is None:
        return ""
    spread = f" [{interval[0]:.4f}, {interval[1]:.4f}]" if interval and interval[0] < interval[1] else ""
    return f"{value:.4f}{spread}"


def _figures(run: Run, folder: Path) -> list[PageFigure]:
    several = run.summary.trials.finished > 1
    spread = "; bands and bars hold 90 % of the trials" if several else ""
    priced = len(set(run.spend["silo"]))
    part = f" ({priced} of {len(run.summary.privacy.silos):,} silos, evenly in order of budget)"
    drawn = {
        f"Test error against rounds: mean{spread}. Filled markers: the run; hollow: its twin without "
        "clipping and noise.": plots.error_against_rounds(run, folder),
        **_objective(run, folder, spread),
        f"Final test error on each silo's own test records{spread}. Simulation only.": plots.silo_errors(
            run, folder
        ),
        "Epsilon spent by the rounds gone by, dotted: budgets"
        + (part if priced < len(run.summary.privacy.silos) else "")
        + ".": plots.spend(run, folder),
    }
    return [PageFigure(named(svg, caption), caption) for caption, svg in drawn.items() if svg]


def _objective(run: Run, folder: Path, spread: str) -> dict[str, str | None]:
    captions = {
        "excess_risk": "Excess risk of the training objective, its public part included, against rounds",
        "gradient_mapping_sq": "Squared gradient mapping |G_eta(w)|^2 of the training objective against "
        f"rounds{_eta(run.summary)}",
    }
    return {
        f"{caption}: mean{spread}. Simulation only, not private.": plots.objective_against_rounds(
            run, folder, column
        )
        for column, caption in captions.items()
    }


def _eta(summary: Summary) -> str:
    """Known once a trial is complete."""
    return f", eta = {summary.objective['eta']:.4g}" if summary.objective else ""


def named(svg: str, caption: str) -> str:
    """An image to a screen reader, with the caption as its name."""
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(caption, quote=True)}" ', 1)


def _audit(run: Run, folder: Path) -> PageAudit | None:
    """What attacks attained, where somebody has tried."""
    found = run.audit
    if found is None:
        return None
    caption = "Epsilon claimed for each silo (dotted), and what attacks attained of it: lower bounds."
    figure = PageFigure(named(audit_figure(found, folder), caption), caption)
    return PageAudit(verdict(found), found.broken, audit_table(found), figure, found.confidence.bound)


def _environment(summary: Summary) -> list[tuple[str, str]]:
    where = [(name.capitalize(), str(value)) for name, value in summary.environment.items()]
    versions = ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    return [
        ("Wall time", f"{summary.wall_seconds:,.2f} s, runtime {summary.runtime}"),
        ("Versions", versions),
        *where,
    ]
