"""The page's tables: means with 95 % intervals, what claimed epsilons truly cost, and an audit's line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf

import numpy as np

from benchmarks.document import table
from benchmarks.thesis.trials import (
    ByTrial,
    Curve,
    called,
    counts_mistakes,
    epsilon_field,
    settings_of,
    with_accuracy,
)
from benchmarks.thesis.verdicts import Claim, Verdict, interval
from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.report.audit import AuditPart
from fedsim.report.sweep_summary import SweepSummary

NONE = "none"
_VERDICT = {"holds": "**holds**", "fails": "**fails**", "undecided": "undecided"}


def percent(summary: SweepSummary) -> bool:
    """Whether the metric is a share of mistakes, which is given in percent."""
    return summary.metric == "error" and counts_mistakes(summary)


def number(value: float, as_percent: bool) -> str:
    """A mean as the page writes it."""
    return f"{100 * value:.1f} %" if as_percent else f"{value:.3f}"


def with_interval(trials: ByTrial, as_percent: bool) -> str:
    """A mean and half its 95 % interval, of several trials."""
    values = np.array(list(trials.values()))
    if len(values) < 2:
        return number(float(values[0]), as_percent)
    mean, _, high = interval(values)
    half = high - mean
    return f"{100 * mean:.1f} ± {100 * half:.1f}" if as_percent else f"{mean:.3f} ± {half:.3f}"


def _cell(curve: Curve, epsilon: float | None, as_percent: bool) -> str:
    """A mean with its interval, and the accuracy where that is another."""
    shown = with_interval(curve.at[epsilon], as_percent)
    wrong = curve.wrong.get(epsilon)
    return shown if wrong is None else f"{shown} ({_accuracy(float(np.mean(list(wrong.values()))))})"


def _accuracy(wrong: float) -> str:
    return number(1 - wrong, as_percent=True)


def errors(summary: SweepSummary, curves: Sequence[Curve], setting: str) -> str:
    """A row for each algorithm, a column for each epsilon and one without privacy; baselines below.

    Args:
        summary: of one setting (`figures.of_setting`), for its baselines.
        curves: of the whole sweep.
        setting: which of them.
    """
    own = [curve for curve in curves if curve.setting == setting]
    epsilons = sorted({e for curve in own for e in curve.at if e is not None})
    baselines = {curve.name: curve for curve in own if not curve.private}
    as_percent = percent(summary)
    rows = []
    for curve in (one for one in own if one.private):
        cells = [_cell(curve, e, as_percent) if e in curve.at else "-" for e in epsilons]
        baseline = _cell(baselines[curve.name], None, as_percent) if curve.name in baselines else "-"
        rows.append([curve.name, *cells, baseline])
    for name, one in summary.levels():
        if (spread := one.spread(summary.metric)) is not None:
            level = number(spread.mean, as_percent)
            if with_accuracy(summary) and one.error is not None:
                level += f" ({_accuracy(one.error)})"
            rows.append([name, *[""] * len(epsilons), level])
    return table(["", *(f"{e:g}" for e in epsilons), NONE], rows)


def true_costs(summary: SweepSummary, series: Sequence[str]) -> str:
    """Of a thesis variant: for each algorithm what the epsilon that is claimed costs the costliest silo."""
    axis = epsilon_field(summary.varied)
    found: dict[str, dict[float, str]] = {}
    for row in summary.combinations:
        at = row.varied.get(axis) if axis else None
        if row.private and row.trials and isinstance(at, float | int):
            cost = inf if row.epsilon_guaranteed is None else row.epsilon_guaranteed
            found.setdefault(called(row.varied, series), {})[at] = shown_up(cost)
    epsilons = sorted({e for costs in found.values() for e in costs})
    rows = [[name, *(costs.get(e, "-") for e in epsilons)] for name, costs in found.items()]
    return table(["claimed epsilon", *(f"{e:g}" for e in epsilons)], rows)


def audit_line(found: AuditPart) -> str:
    """What an audit attained of what is claimed, over the audited silos."""
    attained = sorted(silo.attained for silo in found.silos)
    least, most = shown_down(attained[0]), shown_down(attained[-1])
    claimed = shown_up(max(silo.claimed for silo in found.silos))
    line = (
        f"An audit of one honest run attains epsilon {least} to {most} of the {claimed} promised "
        f"({len(attained)} of {found.of_silos} audited; lower bounds, each by itself at "
        f"{found.confidence.bound:.0%}, so that one of many may exceed its claim by chance)"
    )
    return f"{line}: **a claim is broken**." if found.broken else f"{line}. No claim is broken."


def verdicts(rows: Sequence[tuple[Claim, Verdict | None]]) -> str:
    """One row for each claim; None where its scenario was not measured."""
    cells = []
    for claim, one in rows:
        word = "not measured" if one is None else _VERDICT[one.word]
        cells.append([claim.text, f"`{claim.scenario}`", word, _reason(claim, one)])
    head = ["claim of the thesis", "scenario", "verdict", "the comparison that decides"]
    return table(head, cells, numbers=False)


def _reason(claim: Claim, one: Verdict | None) -> str:
    if one is None or one.deciding is None:
        return ""
    name, (mean, low, high) = one.deciding
    held, open_, failed = one.sides
    total = held + open_ + failed
    counts = (
        f"; of {total} comparisons {held} on its side, {open_} open, {failed} against" if total > 1 else ""
    )
    return f"{name}: {mean:+.4f} [{low:+.4f}, {high:+.4f}] over {one.trials} trials{counts}"


_PLACE = re.compile(r"\{(?:([^{}|]*)\|)?([^{}|@]+?)(?:@([^{}]+))?\}")


def filled(text: str, summary: SweepSummary, curves: Sequence[Curve]) -> str:
    """A conclusion with its numbers (`Experiment.conclusion`); LookupError: a number is not there."""
    as_percent = percent(summary)

    def value(found: re.Match[str]) -> str:
        setting, name, at = ((part or "").strip() for part in found.groups())
        if name.startswith("baseline "):
            return number(_baseline(summary, setting, name.removeprefix("baseline ")), as_percent)
        for curve in curves:
            if (curve.setting, curve.name, curve.private) == (setting, name, at != NONE):
                trials = curve.at.get(None if at == NONE else float(at))
                if trials:
                    return number(float(np.mean(list(trials.values()))), as_percent)
        raise LookupError(found.group())

    return _PLACE.sub(value, text.strip())


def _baseline(summary: SweepSummary, setting: str, name: str) -> float:
    for group in summary.baselines:
        parts = [called(group.varied, [field]) for field in settings_of(list(group.varied))]
        for one in group.baselines:
            spread = one.spread(summary.metric)
            if one.name == name and spread is not None and all(part in setting for part in parts):
                return spread.mean
    raise LookupError(f"baseline {name}")
