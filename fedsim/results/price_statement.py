"""What a run would cost each silo, stated before it happens."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.protocol.terms import Admitted
from fedsim.results.conversions import Conversions, conversions
from fedsim.results.privacy_statement import ADJACENCY, accountant, claim, notices, parameters
from fedsim.results.silo_rows import admitted_rows, samplers
from fedsim.results.summary import Parameters, Part, SiloRow
from fedsim.scenario.resolve import Resolved


class Price(Part):
    """What `fedsim privacy --json` prints."""

    scenario: str
    notices: list[str]
    unit: str
    adjacency: str
    mechanism: str
    sampler: list[str]
    accountant: str
    rounds: int
    theorem: str | None = None
    violations: list[str] | None = None
    parameters: Parameters | None = None
    silos: list[SiloRow]
    conversions: Conversions | None = None


def price(
    resolved: Resolved, admitted: Sequence[Admitted], verified: Sequence[float] = (), convert: bool = False
) -> Price:
    """Of a plan that silos have admitted.

    Args:
        resolved: the run.
        admitted: what each silo accepted.
        verified: another library's epsilon of each silo, where it was asked.
        convert: also state the guarantees in other units.
    """
    other_units = {"conversions": conversions(resolved, admitted)} if convert else {}
    return Price(
        scenario=resolved.scenario.name,
        notices=notices(resolved),
        unit=resolved.mechanism.unit,
        adjacency=ADJACENCY,
        mechanism=resolved.mechanism.name,
        sampler=samplers(resolved),
        accountant=accountant(resolved),
        rounds=len(resolved.trace.plan.rounds),
        silos=admitted_rows(resolved, admitted, [{"epsilon_dp_accounting": each} for each in verified]),
        **claim(resolved),
        **parameters(resolved),
        **other_units,
    )
