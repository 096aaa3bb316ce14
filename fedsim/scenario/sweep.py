"""The `sweep` section: which scenarios one scenario stands for."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fedsim.common.section import Section

Grid = dict[str, list[Any]]
Criterion = Literal["final_train_loss", "final_metric", "private_error"]


class PrivateSection(Section):
    """Choose within each silo's budget, on records that it puts aside for nothing else."""

    fraction: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="part of each silo's records that is put aside: half of it trains candidates, half "
        "scores them, and reported runs use the rest",
    )


class TuneSection(Section):
    """Fields that are chosen, not reported: for each combination the values with the best criterion."""

    grid: Grid = Field(
        {},
        description="dotted field to candidate values; every combination of them is tried, with every "
        "candidate that a value of the sweep's own grid brings along",
    )
    criterion: Criterion | None = Field(
        None,
        description="what is best for the chosen values, as a mean over repetitions. final_train_loss: the "
        "final model's loss on all silos' training records (weighted by p_i, without the regulariser); "
        "final_metric: report.metric on the test records; neither is private. With private, private_error: "
        "silos' noisy shares of misclassified records. Default: private_error with private, else "
        "final_metric where report.metric is not error, else final_train_loss",
    )
    repetitions: int = Field(3, ge=1, description="runs of each candidate, on trials that are not reported")
    private: PrivateSection | None = Field(
        None,
        description="each silo may spend its (epsilon_i, delta_i) once more, on records put aside, for all "
        "runs of all candidates together; no record is in both, so the total is the larger of the two",
    )


def with_criterion(tune: TuneSection, metric: object) -> TuneSection:
    """With the criterion that is meant where none is given, for a scenario with that `report.metric`."""
    by_metric: Criterion = "final_train_loss" if metric in (None, "error") else "final_metric"
    meant = tune.criterion or ("private_error" if tune.private else by_metric)
    return tune.model_copy(update={"criterion": meant})


class Choices(Section):
    """Candidates in a value that is a whole section, beside its fields."""

    tune: Grid = Field({}, description="field of the section to candidate values")
    one_of: list[dict[str, Any]] = Field(
        [], description="alternatives: fields over the section's own, each with `label` and `tune` if need be"
    )


class SweepSection(Section):
    """`fedsim sweep` runs every combination of grid and cells, each with the scenario's trials.

    A value may be a whole section, such as an `algorithm`; a key `label` in it names it in the report, and
    `tune` and `one_of` are candidates of its own (`Choices`), of which the best is reported.
    """

    grid: Grid = Field(
        {}, description="dotted field to values, e.g. privacy.epsilon: [1, 2]; all combinations"
    )
    cells: list[dict[str, Any]] = Field(
        [], description="a list of settings {dotted field: value}; combined with each point of the grid"
    )
    tune: TuneSection | None = Field(None, description="fields to choose for each combination")
