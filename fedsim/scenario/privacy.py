"""The `privacy` section of a scenario, and the silos' budgets that it states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.data.source import Outline
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.registry import MECHANISMS, sum_mechanism
from fedsim.protocol.statistics import Extent
from fedsim.protocol.unit import RECORD, Unit
from fedsim.scenario.participation import PerSilo, per_silo
from fedsim.theory.participants import Participants, size_law

if TYPE_CHECKING:
    from fedsim.secagg.agreement import Sums

MechanismName = Literal[
    "gaussian", "none", "summed_gaussian", "shuffled_binomial", "shuffled_gaussian", "attribute_gaussian"
]
Positive = Annotated[float, Field(gt=0, le=1e6)]
Probability = Annotated[float, Field(ge=1e-100, lt=1)]
Delta = Annotated[float, Field(ge=1e-100, le=0.1)]
"""With probability delta a silo may publish all its records, so a delta above 0.1 is surely a mistake."""


class PrivacySection(Section):
    """Each silo's budget: its transcript is (epsilon, delta)-DP for replacing one of its records."""

    mechanism: MechanismName = Field(
        "gaussian",
        description="gaussian: clip and add noise in every silo; summed_gaussian, shuffled_binomial, "
        "shuffled_gaussian: secure aggregation by two parties that do not collude; none: no clipping, no "
        "noise (no privacy); attribute_gaussian: noise for a record's group alone, in simulation, for "
        "comparison",
    )
    unit: Unit = Field(
        RECORD,
        exclude_if=lambda unit: unit == RECORD,
        description="what neighbouring data sets differ in: record, or person (all records with one value of "
        "data.person_column), with {name: person, bound, h, relation, silos_per_person}",
    )
    expected_persons: PerSilo[Annotated[int, Field(ge=1)]] | None = Field(
        None, description="relation add_remove: of each silo, the public number that stands for its persons"
    )
    epsilon: PerSilo[Positive | Literal["public"]] | Literal["unlimited"] | None = Field(
        None,
        description="epsilon_i, the limit on the true cost: one for all silos, a list in order of silo "
        "names (as text: 10 before 9), a map by silo, or in simulation the word unlimited; there a silo of a "
        "list or map may be public: neither clip nor noise, and no guarantee",
    )
    delta: PerSilo[Delta] | Literal["1/n^2"] = Field(
        "1/n^2",
        description="delta_i: as epsilon, at most 0.1, or 1/n^2 for one over the squared number of units",
    )
    calibration: Literal["accountant", "theorem", "sigma"] = Field(
        "accountant",
        description="accountant: the smallest noise whose exact cost is within the budget; theorem: what the "
        "algorithm's theorem states for claimed_epsilon; sigma: given",
    )
    claimed_epsilon: PerSilo[Positive] | None = Field(
        None, description="calibration theorem: the epsilon that the theorem is asked for, as epsilon"
    )
    claimed_delta: PerSilo[Probability] | None = Field(
        None, description="calibration theorem: the delta that the theorem is asked for; default delta"
    )
    theorem: Literal["thesis", "experiments"] = Field(
        "thesis",
        description="calibration theorem: the algorithm's own theorem, or the noise of the thesis's "
        "experiments (minibatch SGD, local SGD, prox-SPIDER, alternate SPIDER)",
    )
    allow_violations: bool = Field(
        False, description="calibration theorem: run outside the theorem's conditions, and report them"
    )
    sigma: PerSilo[Positive] | None = Field(
        None, description="calibration sigma: standard deviation of the noise on a silo's mean gradient"
    )
    noise_multiplier: PerSilo[Positive] | None = Field(
        None, description="calibration sigma: sigma / L2 sensitivity, instead of sigma"
    )

    honest_fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="secure aggregation: of min_silos, the share of silos that add their noise and keep it "
        "secret; required where silos add it",
    )
    min_silos: int | None = Field(
        None,
        ge=1,
        description="secure aggregation: the least silos in a sum; default: as many as a round has",
    )
    noise_by: Literal["silos", "aggregators"] = Field(
        "silos", description="summed_gaussian: who adds noise; aggregators: both, 1.41 times as much"
    )

    steps: int | None = Field(
        None, ge=1, le=2**20, description="shuffled_binomial: steps of its grid to the clip; default: by d"
    )

    def check(self) -> None:
        """Check that it has the fields of its mechanism and calibration, and no others."""
        added = self.unit.relation == "add_remove"
        if added == (self.expected_persons is None):
            hint = "is required with relation add_remove: the public number that stands for a silo's persons"
            hint = hint if added else "only with unit person and relation add_remove"
            raise InputError("scenario.privacy.expected_persons", self.expected_persons, hint)
        if not MECHANISMS[self.mechanism].private:
            return
        self._check_sums()
        if self.epsilon is None:
            raise InputError("scenario.privacy.epsilon", None, f"is required with mechanism {self.mechanism}")
        values = dict(self)
        for field, calibration in _BELONGS.items():
            value = values[field]
            if self.calibration != calibration and value != type(self).model_fields[field].default:
                hint = f"only with calibration {calibration}, this one is {self.calibration}"
                raise InputError(f"scenario.privacy.{field}", value, hint)
        for hint, wrong in {  # public silos stand beside private ones, each of which answers for itself
            "a number for some silo, or mechanism: none": set(self.given_epsilons) == {"public"},
            "numbers: in a sum a public silo's records get noise too": MECHANISMS[self.mechanism].sums_only,
            "numbers: public needs the accountant, not private tuning": self.calibration != "accountant",
        }.items():
            if self.some_public and wrong:
                raise InputError("scenario.privacy.epsilon", self.epsilon, hint)
        if self.calibration == "theorem" and self.claimed_epsilon is None:
            raise InputError("scenario.privacy.claimed_epsilon", None, "is required with calibration theorem")
        if self.calibration == "sigma" and (self.sigma is None) == (self.noise_multiplier is None):
            hint = "calibration sigma needs either sigma or noise_multiplier"
            raise InputError("scenario.privacy.sigma", self.sigma, hint)
        if self.calibration == "accountant" and self.epsilon == "unlimited":
            hint = "the accountant needs a number to calibrate to; "
            hint += "unlimited goes with calibration theorem or sigma"
            raise InputError("scenario.privacy.epsilon", self.epsilon, hint)

    def stated(self, names: Sequence[str]) -> tuple[int, ...] | None:
        """What stands for the silos' private numbers of units; None where these are public."""
        field, given = "scenario.privacy.expected_persons", self.expected_persons
        return None if given is None else tuple(map(int, per_silo(field, given, names)))

    @property
    def some_public(self) -> bool:
        """Whether epsilon says so of a silo."""
        return "public" in self.given_epsilons

    @property
    def given_epsilons(self) -> tuple[object, ...]:
        """The field's one value, or those of its list or map."""
        given = self.epsilon.values() if isinstance(self.epsilon, dict) else self.epsilon
        return tuple(given) if not isinstance(given, float | str | None) else (given,)

    def epsilons(self, names: Sequence[str]) -> tuple[Any, ...]:
        """Of each silo a number, infinity without a limit, or "public"."""
        limited = MECHANISMS[self.mechanism].private and self.epsilon != "unlimited"
        return per_silo("scenario.privacy.epsilon", self.epsilon if limited else inf, names)

    def sizes(self, shape: Outline) -> tuple[int, ...]:
        """The silos' numbers of units; where these are private, the numbers that stand for them."""
        return self.stated(tuple(shape.sizes)) or tuple(shape.sizes.values())

    def budgets(self, shape: Outline) -> tuple[Budget, ...]:
        """(n_i, eps_i, delta_i), silos in canonical order; epsilon is infinity of a public silo."""
        names, sizes = tuple(shape.sizes), self.sizes(shape)
        epsilons = (inf if each == "public" else each for each in self.epsilons(names))
        return tuple(map(Budget, sizes, epsilons, self._deltas(names, sizes)))

    def _deltas(self, names: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
        if self.delta != "1/n^2":
            return per_silo("scenario.privacy.delta", self.delta, names)
        for name, n in zip(names, sizes, strict=True):
            if n < 2 and MECHANISMS[self.mechanism].private:
                hint = f"below 1: silo {name} has {n} training record, so 1/n^2 is {1 / n**2:g}"
                raise InputError("scenario.privacy.delta", self.delta, hint)
        return tuple(1 / n**2 for n in sizes)

    def claims(self, names: Sequence[str], budgets: tuple[Budget, ...]) -> tuple[Budget, ...]:
        """The budgets, or with calibration `theorem` what is claimed; none without privacy."""
        if not MECHANISMS[self.mechanism].private:
            return ()
        if self.calibration != "theorem":
            return budgets
        epsilons = per_silo("scenario.privacy.claimed_epsilon", self.claimed_epsilon, names)
        deltas: Sequence[float] = [each.delta for each in budgets]
        if self.claimed_delta is not None:
            deltas = per_silo("scenario.privacy.claimed_delta", self.claimed_delta, names)
        return tuple(map(Budget, [each.n for each in budgets], epsilons, deltas))

    def sums(
        self, extent: Extent, sizes: Sequence[int], weights: Sequence[float], active: Participants
    ) -> Sums:
        """The terms of secure aggregation that silos of `sizes` n_i, with `weights` in the objective, agree
        on for answers of an `extent`. By default a sum has at least as many silos as the smallest round of
        `active` ones. InputError names the field.
        """
        from fedsim.protocol.pool import Pool
        from fedsim.secagg.agreement import Sums

        law = zip(*size_law(active, len(sizes)), strict=True)
        least = int(min(size for size, chance in law if chance > 0))
        chosen = least if self.min_silos is None else self.min_silos
        field = "scenario.privacy.min_silos"
        if chosen > len(sizes):
            raise InputError(field, chosen, f"at most {len(sizes)}, the silos there are")
        if isinstance(active, int) and chosen > active:
            raise InputError(field, chosen, f"at most {active}, the silos of a round")
        pool = Pool(tuple(sizes), tuple(weights), chosen, self.honest_fraction or 1.0)
        return Sums(sum_mechanism(self.mechanism, extent, pool, self.noise_by, self.steps), pool)

    def _check_sums(self) -> None:
        own = dict(MECHANISMS[self.mechanism].fields)
        if "noise_by" in own and self.noise_by == "aggregators":
            own.pop("honest_fraction", None)
        if own.get("honest_fraction") and self.honest_fraction is None:
            hint = "is required: of min_silos, the share that adds its noise and keeps it to itself"
            raise InputError("scenario.privacy.honest_fraction", None, hint)
        for field, hint in _OF_MECHANISMS.items():
            if field not in own and (value := dict(self)[field]) != type(self).model_fields[field].default:
                raise InputError(f"scenario.privacy.{field}", value, f"only {hint.format(self.mechanism)}")
        if MECHANISMS[self.mechanism].sums_only and self.calibration == "theorem":
            hint = f"accountant or sigma: no theorem states the noise of {self.mechanism}"
            raise InputError("scenario.privacy.calibration", self.calibration, hint)


_OF_MECHANISMS = {
    "honest_fraction": "where noise of several silos protects each of them",
    "steps": "with mechanism shuffled_binomial, this one is {}",
    "noise_by": "with mechanism summed_gaussian, this one is {}",
    "min_silos": "with mechanisms of secure aggregation",
}
"""Who has each field of `privacy` that is not every mechanism's (`Mechanism.fields`)."""
_BELONGS = dict.fromkeys(("claimed_epsilon", "claimed_delta", "theorem", "allow_violations"), "theorem")
_BELONGS |= dict.fromkeys(("sigma", "noise_multiplier"), "sigma")
"""Which calibration each field of `privacy` belongs to."""


def alike(budgets: Sequence[Budget]) -> tuple[Budget, ...]:
    """Each with the smallest epsilon of all."""
    least = min(each.epsilon for each in budgets)
    return tuple(replace(each, epsilon=least) for each in budgets)
