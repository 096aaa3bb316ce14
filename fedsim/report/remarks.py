"""Lines about a run: its metric, excess risk, clipping, participation, heterogeneity."""

from __future__ import annotations

from fedsim.results.summary import (
    Clipping,
    Deployment,
    Heterogeneity,
    Objective,
    Participation,
    Spread,
    Summary,
    spans,
)
from fedsim.results.text_tables import TWIN
from fedsim.scenario.metric import METRICS


def result_line(summary: Summary) -> str:
    """The chosen metric, beside that of the same algorithm without noise and clipping."""
    found, twin = measured(summary)
    beside = f"; the same algorithm {TWIN}: {twin}" if twin else ""
    trials = summary.trials.finished
    note = f"mean of {trials} trials, in brackets {spans(trials)}" if trials > 1 else _one(summary)
    of = f" ({note})" if trials and found else ""
    what = METRICS[summary.metrics.metric].title
    return f"{summary.scenario}: {what} {found or f'not measured ({unmeasured(summary)})'}{beside}{of}"


def _one(summary: Summary) -> str:
    return "one trial" if summary.deployment is None else "public test records"


def unmeasured(summary: Summary) -> str:
    """Why a run has no value of its metric."""
    if summary.deployment is not None and not summary.deployment.measured:
        return "there are no public test records"
    return "it has no finite value" if summary.trials.finished else "no trial is complete"


def measured(summary: Summary) -> tuple[str, str]:
    """The chosen metric's final value, and the non-private baseline's; empty where there is none."""
    name = summary.metrics.metric
    twin = summary.metrics.nonprivate.spread(name) if summary.privacy.private else None
    return value_text(summary.metrics.spread(name)), value_text(twin)


def value_text(value: Spread | None) -> str:
    """`0.0553 [0.0254, 0.0838]`: the mean and, where trials differ, where 90 % of them fall."""
    return "" if value is None else _text(value, ".4f")


def _text(value: Spread, form: str) -> str:
    interval = f" [{value.low:{form}}, {value.high:{form}}]" if value.low < value.high else ""
    return f"{value.mean:{form}}{interval}"


def remarks(summary: Summary) -> list[str]:
    """Lines about excess risk, partial participation and heterogeneity, as far as there is any."""
    return (
        (objective(summary, summary.objective) if summary.objective else [])
        + (_clipping(summary.clipping) if summary.clipping else [])
        + _participation(summary.participation)
        + (_deployment(summary.deployment, summary.rounds) if summary.deployment else [])
        + (_heterogeneity(summary.heterogeneity) if summary.heterogeneity else [])
    )


def objective(summary: Summary, found: Objective) -> list[str]:
    """Lines about the excess risk and the gradient mapping."""
    titles = {
        "excess_risk": "excess risk F(w) - F(w*)",
        "gradient_mapping_sq": f"squared gradient mapping |G_eta(w)|^2 at eta = {found.eta:.4g}",
    }
    lines = [
        f"{title}: {_text(value, '.3g')}{_twin(summary, name)} (of the training objective, not private)"
        for name, title in titles.items()
        if (value := summary.metrics.spread(name)) is not None
    ]
    return lines + ([f"excess risk: not measured, {found.reason}"] if found.reason else [])


def _twin(summary: Summary, name: str) -> str:
    twin = summary.metrics.nonprivate.spread(name) if summary.privacy.private else None
    return f"; {TWIN} {_text(twin, '.3g')}" if twin else ""


_MATTERS = 0.1
"""The share of terms above which the clip is worth a line."""


def _clipping(found: Clipping) -> list[str]:
    if found.clipped < _MATTERS:
        return []
    norm = f"the median norm of a term is {found.median_norm:.3g} times the clip"
    return [
        f"the clip shortens {found.clipped:.0%} of the terms in the last tenth of the rounds; {norm} "
        "(simulation only, not private)"
    ]


def _participation(found: Participation) -> list[str]:
    if found.name == "all":
        return []
    head = f"participation: M = {found.effective_m:.4g} of {found.num_silos} silos a round"
    observed = found.observed_mean_inverse_m
    seen = f", observed E[1/M_r] = {observed:.4g}" if observed is not None else ""
    lines = [f"{head} (1/M = E[1/M_r] = {found.expected_inverse_m:.4g}{seen})"]
    low, high = found.pull
    if high > low:
        lines.append(
            f"silos that are there more often weigh more in the model: {low:.3g} to {high:.3g} times their "
            "silo_weights on average, where sets that are uniform given their size have 1"
        )
    return lines


def _deployment(found: Deployment, rounds: int) -> list[str]:
    lines = [
        f"silo {silo.name} is left out of {silo.rounds} of {rounds} rounds: {'; '.join(silo.reasons)}"
        for silo in found.left_out
    ]
    lines += [
        f"silo {name} gave no statement at the end, so that its whole plan counts as spent: {reason}"
        for name, reason in found.without_statement.items()
    ]
    return [*lines, *found.remarks, f"not measured in a deployed run: {', '.join(found.unmeasured)}"]


def _heterogeneity(found: Heterogeneity) -> list[str]:
    if found.upsilon_star_sq is None:
        return [f"heterogeneity: not measured, {found.reason}"]
    values = f"upsilon_*^2 = {found.upsilon_star_sq:.4g}, phi^2 = {found.phi_sq_at_optimum:.4g}"
    return [f"heterogeneity at the optimum: {values} (not private)"]
