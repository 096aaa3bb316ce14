"""A sweep's page: one self-contained HTML file, the result first and then what it cost, and its figure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import inf
from pathlib import Path

from matplotlib.figure import Figure

from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.report import html, sweep_summary
from fedsim.report.curves import LEVELS
from fedsim.report.html import Headline
from fedsim.report.summary import (
    EPSILON,
    CombinationRow,
    SiloRow,
    Summary,
    TuningLedger,
    Values,
    spans,
    value_text,
)
from fedsim.report.sweep_figure import Point, draw, lines
from fedsim.report.sweep_summary import SweepSummary, last_part, title
from fedsim.report.tables import TextTable, capital
from fedsim.report.texts import TUNING, captioned, cost_table, distinct, how, mean_text, terms
from fedsim.scenario.metric import METRICS

CLAIMED = "privacy.claimed_epsilon"
_NOTHING = TextTable("", [], [])


def figure_name(sweep: SweepSummary) -> str:
    """`error_vs_epsilon`, or by the metric and the last part of whatever field is on the axis."""
    field = sweep.against or abscissa(sweep)
    return f"{sweep.metric}_vs_{last_part(field)}" if field else sweep.metric


def render(sweep: SweepSummary, scenario: str, description: str, folder: Path) -> str:
    """The page's text, with the scenario as it is; the figure's files go to the folder."""
    what, x = METRICS[sweep.metric].title, sweep.against or abscissa(sweep)
    theorem = [("Theorem", sweep.privacy.theorem)] if sweep.privacy.theorem else []
    caption, runs = capital(what) + (f" against {x_label(x)}" if x else ""), sweep.runs
    failures = [[title(f.varied | f.chosen, True), str(f.trial), f.kind, f.message] for f in sweep.failures]
    figure = html.saved_wide(partial(figure_of, sweep), folder, figure_name(sweep), f"{caption}.")
    return html.render(
        "sweep.html",
        title=sweep.scenario,
        description=description,
        sweep=sweep,
        metric=what,
        numbers=_headline(sweep),
        spans=spans(sweep.trials),
        notices=[*true_epsilons(sweep), *sweep.privacy.notices],
        not_private=sweep.privacy.not_private,
        statement=_statement(sweep),
        mechanism=[*how(sweep.privacy), *theorem],
        costs=_costs(sweep),
        shared=sweep_summary.SHARED in sweep.privacy.not_private,  # no guarantee of all its runs together
        ledger=_ledger(sweep.privacy.tuning),
        figure=figure,
        errors=errors(sweep),
        candidates=_candidates(sweep.tuning, sweep.metric),
        failures=TextTable("", ["cell", "trial", "kind", "message"], failures),
        environment=[
            ("Cells", f"{runs.made:,} made, {runs.from_cache:,} from cache, {runs.failed:,} failed"),
            ("Wall time", f"{sweep.wall_seconds:,.1f} s"),
            ("Code", ", ".join(f"{name} {version}" for name, version in sweep.code.items())),
        ],
        scenario=scenario,
    )


def _headline(sweep: SweepSummary) -> list[Headline]:
    """The best combination with privacy and without, the best baseline."""
    metric = METRICS[sweep.metric]
    best = f"{'highest' if metric.higher else 'lowest'} {metric.title}"
    rows: dict[str, list[tuple[str, Values]]] = {}
    for row in sweep.combinations:
        kind = f"{best}, {'private' if row.private else 'without privacy'}"
        rows.setdefault(kind, []).append((title(row.varied, True), row))
    rows[f"{best} of a baseline"] = list(sweep.levels())
    numbers = []
    for kind, named_rows in rows.items():
        values = [(spread, name) for name, row in named_rows if (spread := row.spread(sweep.metric))]
        if values:
            (mean, *_), name = (max if metric.higher else min)(values, key=lambda value: value[0].mean)
            numbers.append((kind, f"{mean:.4f}", name))
    return numbers


def _statement(sweep: SweepSummary) -> list[tuple[str, str]]:
    privacy = sweep.privacy
    costs = sorted(_at_most(row) for row in sweep.combinations if row.private and row.trials)
    ends = " to ".join(dict.fromkeys(shown_up(cost) for cost in (*costs[:1], *costs[-1:])))
    return [
        *terms(privacy),
        *([("Epsilon", f"{ends}: guaranteed, of one run, to the silo that it costs most")] if costs else []),
        ("Mechanism", privacy.mechanism),
    ]


def _costs(sweep: SweepSummary) -> TextTable:
    """One row for each combination that has a mechanism and was run."""
    shown = [row for row in sweep.combinations if row.private and row.trials]
    caption = f"{captioned(sweep.privacy.title)}; the largest over trials"
    return cost_table(caption, "combination", [(title(row.varied, True), row.tree()) for row in shown])


def _ledger(tuning: TuningLedger | None) -> TextTable:
    """Epsilon of private tuning and of the reported run, each at the silo where it is largest."""
    if tuning is None:
        return _NOTHING
    rows = [
        (title(one.varied, True), {key: _largest(one.silos, key) for key in TUNING})
        for one in tuning.combinations
    ]
    return cost_table(f"Epsilon, largest over silos. {capital(tuning.guarantee)}", "combination", rows)


def _largest(silos: Sequence[SiloRow], key: str) -> float | None:
    """The largest of the silos'; None, which is infinity or nothing reported, where one is None."""
    values = [dict(silo)[key] for silo in silos]
    return None if None in values else max(values)


