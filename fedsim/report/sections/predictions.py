"""What final models predict of test records: for each group, and how far probabilities are from fractions."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedsim.protocol.links import Variant
from fedsim.report.outcome import Outcome, interval90, mean, variants
from fedsim.report.record import OF_TESTS, grouped
from fedsim.report.section import Section
from fedsim.report.summary import NONPRIVATE, Interval, Part, Summary
from fedsim.report.tables import MEANS, TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class GroupMeasurement(NamedTuple):
    """A trial's final model on a group's test records, of all silos (None) or one.

    `rate` is the share that is predicted to be of class `label`: of 1 of two, or of each in a row of its own.
    """

    trial: int
    variant: Variant
    silo: str | None
    group: str
    label: int
    test_records: int
    rate: float | None
    error: float | None


class GroupRow(Part):
    """The run's final model on a group's test records: means over trials, None where one has none.

    `rates`: the shares that are predicted to be of a class, {"1": ...} of two classes, all of more.
    """

    name: str
    test_records: float
    rates: dict[str, float | None]
    error: float | None


def _summarise(outcome: Outcome) -> list[GroupRow]:
    of_all = [
        row
        for row in outcome.results.rows(GroupMeasurement)
        if row.variant == outcome.main and row.silo is None
    ]
    return [
        GroupRow(
            name=name,
            test_records=fmean(row.test_records for row in own),
            rates={
                str(label): mean([row.rate for row in of_label])
                for label, of_label in sorted(grouped(own, lambda row: row.label).items())
            },
            error=mean([row.error for row in own]),
        )
        for name, own in grouped(of_all, lambda row: row.group).items()
    ]


def _table(groups: list[GroupRow]) -> TextTable:
    labels = list(groups[0].rates)
    titles = ["rate of positives"] if len(labels) == 1 else [f"predicted {label}" for label in labels]
    shares = [[*row.rates.values(), row.error] for row in groups]
    rows = [
        [row.name, f"{row.test_records:,.0f}", *("-" if each is None else f"{each:.4f}" for each in own)]
        for row, own in zip(groups, shares, strict=True)
    ]
    caption = f"{MEANS} Measured in simulation; no silo releases it."
    return TextTable(caption, ["group", "test records", *titles, "error"], rows)


GROUPS = Section(
    "groups", GroupMeasurement, OF_TESTS, list[GroupRow], _summarise, title="By group", table=_table
)


class CalibrationBin(NamedTuple):
    """Test records to which a trial's final model gives probabilities in one of ten equal parts of [0, 1].

    `predicted` is the mean predicted probability, `observed` the fraction of records that are positive.
    """

    trial: int
    variant: Variant
    bin: int
    records: int
    predicted: float
    observed: float


def _calibration_figure(rows: list[CalibrationBin], private: bool) -> Figure:
    """Observed shares against predicted probabilities, of all trials' test records."""
    from fedsim.report import curves
    from fedsim.report.style import GREY, styled

    with styled() as (figure, axes):
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle=":", label="calibrated")
        for variant, style, name in curves.variants_of(private):
            bins = grouped((row for row in rows if row.variant == variant), lambda row: row.bin)
            if bins:
                means = [
                    np.average([row[-2:] for row in own], axis=0, weights=[row.records for row in own])
                    for _, own in sorted(bins.items())
                ]
                x, y = np.array(means).T
                curves.curve(axes, x, y, style, name, markevery=1)
        axes.set(xlabel="predicted probability", ylabel="observed share", xlim=(0, 1), ylim=(0, 1))
        return figure


class Calibrated(Part):
    """A final model's mean predicted probability and the share that is observed: means over trials.

    Of two classes that of class 1, whose name is `label`. Among more (None) it is the probability of the
    class that a record is predicted to be of, beside the share that is. `gap_interval90`: of the first less
    the second.
    """

    variant: Variant
    label: str | None
    predicted: float
    observed: float
    gap_interval90: Interval


def _calibrated(outcome: Outcome) -> list[Calibrated]:
    """Of the run's own model first."""
    recipes = (trial.fitted.recipe for trial in outcome.results.trials.values() if trial.fitted)
    two = outcome.resolved.outline.num_classes == 2
    label = next((recipe.classes[1] for recipe in recipes), "1") if two else None
    made, rows = [], grouped(outcome.results.rows(CalibrationBin), lambda row: (row.variant, row.trial))
    for variant in variants(outcome.resolved):
        means = np.array([_weighed(bins) for (own, _), bins in rows.items() if own == variant])
        if len(means):
            gaps = interval90(means[:, 0] - means[:, 1])
            predicted, observed = map(float, means.mean(0))
            ends: Any = {"predicted": predicted, "observed": observed, "gap_interval90": gaps}
            made.append(Calibrated(variant=variant, label=label, **ends))
    return made


def _weighed(bins: list[CalibrationBin]) -> Any:
    """Mean predicted probability, and observed share."""
    return np.average([row[-2:] for row in bins], axis=0, weights=[row.records for row in bins])


def _calibrated_table(models: list[Calibrated]) -> TextTable:
    short = [f"mean predicted\nprobability of {models[0].label}", "observed\nshare"]
    if models[0].label is None:
        short = ["mean probability of\nthe predicted class", "share predicted\nrightly"]
    names = ["this run", NONPRIVATE][: len(models)]
    rows = [
        [name, f"{one.predicted:.3f}", f"{one.observed:.3f}"] for name, one in zip(names, models, strict=True)
    ]
    caption = f"{MEANS} Of test records, measured in simulation; no silo releases it."
    return TextTable(caption, ["", *(title.replace("\n", " ") for title in short)], rows, short=["", *short])


def _calibrated_lines(models: list[Calibrated], _run: Summary) -> list[str]:
    """A sentence where the means differ by more than a tenth of the share, beyond the trials' spread."""
    own, (low, high) = models[0], models[0].gap_interval90
    if max(low, -high) <= 0.1 * own.observed:
        return []
    of = "of the predicted class" if own.label is None else f"of {own.label}"
    means = f"{of} {own.predicted:.3f} on average, and the observed share is {own.observed:.3f}"
    told = f"predicted probabilities are too {'high' if low > 0 else 'low'}, {means}"
    return [f"{told}: do not read one as a risk (simulation only, not private)"]


CALIBRATION = Section(
    "calibration",
    CalibrationBin,
    OF_TESTS,
    list[Calibrated],
    _calibrated,
    _calibrated_lines,
    title="Predicted and observed",
    table=_calibrated_table,
    stem="calibration",
    caption="Calibration of the final model: of test records to which it gives about this probability (of "
    "class 1, or among more than two classes of the one that it predicts), the share of which it is so. "
    "Simulation only.",
    draw=_calibration_figure,
)
