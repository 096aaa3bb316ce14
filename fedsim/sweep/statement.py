"""How the runs of a sweep are made private: what a single run's statement says, over all combinations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedsim.data.outline import Outline
from fedsim.results.privacy_statement import accountant, claim, notices, samplers
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, resolve

_PARTS: dict[str, Callable[[Resolved], Sequence[str]]] = {
    "notices": notices,
    "mechanism": lambda run: [run.scenario.privacy.mechanism],
    "calibration": lambda run: [run.scenario.privacy.calibration],
    "sampler": samplers,
    "accountant": lambda run: [accountant(run)],
    "theorem": lambda run: [claim(run)["theorem"]] if claim(run) else [],
}


def how(scenarios: Sequence[Scenario], outlines: Callable[[Scenario], Outline]) -> dict[str, list[str]]:
    """For each part, such as the sampler, what the private scenarios use, without repetition."""
    private = [scenario for scenario in scenarios if scenario.privacy.mechanism != "none"]
    runs = [resolve(scenario, outlines(scenario)) for scenario in private]
    return {
        part: list(dict.fromkeys(text for run in runs for text in say(run))) for part, say in _PARTS.items()
    }