def figure_of(sweep: SweepSummary, broad: bool = False) -> Figure:
    """A figure of the metric against what was varied."""
    x = abscissa(sweep, sweep.against)
    trials = [row.trials for row in sweep.combinations if row.trials]
    tuned = sweep.privacy.tuning.note if sweep.privacy.tuning else ""
    note = "; ".join(filter(None, [interval_note(trials), tuned]))
    below = [x_label(sweep.against or x), *(under_the_axis(sweep) if x == CLAIMED else [])]
    return draw(points(sweep, x), below, METRICS[sweep.metric].title, sweep.scenario, note, broad)


def errors(sweep: SweepSummary) -> TextTable:
    """One row per combination: what was chosen, and its metrics; below them baselines."""
    chosen, metric = sweep.chosen, sweep.metric
    every: list[Values] = [*sweep.combinations, *(one for _, one in sweep.levels())]
    others = distinct([name for name in METRICS if any(row.spread(name) for row in every)], every, metric)
    others = [name for name in others if name != metric]
    columns = ["combination", *(f"chosen {last_part(field)}" for field in chosen), METRICS[metric].title]
    columns += [*(METRICS[name].short for name in others), "trials"]
    rows = []
    for row in sweep.combinations:
        picked = [str((row.chosen or {}).get(field, "-")) for field in chosen]
        values = _values(row, metric, others, "failed")
        rows.append([title(row.varied, row.private), *picked, *values, str(row.trials)])
    for name, one in sweep.levels():
        values = _values(one, metric, others, "not fitted")
        rows.append([name, *["-"] * len(chosen), *values, str(sweep.trials)])
    return TextTable("", columns, rows)


def _values(row: Values, metric: str, others: Sequence[str], without: str) -> list[str]:
    """The chosen metric with its interval, and the others' means."""
    return [value_text(row.spread(metric)) or without, *(mean_text(row, name) for name in others)]


CRITERIA = {
    "final_train_loss": "final training loss",
    "private_error": "noisy share of mistakes",
    "final_metric": "",
    "private_metric": "noisy ",
}
"""Criteria in words, or how the metric is named that they are."""


def _candidates(tuning: sweep_summary.Tuning | None, metric: str) -> TextTable:
    if tuning is None:
        return _NOTHING
    what = CRITERIA[tuning.criterion]
    if tuning.criterion.endswith("_metric"):
        what += METRICS[tuning.scored_by or metric].title
    columns = {
        "combination": lambda row: title(row.varied, row.private),
        "candidate": lambda row: title(row.candidate, True),
        what: lambda row: "failed" if (mean := tuning.mean(row)) is None else f"{mean:.5g}",
        "": lambda row: "chosen" if row.selected else "",
    }
    weighs = f"; weighing: {tuning.weighing}" if tuning.weighing else ""
    return TextTable.of(f"Mean {what} over {tuning.repetitions} runs{weighs}.", tuning.candidates, columns)


def abscissa(summary: Summary | SweepSummary, against: str | None = None) -> str | None:
    """The field on the horizontal axis: epsilon if it varies, or a claimed one, else the first number that
    does. Where the metric `against` is there, the field along a line: epsilon last.
    """
    varied = dict.fromkeys(field for row in summary.combinations for field in row.varied)
    order = sorted(varied, key=lambda f: (f != EPSILON, f != CLAIMED), reverse=against is not None)
    for field in order:
        values = {row.varied.get(field) for row in summary.combinations} - {None}
        if len(values) > 1 and all(isinstance(v, float | int) and not isinstance(v, bool) for v in values):
            return field
    return None


