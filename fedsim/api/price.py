"""`fedsim.price`: the cost of a run to each silo, before it happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fedsim.api.given import ScenarioLike, changes_of, resolved_of, scenario_of
from fedsim.api.run import silos_html
from fedsim.common.errors import InputError
from fedsim.common.serialise import finite
from fedsim.data.dataset import Dataset
from fedsim.protocol.contract import Algorithm
from fedsim.report.conversions import Conversions
from fedsim.report.conversions import conversions as converted
from fedsim.report.privacy_statement import of_plan, parameters
from fedsim.report.summary import Parameters, Privacy
from fedsim.report.tables import Table, lines_html
from fedsim.scenario.evaluation import evaluation_of
from fedsim.simulation.host import preview, preview_evaluation, second_opinions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PriceStatement(Privacy):
    """The cost of a plan, as `fedsim privacy --json` prints it."""

    scenario: str
    rounds: int
    parameters: Parameters | None = None
    conversions: Conversions | None = None

    def __str__(self) -> str:
        rest = f"sampler {', '.join(self.sampler)}, accountant: {self.accountant}"
        return f"{self.scenario}: {self.rounds} rounds, {rest}"


@dataclass(frozen=True, eq=False, repr=False)
class Price:
    """The result of `fedsim.price`; `fedsim privacy --json` prints `statement`."""

    statement: PriceStatement

    @property
    def silos(self) -> Table:
        """One row per silo: its records, budget, what the plan costs at most, noise and releases."""
        return Table(pa.Table.from_pylist([silo.tree() for silo in self.statement.silos]))

    @property
    def conversions(self) -> Conversions | None:
        """The guarantees in other units, where they were asked for."""
        return self.statement.conversions

    def plot(self) -> Figure:
        """For each silo its budget, and what the plan costs of it."""
        from fedsim.report.plots import budgets

        return budgets(self.statement.silos)

    def __repr__(self) -> str:
        return f"Price({self.statement})"

    def _repr_html_(self) -> str:
        stated = self.statement
        return lines_html([*stated.notices, str(stated)]) + silos_html(stated)


def price(
    scenario: ScenarioLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    algorithm: Algorithm | None = None,
    data: Dataset | None = None,
    verify: bool = False,
    conversions: bool = False,
    **short: Any,
) -> Price:
    """The cost of a run to each silo, and its noise, before it happens; no feature is read.

    >>> cost = price("breast_cancer", epsilon=2.0)
    >>> [round(z, 1) for z in cost.silos["noise_multiplier"]]
    [8.6, 9.5, 10.0, 9.5, 8.6]

    Args:
        scenario: see `fedsim.simulate`, as for `overrides`, `algorithm`, `data` and `short`.
        verify: have dp-accounting price every silo again (slower).
        conversions: also state what it means for groups of records, for users, and centrally.

    Raises:
        InputError: bad scenario or data.
        Refused: a silo cannot afford the plan.
    """
    changes = changes_of(overrides, short)
    resolved = resolved_of(scenario_of(scenario, changes), algorithm, data, changes)
    admitted, evaluated = preview(resolved), preview_evaluation(resolved)
    if conversions and evaluated:
        hint = "conversions are for training alone: a group may have records in both parts"
        raise InputError("scenario.evaluate", resolved.scenario.evaluate, f"null; {hint}")
    verified = second_opinions(resolved, admitted) if verify and resolved.mechanism.private else []
    if verified and evaluated:
        others = second_opinions(evaluation_of(resolved), evaluated)
        verified = [max(each) for each in zip(verified, others, strict=True)]
    more = [{"epsilon_dp_accounting": finite(each)} for each in verified]
    statement = PriceStatement(
        scenario=resolved.scenario.name,
        rounds=len(resolved.trace.plan.rounds),
        **of_plan(resolved, admitted, evaluated, more),
        **parameters(resolved),
        **({"conversions": converted(resolved, admitted)} if conversions else {}),
    )
    return Price(statement)
