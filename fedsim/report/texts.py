"""The text of a run for terminal, page and notebook: tables of silos and metrics, and lines of remarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from fedsim.privacy.rounding import UNBOUNDED, shown_down, shown_up
from fedsim.report.sections.registry import told
from fedsim.report.summary import (
    NAMES,
    NONPRIVATE,
    Baseline,
    Deployment,
    Heterogeneity,
    Metrics,
    Parameters,
    Participation,
    Privacy,
    SiloRow,
    Spread,
    Summary,
    Values,
    spans,
    value_text,
)
from fedsim.report.tables import MEANS, TextTable, capital
from fedsim.scenario.metric import BY_GROUP, METRICS, better

_TIGHTEST = 20


class _Column(NamedTuple):
    title: str
    short: str
    write: Callable[[Any], str]


def budget_text(value: float | None) -> str:
    """A budget, which is an input and not a result."""
    return "unlimited" if value is None else f"{value:.6g}"


def number_text(value: float | None) -> str:
    """A number that is no promise, to the nearest."""
    return UNBOUNDED if value is None else f"{value:.4g}"


_COLUMNS = {
    "n": _Column("{} n", "n", lambda count: f"{count:,}"),
    "epsilon_budget": _Column("budget epsilon", "budget", budget_text),
    "delta": _Column("delta", "delta", shown_up),
    "epsilon_tuning": _Column("tuning", "tuning", shown_up),
    "epsilon_run": _Column("reported run", "run", shown_up),
    "epsilon_total": _Column("together", "together", shown_up),
    "epsilon_guaranteed": _Column("guaranteed epsilon (true)", "guaranteed", shown_up),
    "held_out": _Column("held out", "held\nout", lambda count: f"{count:,}"),
    "epsilon_training": _Column("training epsilon", "train-\ning", shown_up),
    "epsilon_evaluation": _Column("evaluation epsilon", "evalu-\nation", shown_up),
    "epsilon_colluding": _Column("if they collude", "if they\ncollude", shown_up),
    "epsilon_attribute": _Column("for the group alone", "group\nalone", shown_up),
    "epsilon_attainable": _Column("true epsilon at least", "at least", shown_down),
    "epsilon_claimed": _Column("claimed epsilon", "claimed", shown_up),
    "epsilon_dp_accounting": _Column("verified epsilon", "verified", shown_up),
    "epsilon_spent": _Column("spent epsilon", "spent", shown_up),
    "noise_multiplier": _Column("noise multiplier", "noise\nmult.", number_text),
    "releases": _Column("releases", "releases", lambda count: f"{count:,}"),
    "costliest_silo": _Column("silo", "silo", str),
}
TUNING = ("epsilon_tuning", "epsilon_run", "epsilon_total")
_ALWAYS = ("epsilon_budget", "delta", "epsilon_guaranteed", "epsilon_colluding", "noise_multiplier", *TUNING)
"""Columns that say that there is none, too; all others are shown where any row has a value."""
Costs = Mapping[str, Any]  # fields of a `SiloRow`, or of a sweep's `CombinationRow`


def terms(privacy: Privacy) -> list[tuple[str, str]]:
    """What is guaranteed to whom, by name."""
    together = f". If they collude: {privacy.guarantee_colluding}" * bool(privacy.guarantee_colluding)
    guarantee = privacy.guarantee + together
    return [("Unit", privacy.unit), ("Adjacency", privacy.adjacency), ("Guarantee", guarantee)]


def how(privacy: Privacy) -> list[tuple[str, str]]:
    """How the mechanism of a run, or the mechanisms of a sweep, are used and priced, by name."""
    return [
        ("Mechanism", privacy.mechanism),
        ("Calibration", privacy.calibration),
        ("Sampler", ", ".join(privacy.sampler) or "none"),
        ("Accountant", privacy.accountant),
    ]


def captioned(title: str) -> str:
    """A title of `fedsim.privacy.unit_words` at the beginning of a caption: `For replacing one record`."""
    return f"For {title.replace('replace ', 'replacing ')}"


def silo_table(privacy: Privacy, most: int = 20) -> TextTable:
    """`cost_table` of a run's silos."""
    rows = [(silo.name, silo.tree()) for silo in privacy.silos]
    return cost_table(captioned(privacy.title), "silo", rows, most, privacy.counted)


