"""What a run would cost each silo, stated before it happens."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.protocol.terms import Admitted
from fedsim.results.claimed import true_epsilons
from fedsim.results.conversions import Conversions, conversions
from fedsim.results.privacy_statement import how, parameters
from fedsim.results.silo_rows import admitted_rows
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

    def __str__(self) -> str:
        rest = f"sampler {', '.join(self.sampler)}, accountant: {self.accountant}"
        return f"{self.scenario}: {self.rounds} rounds, {rest}"


def price(
    resolved: Resolved, admitted: Sequence[Admitted], verified: Sequence[float] = (), convert: bool = False
) -> Price:
    """Of a plan that silos have admitted; `verified` is another library's epsilon of each silo."""
    other_units = {"conversions": conversions(resolved, admitted)} if convert else {}
    silos = admitted_rows(resolved, admitted, [{"epsilon_dp_accounting": each} for each in verified])
    said = how(resolved)
    return Price(
        scenario=resolved.scenario.name,
        rounds=len(resolved.trace.plan.rounds),
        silos=silos,
        **said | {"notices": [*true_epsilons(silos), *said["notices"]]},
        **parameters(resolved),
        **other_units,
    )
