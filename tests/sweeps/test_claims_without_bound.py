"""What a sweep says of a claim that nothing bounds: never that it costs nothing."""

from __future__ import annotations

from benchmarks.thesis.tables import true_costs
from fedsim.report.sweep_page import CLAIMED, true_epsilons, under_the_axis
from fedsim.report.sweep_summary import CombinationRow, SweepSummary


def row(claim: float, cost: float | None) -> CombinationRow:
    return CombinationRow.model_construct(
        varied={"algorithm": "MB", CLAIMED: claim},
        private=True,
        trials=2,
        epsilon_claimed=claim,
        epsilon_guaranteed=cost,
        epsilon_attainable=None,
    )


def test_without_a_bound_it_is_infinite_everywhere() -> None:
    rows = [row(1, 2.00001), row(12, None)]
    sweep = SweepSummary.model_construct(combinations=rows, varied=["algorithm", CLAIMED])
    assert true_epsilons(sweep) == ["MB: claimed epsilon 1, 12; true epsilon at most 2.001, inf"]
    assert under_the_axis(sweep) == ["true for MB: 2.01, inf"]
    assert true_costs(sweep, ["algorithm"]).splitlines()[-1].replace(" ", "") == "|MB|2.001|inf|"