def cost_table(
    caption: str, first: str, rows: Sequence[tuple[str, Costs]], most: float = math.inf, counted: str = ""
) -> TextTable:
    """Up to `most` rows as they are; of more, the 20 with the least slack and the range of all of them."""
    costs, few = [row for _, row in rows], len(rows) <= most
    stated = {key for row in costs for key, value in row.items() if value is not None or key in _ALWAYS}
    if "epsilon_claimed" in stated and all(row["epsilon_budget"] is None for row in costs):
        stated.remove("epsilon_budget")  # a claim stands in its place
    keys = [key for key in _COLUMNS if key in stated]
    shown = rows if few else sorted(rows, key=lambda named: slack(named[1]))[:_TIGHTEST]
    return TextTable(
        caption + ("" if few else f": the {_TIGHTEST} of {len(rows):,} silos with the least slack") + ".",
        [first, *(_COLUMNS[key].title.format(counted) for key in keys)],
        [[name, *(_cell(row, key) for key in keys)] for name, row in shown],
        [] if few else [f"all {len(rows):,} silos", *(_range(key, costs) for key in keys)],
        [first, *(_COLUMNS[key].short for key in keys)],
    )


def _cell(row: Costs, key: str) -> str:
    if row.get("guarantee") and key.startswith(("epsilon_", "delta")):
        return str(row["guarantee"]) if key == "epsilon_guaranteed" else "-"
    return _COLUMNS[key].write(row[key]) if key in row else ""


def worth_lines(privacy: Privacy) -> list[str]:
    """What the guarantee is worth to a person, in one line; none where that is not stated."""
    if (persons := privacy.persons) is None:
        return []
    records = persons.rows[0].records is not None
    counts = " / ".join(f"{row.records or row.silos:,}" for row in persons.rows)
    deltas = [shown_up(row.delta, 2) for row in persons.rows if row.delta is not None]
    costs = " / ".join(shown_up(row.epsilon) for row in persons.rows)
    at = f" at delta {' / '.join(dict.fromkeys(deltas))}" if deltas else ""
    who = f"with {counts} records" if records else f"in {counts} silos"
    most = persons.most_records
    seen = f"; {most:,} are the most that one has in these data, which is not private" if most else ""
    return [f"a person {who}: epsilon {costs}{at}; {persons.note}{seen}"]


def slack(row: Costs) -> float:
    """Share of the budget that the guarantee leaves; all of it where it is unlimited."""
    budget, cost = row["epsilon_budget"], row["epsilon_guaranteed"]
    return 1.0 if budget is None else -math.inf if cost is None else 1 - cost / budget


def epsilon_range(silos: Sequence[SiloRow]) -> str:
    """The least and the largest guaranteed epsilon, rounded up."""
    return _range("epsilon_guaranteed", [silo.tree() for silo in silos])


def _range(key: str, rows: Sequence[Costs]) -> str:
    values = [row[key] for row in rows if key in row and not row.get("guarantee")]
    order = sorted(values, key=lambda value: math.inf if value is None else value)
    low, high = map(_COLUMNS[key].write, (order[0], order[-1]))
    return low if low == high else f"{low} to {high}"


def no_better(metrics: Metrics, baselines: list[Baseline]) -> list[str]:
    """A line where the model is no better than the majority class or the mean.

    Its metric or its error is within the trials' spread of the naive one's, its log loss or Brier score is
    worse, or its balanced accuracy is hardly better.
    """
    naive = next((one for one in baselines if one.name in ("majority", "mean")), None)
    if naive is None:
        return []
    beaten = [
        f"{METRICS[name].title} {value_text(own)}, and of the {NAMES[naive.name]} {other.mean:.4f}"
        for name in dict.fromkeys((metrics.metric, "error", "log_loss", "brier", "balanced_accuracy"))
        if name not in BY_GROUP  # a model that ignores its features has no gap
        and (own := metrics.spread(name)) is not None
        and (other := naive.spread(name)) is not None
        and _beats_no(name, own, other.mean, name in (metrics.metric, "error"))
    ]
    line = f"the model is no better than predicting the {NAMES[naive.name]}: {'; '.join(beaten)}"
    return [line] if beaten else []


