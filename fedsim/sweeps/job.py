"""A sweep as it is asked for: every run that it needs, checked before the first is made."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedsim.common.errors import InputError
from fedsim.scenario.model import Scenario, TuneSection
from fedsim.scenario.resolve import with_nonce
from fedsim.sweeps.cell import resolved_of
from fedsim.sweeps.combinations import Combination, base_and_section, combinations
from fedsim.sweeps.private_tuning import Selection, selections, trials_of
from fedsim.sweeps.section_checks import where_fraction_is_given


class Place(NamedTuple):
    """What a cell is for: a trial of a candidate of a combination."""

    combination: int
    candidate: int
    trial: int


@dataclass(frozen=True)
class Job:
    """A sweep to run.

    Args:
        tree: the scenario with its `sweep` section, as nested mappings.
        combinations: what is reported.
        tune: what is chosen for each, and how.
        selections: how a combination is tuned privately, by its number.
    """

    tree: Mapping[str, Any]
    combinations: Sequence[Combination]
    tune: TuneSection | None = None
    selections: Mapping[int, Selection] = field(default_factory=dict)

    @property
    def scenario(self) -> Scenario:
        """Of the first combination; name, trials, runtime and report are the same in all."""
        return self.combinations[0].scenario

    @property
    def cells(self) -> int:
        """How many there are, equal ones counted each."""
        return len(self.tuning_places()) + len(self.combinations) * self.scenario.trials

    @property
    def varied(self) -> list[str]:
        """Every field that some combination names."""
        return list(dict.fromkeys(field for c in self.combinations for field in c.varied))

    @property
    def tuned(self) -> list[str]:
        """Every field that some candidate chooses."""
        return list(dict.fromkeys(f for c in self.combinations for one in c.candidates for f in one.chosen))

    @property
    def tuning_note(self) -> str:
        """What was tuned privately, in one line for the terminal, the page and the figure; else empty."""
        if self.tune is None or self.tune.private is None:
            return ""
        fields = ", ".join(field.split(".")[-1] for field in self.tuned)
        return f"{fields} tuned privately, on {self.tune.private.fraction:.0%} of each silo's records"

    def title(self, place: Place) -> str:
        """What the combination and the candidate of a place are called."""
        return self.combinations[place.combination].title(place.candidate)

    def tuning_places(self) -> list[Place]:
        """Every run that tuning needs; a combination with one candidate has nothing to choose."""
        return [
            Place(number, candidate, trial)
            for number, combination in enumerate(self.combinations)
            if len(combination.candidates) > 1
            for candidate in range(len(combination.candidates))
            for trial in self._tuning_trials(candidate)
        ]

    @property
    def reported_trials(self) -> range:
        """Trials after those of tuning: no split that chose is reported, and no noise is drawn twice."""
        first = 0
        if self.tune:
            most = max(len(combination.candidates) for combination in self.combinations)
            first = self._tuning_trials(most - 1).stop
        return range(first, first + self.scenario.trials)

    def _tuning_trials(self, candidate: int) -> range:
        """The trials that score a candidate: the same for all, or where noise must be its own, its own."""
        if self.tune is None:
            return range(0)
        return trials_of(candidate if self.tune.private else 0, self.tune.repetitions)


def job_of(tree: Mapping[str, Any]) -> Job:
    """The job of a scenario with a `sweep` section, as nested mappings.

    Raises:
        InputError: names the field, the value and what would be right.
    """
    if tree.get("seed") is None:
        return job_of({**tree, "seed": secrets.randbits(63)})
    found, (_, section) = combinations(tree), base_and_section(tree)
    nonce = next((n for c in found for one in c.candidates if (n := with_nonce(one.scenario).nonce)), None)
    if nonce != tree.get("nonce"):  # one for all cells: they differ in what else keys them
        return job_of({**tree, "nonce": nonce})
    for combination in found:
        _check_data(combination)
    return Job(tree, found, section.tune, selections(found, section.tune))


def _check_data(combination: Combination) -> None:
    """What the data's outline shows to be wrong is said before anything runs."""
    for number, candidate in enumerate(combination.candidates):
        try:
            resolved_of(candidate.scenario)
        except InputError as error:
            hint = f"{error.hint} (in {combination.title(number)})"
            raise where_fraction_is_given(InputError(error.field, error.value, hint)) from None
