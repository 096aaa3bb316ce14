"""A sweep's page: one self-contained HTML file, the privacy statement first, and its figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fedsim.curves.lines import (
    CLAIMED,
    abscissa,
    interval_note,
    series,
    true_epsilons,
    under_the_axis,
    x_label,
)
from fedsim.curves.naming import last_part, title
from fedsim.curves.sweep_summary import (
    CombinationRow,
    SweepPrivacy,
    SweepSummary,
    Tuning,
    TuningLedger,
    read_sweep,
)
from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.report.page import PAGE, capital, named, publish, template
from fedsim.report.remarks import value_text
from fedsim.report.style import save
from fedsim.report.sweep_figure import draw
from fedsim.results.run_directory import scenario_of
from fedsim.results.silo_table import Table, given, plain
from fedsim.results.summary import Values, spans
from fedsim.scenario.metric import METRICS

_NOTHING = Table("", [], [])


def write_page(directory: Path) -> Path:
    """Write report.html and the figure into a sweep's directory; what was there is replaced.

    Raises:
        InputError: it is no finished sweep of this version, or cannot be written.
    """
    sweep = read_sweep(directory)
    scenario, description = scenario_of(directory / "scenario.yaml")

    def fill(folder: Path) -> None:
        (folder / PAGE).write_text(_render(sweep, scenario, description, folder), encoding="utf-8")

    return publish(directory, fill)


def figure_name(sweep: SweepSummary) -> str:
    """`error_vs_epsilon`, or by the metric and the last part of whatever field is on the axis."""
    field = abscissa(sweep)
    return f"{sweep.metric}_vs_{last_part(field)}" if field else sweep.metric


def _render(sweep: SweepSummary, scenario: str, description: str, folder: Path) -> str:
    return template("sweep.html").render(
        title=sweep.scenario,
        description=description,
        sweep=sweep,
        spans=spans(sweep.trials),
        claims=true_epsilons(sweep),
        facts=_facts(sweep.privacy),
        costs=_costs(sweep),
        shared=sweep.shares_noise,
        ledger=_ledger(sweep.privacy.tuning),
        figure=_figure(sweep, folder),
        errors=errors(sweep),
        candidates=_candidates(sweep.tuning, sweep.metric),
        failures=_failures(sweep),
        environment=_environment(sweep),
        scenario=scenario,
    )


def _facts(privacy: SweepPrivacy) -> list[tuple[str, str]]:
    facts = {
        "Unit": [privacy.unit],
        "Adjacency": [privacy.adjacency],
        "Guarantee": [privacy.guarantee],
        "Mechanism": privacy.mechanism,
        "Calibration": privacy.calibration,
        "Sampler": privacy.sampler,
        "Accountant": privacy.accountant,
    }
    said = {name: ", ".join(texts) or "none" for name, texts in facts.items()}
    return [*said.items(), *[("Theorem", ", ".join(privacy.theorem))] * bool(privacy.theorem)]


def _costs(sweep: SweepSummary) -> Table:
    """One row for each combination that has a mechanism and was run."""
    shown = [row for row in sweep.combinations if row.private and row.trials]
    claimed = any(row.epsilon_claimed is not None for row in shown)
    limited = not claimed or any(row.epsilon_budget is not None for row in shown)
    columns = {
        "combination": [title(row.varied, True) for row in shown],
        **({"budget epsilon": [given(row.epsilon_budget) for row in shown]} if limited else {}),
        **({"claimed epsilon": [shown_up(row.epsilon_claimed) for row in shown]} if claimed else {}),
        "guaranteed epsilon (true)": [shown_up(row.epsilon_guaranteed) for row in shown],
        **({"true epsilon at least": [_least(row) for row in shown]} if claimed else {}),
        "noise multiplier": [plain(row.noise_multiplier) for row in shown],
        "silo": [str(row.costliest_silo) for row in shown],
    }
    rows = [list(cells) for cells in zip(*columns.values(), strict=True)]
    return Table("For replacing one record; the largest over trials.", list(columns), rows)


def _least(row: CombinationRow) -> str:
    """Empty where the guaranteed number says it all."""
    return "" if row.epsilon_attainable is None else shown_down(row.epsilon_attainable)


def _ledger(tuning: TuningLedger | None) -> Table:
    """What private tuning cost, beside the reported run, at the silo where each is largest."""
    if tuning is None:
        return _NOTHING
    rows = []
    for one in tuning.combinations:
        spent = zip(*((s.epsilon_tuning, s.epsilon_run, s.epsilon_total) for s in one.silos), strict=True)
        rows.append([title(one.varied, True), *(shown_up(_largest(s)) for s in spent)])
    columns = ["combination", "tuning", "reported run", "together"]
    return Table(f"Epsilon, largest over silos. {tuning.guarantee.capitalize()}.", columns, rows)


def _largest(values: tuple[float | None, ...]) -> float | None:
    """The largest; None, which is infinity or nothing reported, where one is None."""
    return None if None in values else max(value for value in values if value is not None)


def figure_of(sweep: SweepSummary) -> Figure:
    """A figure of the metric against what was varied."""
    x = abscissa(sweep)
    trials = [row.trials for row in sweep.combinations if row.trials]
    tuned = sweep.privacy.tuning.note if sweep.privacy.tuning else ""
    note = "; ".join(filter(None, [interval_note(trials), tuned]))
    below = [x_label(x), *(under_the_axis(sweep) if x == CLAIMED else [])]
    return draw(series(sweep, x), below, METRICS[sweep.metric].title, sweep.scenario, note)


def _figure(sweep: SweepSummary, folder: Path) -> str:
    x = abscissa(sweep)
    drawn = save(figure_of(sweep), folder, figure_name(sweep))
    return named(drawn, capital(METRICS[sweep.metric].title) + (f" against {x_label(x)}" if x else ""))


def errors(sweep: SweepSummary) -> Table:
    """One row per combination: what was chosen, and its metrics; below them baselines."""
    chosen, metric = sweep.chosen, sweep.metric
    others = [
        name for name in METRICS if name != metric and any(row.spread(name) for row in sweep.combinations)
    ]
    columns = ["combination", *(f"chosen {last_part(field)}" for field in chosen), METRICS[metric].title]
    columns += [*(METRICS[name].short for name in others), "trials"]
    rows = []
    for row in sweep.combinations:
        values = [str((row.chosen or {}).get(field, "-")) for field in chosen]
        rows.append(
            [
                title(row.varied, row.private),
                *values,
                *_values(row, metric, others, "failed"),
                str(row.trials),
            ]
        )
    for name, one in sweep.levels():
        rows.append(
            [name, *["-"] * len(chosen), *_values(one, metric, others, "not fitted"), str(sweep.trials)]
        )
    return Table("", columns, rows)


def _values(row: Values, metric: str, others: Sequence[str], without: str) -> list[str]:
    """The chosen metric with its interval, and the others' means."""
    means = [plain(each.mean) if (each := row.spread(name)) else "-" for name in others]
    return [value_text(row.spread(metric)) or without, *means]