def _beats_no(name: str, own: Spread, naive: float, in_all: bool) -> bool:
    """Whether a metric is no better than the naive one: in the mean or, with `in_all`, in 5 % of trials."""
    if name == "balanced_accuracy":
        return own.mean < naive + 0.02  # hardly better is no better
    worst = own.low if METRICS[name].higher else own.high
    return not better(name, worst if in_all else own.mean, naive)


def methods(baselines: list[Baseline]) -> list[str]:
    """For each baseline its method and the number of training records."""
    counts = [" to ".join(dict.fromkeys(f"{count:,}" for count in one.train_records)) for one in baselines]
    return [
        f"{capital(one.label)}: {count} training records; {'; '.join(one.methods)}"
        for one, count in zip(baselines, counts, strict=True)
    ]


METRICS_TITLE = "On the same test records"
_CAPTION = f"{MEANS} All but a private run's own model is without privacy, and all is simulation only."


def metrics_table(summary: Summary) -> TextTable:
    """Metrics of the run, the non-private baseline and others; the chosen metric comes first."""
    if not summary.trials.finished:
        return TextTable("", [], [])
    rows: list[tuple[str, Values]] = [(one.label, one) for one in reversed(summary.baselines)]
    if summary.privacy.private and summary.metrics.nonprivate.error is not None:
        clipped = bool(summary.baselines) and summary.baselines[-1].name == "clipped"
        rows.insert(clipped, (NONPRIVATE, summary.metrics.nonprivate))
    rows.insert(0, ("this run", summary.metrics))
    names = [name for name in METRICS if any(values.spread(name) for _, values in rows)]
    names = distinct(names, [values for _, values in rows], summary.metrics.metric)
    titles = [METRICS[name].short for name in names]
    cells = [[label, *(mean_text(values, name) for name in names)] for label, values in rows]
    caption = MEANS if summary.deployment is not None else _CAPTION
    short = ["", *(title.replace(" ", "\n") for title in titles)]
    return TextTable(caption, ["", *titles], cells, short=short)


def distinct(names: Sequence[str], rows: Sequence[Values], metric: str) -> list[str]:
    """The chosen `metric` and its kind first, and `loss` only where it is chosen or not the log loss."""
    pairs = [(row.loss, row.log_loss) for row in rows if row.loss is not None]
    alike = all(log is not None and math.isclose(loss, log, rel_tol=1e-5) for loss, log in pairs)
    dropped = "log_loss" if metric == "loss" else "loss"
    gaps = ("parity_gap", "odds_gap")  # a table has these of the metrics of groups, and the chosen one
    kept = [name for name in names if name not in BY_GROUP or name in (*gaps, metric)]
    kept.sort(key=lambda name: (name != metric, (name in BY_GROUP) != (metric in BY_GROUP)))
    return [name for name in kept if name != dropped or not alike]


def _between_groups(metrics: Metrics) -> list[str]:
    """The gaps and what else compares groups: the odds gap beside the parity gap, whichever is chosen."""
    gaps = [(METRICS[name].title, spread) for name in BY_GROUP if (spread := metrics.spread(name))]
    if not gaps:
        return []
    values = ", ".join(f"{name} {value_text(spread)}" for name, spread in gaps)
    return [f"between groups: {values}; parity gap and odds gap: one may rise while the other falls"]


def mean_text(values: Values, name: str) -> str:
    """A metric's mean, `-` where it was not measured."""
    spread = values.spread(name)
    return "-" if spread is None else f"{spread.mean:{'.3f' if abs(spread.mean) < 1000 else '.4g'}}"


