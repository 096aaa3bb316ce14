"""docs/results.md: each part between two comments that name it, so that one experiment can be made anew."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.document import table
from benchmarks.document import write as replace
from benchmarks.thesis import figures, tables
from benchmarks.thesis.plan import Experiment, Plan
from benchmarks.thesis.runs import ROOT, SCENARIOS, Taken
from benchmarks.thesis.trials import Curve, epsilon_field, read_curves, with_accuracy
from benchmarks.thesis.verdicts import verdict
from fedsim.data.dataset import IGNORED
from fedsim.report.audit import AuditPart
from fedsim.report.sweep_summary import SweepSummary
from fedsim.scenario.metric import METRICS

PAGE, README = ROOT / "docs" / "results.md", ROOT / "scenarios" / "README.md"
IMAGES = "images/results"
PUBLISHED = SCENARIOS / "published.csv"
ABSENT = "Not measured here."
_HEADS = {
    "honest": "True epsilon",
    "honest_rounds": "True epsilon, 12 silos a round, 50 rounds",
    "thesis": "As published: the epsilon is claimed, and not kept",
    "thesis_split": "True epsilon, on the thesis's records: some train here and test there",
    "thesis_12": "As published, 12 silos a round",
    "thesis_50_rounds": "As published, 50 rounds",
}


@dataclass(frozen=True)
class Measured:
    """A finished sweep of one variant."""

    name: str
    variant: str
    summary: SweepSummary
    curves: list[Curve]


def read(place: Path, name: str, variant: str, one: Experiment) -> Measured | None:
    """What a folder has of a variant; None where its sweep has not finished."""
    folder = place / f"{name}-{variant}"
    if not (folder / "summary.json").exists():
        return None
    summary, curves = read_curves(folder, one.series)
    if summary.status == "interrupted" or any(row.trials < summary.trials for row in summary.combinations):
        print(f"{folder.name}: {summary.status}: left out of the page", file=sys.stderr)
        return None
    return Measured(name, variant, summary, curves)


def write_section(
    name: str,
    one: Experiment,
    measured: Sequence[Measured],
    audited: AuditPart | None,
    took: Mapping[str, Taken],
    page: Path,
) -> None:
    """Write an experiment's figures, and its part of the page."""
    if not measured:
        return replace(name, f"{one.about}\n\n{ABSENT}", page)
    parts = [one.about, *_conclusion(one, measured)]
    for found in measured:
        parts += [f"### {_HEADS.get(found.variant, found.variant)}", *_variant(one, found, page)]
        if found.variant == "honest" and audited:
            parts.append(tables.audit_line(audited))
    parts.append(_made(name, took))
    return replace(name, "\n\n".join(parts), page)


def _conclusion(one: Experiment, measured: Sequence[Measured]) -> list[str]:
    honest = next((found for found in measured if found.variant == "honest"), None)
    if honest is None or not one.conclusion:
        return []
    try:
        return [tables.filled(one.conclusion, honest.summary, honest.curves)]
    except LookupError as error:
        print(f"{honest.name}: no {error} in its honest sweep: the page gets no conclusion", file=sys.stderr)
        return []


def _variant(one: Experiment, found: Measured, page: Path) -> list[str]:
    """Figures, a table for each setting with what claimed epsilons truly cost, what no epsilon counts."""
    parts, images = [], []
    for setting in figures.settings(found.summary, one.series):
        own = figures.of_setting(found.summary, setting, one.series)
        points = {}
        if number := one.published.get(found.variant, {}).get(setting):
            points = figures.published_points(PUBLISHED, found.name, number)
        title = ", ".join(filter(None, [one.title, setting]))
        drawn = figures.figure(own, title, points)
        file = figures.write(drawn, page.parent / IMAGES, figures.stem(found.name, found.variant, setting))
        images.append(f"![{title}, {found.variant}]({IMAGES}/{file})")
        head = f"{setting}: " if setting else ""
        parts.append(f"{head}{_reading(found)}\n\n{tables.errors(own, found.curves, setting)}")
        if _claims(found):
            costs = tables.true_costs(own, one.series)
            parts.append(f"What they truly cost the costliest silo:\n\n{costs}")
    ignored = [note for note in found.summary.privacy.not_private if IGNORED in note]
    return ["\n".join(images), *parts, *[f"Not private: {'; '.join(ignored)}."] * bool(ignored)]


def _claims(found: Measured) -> bool:
    return epsilon_field(found.summary.varied) == "privacy.claimed_epsilon"


def _reading(found: Measured) -> str:
    metric = found.summary.metric
    what = found.summary.error_name if metric == "error" else METRICS[metric].title
    unit = ", in percent" if tables.percent(found.summary) else ""
    unit += " (in brackets the share of records classified rightly)" if with_accuracy(found.summary) else ""
    axis = "claimed epsilon" if _claims(found) else "epsilon"
    return f"{what}{unit}, by {axis}; mean of {found.summary.trials} trials and half its 95 % interval."


def _made(name: str, took: Mapping[str, Taken]) -> str:
    lines = [
        f"{key[len(name) + 1 :]}: {one.cells:,} runs in {one.seconds:,.0f} s, {one.day}, `{one.commit}`"
        for key, one in took.items()
        if key.startswith(f"{name}-")
    ]
    return f"Made by `make results` ({'; '.join(lines)})." if lines else "Made by `make results`."


def write_overview(plan: Plan, took: Mapping[str, Taken], page: Path) -> None:
    """What there is, and what it took."""
    rows = []
    for name, one in plan.experiments.items():
        cells = [took.get(f"{name}-{variant}") for variant in one.swept]
        honest, *others = (f"{each.seconds:,.0f}" if each else "not measured" for each in cells)
        seconds = [honest, "; ".join(others) or "none"]
        last = max((each for each in cells if each), key=lambda each: each.day, default=None)
        rows.append([f"[`{name}`](#{_anchor(one.title)})", *seconds, f"`{last.commit}`" if last else ""])
    head = ["scenario", "honest, seconds", "its other variants, seconds", "commit"]
    replace("overview", table(head, rows), page)


def write_readme(plan: Plan, took: Mapping[str, Taken], readme: Path) -> None:
    """The scenarios' rows: what, from where, what to expect, and what the honest variant took."""
    rows = []
    for name, one in plan.experiments.items():
        measured = took.get(f"{name}-honest")
        seconds = f"{measured.seconds:,.0f}" if measured else "not measured"
        rows.append([f"`{name}.yaml`", one.about, one.origin, one.shape, seconds])
    head = ["file", "what", "data", "what to expect", "seconds"]
    replace("thesis", table(head, rows, numbers=False), readme)


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def write_verdicts(plan: Plan, place: Path, page: Path) -> None:
    """Of every claim whose scenario's sweep for it is there."""
    names = dict.fromkeys(claim.scenario for claim in plan.claims)
    asked = {name: plan.experiments[name] for name in names}
    found = {name: read(place, name, one.judged, one) for name, one in asked.items()}
    rows = [
        (claim, None if (one := found[claim.scenario]) is None else verdict(claim, one.curves))
        for claim in plan.claims
    ]
    replace("verdicts", tables.verdicts(rows), page)