CRITERIA = {
    "final_train_loss": "final training loss",
    "private_error": "noisy share of mistakes",
    "final_metric": "",
}
"""Criteria in words; empty where it is the metric itself."""


def _candidates(tuning: Tuning | None, metric: str) -> Table:
    if tuning is None:
        return _NOTHING
    rows = []
    for row in tuning.candidates:
        mean = tuning.mean(row)
        value, mark = "failed" if mean is None else f"{mean:.5g}", "chosen" if row.selected else ""
        rows.append([title(row.varied, row.private), title(row.candidate, True), value, mark])
    what = CRITERIA[tuning.criterion] or METRICS[metric].title
    caption = f"Mean {what} over {tuning.repetitions} runs."
    return Table(caption, ["combination", "candidate", what, ""], rows)


def _failures(sweep: SweepSummary) -> Table:
    rows = [
        [title(row.varied | row.chosen, True), str(row.trial), row.kind, row.message]
        for row in sweep.failures
    ]
    return Table("", ["cell", "trial", "kind", "message"], rows)


def _environment(sweep: SweepSummary) -> list[tuple[str, str]]:
    versions = ", ".join(f"{name} {version}" for name, version in sweep.code.items())
    counts = f"{sweep.runs.made:,} made, {sweep.runs.from_cache:,} from cache, {sweep.runs.failed:,} failed"
    return [("Cells", counts), ("Wall time", f"{sweep.wall_seconds:,.1f} s"), ("Code", versions)]