def parameter_lines(chosen: Parameters | None) -> list[str]:
    """The numbers that a theorem or `auto` chose; none where all are given."""
    if chosen is None:
        return []
    parts = {
        "set by the theorem, not applied here": _named(chosen.not_applied),
        "with this plan's own noise, constants one": _named(chosen.predicted),
    }
    lines = {**chosen.reasons, **{name: text for name, text in parts.items() if text}}
    first = f"{chosen.theorem}: {_named(chosen.values) or 'every number is given'}"
    return [first, *(f"  {name}: {text}" for name, text in lines.items())]


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(map(_short, value.values()))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def result_line(summary: Summary) -> str:
    """The chosen metric, beside that of the same algorithm without noise and clipping."""
    name, trials = summary.metrics.metric, summary.trials.finished
    without = summary.metrics.nonprivate.spread(name) if summary.privacy.private else None
    value, baseline = value_text(summary.metrics.chosen), value_text(without)
    beside = f"; the same algorithm {NONPRIVATE}: {baseline}" if baseline else ""
    note = "one trial" if summary.deployment is None else "public test records"
    if trials > 1:
        note = f"mean of {trials} trials, in brackets {spans(trials)}"
    of = f" ({note})" if trials and value else ""
    shown = value or f"not measured ({summary.unmeasured})"
    return f"{summary.scenario}: {METRICS[name].title} {shown}{beside}{of}"


def _spent(privacy: Privacy) -> list[str]:
    """What a person's records become, and what of mu^2 was spent on something else than training."""
    shares = [f"{name} {share:g}" for name, share in privacy.spent.items()]
    h = "" if privacy.h is None else f", h = {privacy.h}"
    bound = [f"a person's records: bound {privacy.bound}{h}"] if privacy.bound else []
    return bound + ([f"of mu^2: {', '.join(shares)}, training the rest"] if shares else [])


def remarks(summary: Summary) -> list[str]:
    """Lines about what sections found, and what else there is to remark."""
    return (
        _spent(summary.privacy)
        + _between_groups(summary.metrics)
        + [line for one, part in told(summary) for line in one.lines(part, summary)]
        + _participation(summary.participation)
        + (_deployment(summary.deployment, summary.rounds) if summary.deployment else [])
        + (_heterogeneity(summary.heterogeneity) if summary.heterogeneity else [])
    )


def section_tables(summary: Summary) -> list[tuple[str, TextTable]]:
    """The table of each section that has one, with its title."""
    return [(one.title, one.table(part)) for one, part in told(summary) if one.table]


def _participation(part: Participation) -> list[str]:
    if part.name == "all":
        return []
    head = f"participation: M = {part.effective_m:.4g} of {part.num_silos} silos a round"
    observed = part.observed_mean_inverse_m
    seen = f", observed E[1/M_r] = {observed:.4g}" if observed is not None else ""
    lines = [f"{head} (1/M = E[1/M_r] = {part.expected_inverse_m:.4g}{seen})"]
    low, high = part.pull
    if high > low:
        lines.append(
            f"silos that are there more often weigh more in the model: {low:.3g} to {high:.3g} times their "
            "silo_weights on average, where sets that are uniform given their size have 1"
        )
    return lines


def _deployment(part: Deployment, rounds: int) -> list[str]:
    lines = [
        f"silo {name} takes no part, and no number here is about it: {reason}"
        for name, reason in part.absent.items()
    ]
    lines += [
        f"silo {silo.name} is left out of {silo.rounds} of {rounds} rounds ({silo.which}): "
        f"{'; '.join(silo.reasons)}"
        for silo in part.left_out
    ]
    lines += [
        f"silo {name} gave no statement at the end, so that its whole plan counts as spent: {reason}"
        for name, reason in part.without_statement.items()
    ]
    lines += [*_times(part), *part.remarks]
    return [*lines, f"not measured in a deployed run: {', '.join(part.unmeasured)}"]


def _times(part: Deployment) -> list[str]:
    known = {r: each for r, each in enumerate(part.round_seconds, 1) if each is not None}
    if not known:
        return []
    longest = max(known, key=lambda r: known[r])
    middle = f"a round took {median(known.values()):.3g} s (median)"
    return [f"{middle}, the longest {known[longest]:.3g} s (round {longest})"]


def _heterogeneity(part: Heterogeneity) -> list[str]:
    if part.upsilon_star_sq is None:
        return [f"heterogeneity: not measured, {part.reason}"]
    values = f"upsilon_*^2 = {part.upsilon_star_sq:.4g}, phi^2 = {part.phi_sq_at_optimum:.4g}"
    return [f"heterogeneity at the optimum: {values} (not private)"]