def points(summary: SweepSummary, x: str | None) -> list[Point]:
    """The points of a figure over the field `x`; combinations without it are levels, and so are baselines."""
    metric, against = summary.metric, summary.against
    at = points_of(summary, metric, lambda row: _number(row.varied.get(x or "")), [x], against=against)
    return at + levels(summary, metric, against=against)


def points_of(
    summary: Summary | SweepSummary,
    metric: str,
    at: Callable[[CombinationRow], float | None],
    without: Collection[str | None],
    source: str = "",
    against: str | None = None,
) -> list[Point]:
    """A point for each combination that has the metric; lines are named by the fields not in `without`, in
    whose order they go along a line where the metric `against` is x.
    """
    rows = summary.combinations
    if against:
        rows = sorted(rows, key=lambda row: [_number(row.varied.get(f or "")) or 0.0 for f in without])
    found = []
    for row in rows:
        if (spread := row.spread(metric)) is not None:
            series, family = (title(row.varied, private, without) for private in (row.private, True))
            point = Point(series, at(row), *spread, row.trials, family, source)
            found.append(_placed(point, row, against))
    return [point for line in lines(found) for point in line] if against else found


def levels(
    summary: Summary | SweepSummary, metric: str, source: str = "", against: str | None = None
) -> list[Point]:
    """A point without x, but where the metric `against` is that, for each baseline that has the metric."""
    return [
        _placed(Point(label, None, *spread, summary.repetitions, source=source), one, against)
        for label, one in summary.levels()
        if one.name in LEVELS and (spread := one.spread(metric)) is not None
    ]


def _placed(point: Point, row: Values, against: str | None) -> Point:
    """The point at the metric `against` in place of its x."""
    if against is None:
        return point
    spread = row.spread(against)
    return point._replace(x=spread and spread.mean, across=spread and (spread.low, spread.high))


def _number(value: object) -> float | None:
    return value if isinstance(value, float | int) else None


def x_label(field: str | None) -> str:
    """The text under the horizontal axis."""
    if field == EPSILON:
        return "epsilon of each silo"
    if field == CLAIMED:
        return "claimed epsilon (not the true one)"
    return METRICS[field].title if field in METRICS else field or ""


def interval_note(trials: Sequence[int]) -> str:
    """How to read the bars.

    >>> interval_note([3, 3]), interval_note([1])
    ('mean of 3 trials; bars from the lowest to the highest', 'one trial')
    """
    if not trials:
        return ""
    if max(trials) == 1:
        return "one trial"
    count = f"{min(trials)}" if min(trials) == max(trials) else f"{min(trials)} to {max(trials)}"
    return f"mean of {count} trials; bars {spans(max(trials))}"


def true_epsilons(sweep: SweepSummary) -> list[str]:
    """One line for each line of the figure, of all its claims; none where nothing is claimed."""
    found = []
    for name, rows in _lines(sweep).items():
        claimed = ", ".join(f"{claim:g}" for claim in rows)
        attained = ", ".join(shown_down(row.epsilon_attainable) for row in rows.values())
        least = f"at least {attained}, " * any(row.epsilon_attainable is not None for row in rows.values())
        most = ", ".join(shown_up(_at_most(row)) for row in rows.values())
        found.append(f"{name}: claimed epsilon {claimed}; true epsilon {least}at most {most}")
    return found


def under_the_axis(sweep: SweepSummary) -> list[str]:
    """The same for a figure, whose axis has the claims: a number for each, where there is one."""
    lines = _lines(sweep)
    claims = sorted({claim for rows in lines.values() for claim in rows})
    result = []
    for name, rows in lines.items():
        costs = {claim: _at_most(row) for claim, row in rows.items()}
        shown = {claim: shown_up(cost, 4 if cost > 999 else 3) for claim, cost in costs.items()}
        result.append(f"true for {name}: {', '.join(shown.get(claim, '-') for claim in claims)}")
    return result


def _lines(sweep: SweepSummary) -> dict[str, dict[float, CombinationRow]]:
    """The combinations of each line by their claims, in ascending order."""
    lines = dict[str, dict[float, CombinationRow]]()
    for row in sweep.combinations:
        if row.epsilon_claimed is not None:
            lines.setdefault(title(row.varied, True, without=[CLAIMED]), {})[row.epsilon_claimed] = row
    return {name: dict(sorted(rows.items())) for name, rows in lines.items()}


def _at_most(row: CombinationRow) -> float:
    """Infinite where nothing bounds it, and shown as `inf`: `none` would read as if it cost nothing."""
    return inf if row.epsilon_guaranteed is None else row.epsilon_guaranteed
