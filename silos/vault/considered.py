"""What a plan would cost the silo, by its operator's rules: known before its account is asked.

Nothing here reads a record. The plan is any: the argument of `silos.vault.gate` holds for every plan, so who
brings it, and how it was found, need not be trusted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from fedsim.common.chain import text
from fedsim.common.errors import Refused
from fedsim.privacy.mechanism import Mechanism
from fedsim.privacy.silo_gaussian import NoMechanism, SiloGaussian
from fedsim.problems.answerable import check_answerable
from fedsim.problems.glm import OWN, GeneralisedLinear
from fedsim.problems.kinds import Problem
from fedsim.protocol.facts import Facts, Told, check_silo
from fedsim.protocol.groups import Cells
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Admitted, Arrays, Part, Plan, Terms
from fedsim.protocol.statistics import statistic
from fedsim.protocol.unit import AccountUnit
from silos.vault.account import Price
from silos.vault.admission import admit, price, silo_mechanism
from silos.vault.ledger import RunLedger

if TYPE_CHECKING:  # loaded with a roster
    from fedsim.privacy.sum_mechanism import SumMechanism

SEEDED = "Noise comes from a seed (--insecure-simulation), which can draw it again: nothing is private"
PUBLIC: tuple[str, ...] = ("its records are public: nothing is guaranteed to them",)


class Rules(NamedTuple):
    """What a silo's operator allows, as far as it decides what leaves (`silos.front.config.Policy`)."""

    limits: Limits
    run_budget: tuple[float, float]  # (epsilon, delta) of one run at most
    min_noise_multiplier: float  # of any release
    exact_noise_dimension: int  # the largest with exact noise
    statistics: Collection[str] | None  # that may be asked for; None for all
    max_runs: int  # in the silo's life
    run_days: float  # until a run is closed by itself


class Its(NamedTuple):
    """What is public of the part of a silo's records that a plan is of."""

    silo: str
    n: int  # units of its account
    num_features: int  # the constant one included
    groups: int
    unit: AccountUnit  # what its account protects
    public: bool


class Sums(Protocol):
    """A silo's part in secure aggregation (`silos.front.pooled`)."""

    @property
    def mechanism(self) -> SumMechanism:
        """For the answers of the plan."""

    def colluding_cost(self, plan: Plan, admitted: Admitted) -> float:
        """Epsilon if server and shuffler collude; Refused above what the operator allows."""


@dataclass(frozen=True)
class Admissible:
    """A plan that the silo can afford by itself; whether its account can, the ledger says.

    `broadcasts` are each round's arrays, `notices` lines for the report; `colluding` is the epsilon that is
    left of secure aggregation if server and shuffler collude. `foreign` says whether code that fedsim does
    not ship sees the answers, `sealed` makes the run's ledger of one that keeps sealed reports.
    """

    plan: Plan
    problem: Problem
    dtype: torch.dtype
    records: Part
    terms: Terms
    mechanism: Mechanism
    notices: tuple[str, ...]
    admitted: Admitted
    broadcasts: tuple[Arrays, ...]
    colluding: float | None = None
    foreign: bool = False
    sealed: Callable[[RunLedger], RunLedger] | None = None

    @cached_property
    def price(self) -> Price:
        """Of all its rounds; Refused if it has none that is finite."""
        return price(self.plan, self.admitted, self.mechanism)

    @cached_property
    def told(self) -> dict[str, Any]:
        """The silo's terms, plain values."""
        kinds = {release.kind for release, _ in self.plan.census(self.terms.rounds)}
        return {
            "epsilon": _finite(self.terms.epsilon),
            "delta": self.terms.delta,
            "noise_multiplier": self.admitted.noise_multiplier,
            "epsilon_guaranteed": _finite(self.admitted.epsilon_guaranteed),
            **({} if self.colluding is None else {"epsilon_colluding": _finite(self.colluding)}),
            "releases": self.admitted.releases,
            "accountant": self.mechanism.accountant(sorted(kinds)),
            "notices": list(self.notices),
        }

    @cached_property
    def digest(self) -> str:
        """What an approval binds: plan with unit, the problem's kind and numbers, dtype, terms and cost."""
        bound = {
            "plan": self.plan.digest,
            "problem": [type(self.problem).__name__, self.problem.dimension, *_plain(self.problem)],
            "dtype": str(self.dtype),
            "records": self.records,
            "n": self.terms.n,
            "rounds": list(self.terms.rounds),
            "terms": self.told,
            "cost": self.price.whole.tree(),
        }
        return hashlib.sha256(text(bound).encode()).hexdigest()


def considered(
    plan: Plan,
    problem: Problem,
    dtype: torch.dtype,
    terms: Terms,
    its: Its,
    rules: Rules,
    *,
    records: Part = "training",
    seeded: bool = False,
    sums: Sums | None = None,
    **kept: Any,
) -> Admissible:
    """The plan of these records at its price, within the operator's rules.

    Of `terms` budget, rounds, and the noise and pool where they are given are what is asked for; the rest is
    the silo's own. Noise that is `seeded` is never exact; `kept` are further fields of the result.

    Raises:
        Refused: the plan is of another unit, group or statistic than the silo allows, breaks a limit, costs
            more than the budget, or has too little noise.
    """
    _check_its(plan, problem, its, rules)
    known: dict[str, Told] = {
        "float32": dtype == torch.float32,
        "held-out records": records == "holdout",
        "public silo": its.public and repr(its.silo),
        "a plug-in's problem": _is_foreign(problem),
    }
    check_silo(Facts(plan, (SiloGaussian() if sums is None else sums.mechanism).facts | known))
    mechanism, further = _mechanism(plan, problem, its, rules, seeded, sums)
    epsilon, delta = rules.run_budget
    epsilon, delta = inf if its.public else min(terms.epsilon, epsilon), min(terms.delta, delta)
    terms = replace(terms, name=its.silo, n=its.n, epsilon=epsilon, delta=delta, public=its.public)
    (admitted,) = admit(plan, [terms], mechanism, rules.limits)
    check_noise(plan, admitted, rules.min_noise_multiplier)
    colluding = None if sums is None else sums.colluding_cost(plan, admitted)
    notices = (*([SEEDED] if seeded else []), *mechanism.notices, *further)
    priced = terms, mechanism, notices, admitted
    return Admissible(plan, problem, dtype, records, *priced, colluding=colluding, **kept)


def _finite(value: float) -> float | None:
    """As JSON has it."""
    return value if isfinite(value) else None


def _plain(problem: Problem) -> list[object]:
    values = (vars(problem).get(field.name) for field in fields(problem))
    return [value for value in values if value is None or isinstance(value, int | float | str)]


def _is_foreign(problem: Problem) -> bool:
    """Whether others than fedsim wrote its loss."""
    if isinstance(problem, GeneralisedLinear):
        return type(problem) not in OWN
    from fedsim.problems.registry import is_shipped  # where there is a network

    return not is_shipped(problem)


def _check_its(plan: Plan, problem: Problem, its: Its, rules: Rules) -> None:
    """Refuse a plan of another unit, feature or group than the silo has, or of what it does not allow."""
    its.unit.check_plan(plan.unit)
    rules.limits.check_plan(plan, problem.dimension, problem.num_features)
    if problem.num_features != its.num_features:
        raise Refused(f"offer: silo {its.silo!r} has {its.num_features} features, the problem has others")
    check_answerable(problem, plan.queries)
    for query in plan.queries:
        known = statistic(query.statistic)
        if rules.statistics is not None and known.name not in rules.statistics:
            hint = f"it allows {', '.join(rules.statistics) or 'none'}"
            raise Refused(f"offer: the silo's policy does not allow statistic {known.name!r}; {hint}")
        if known.by_group and Cells.of(query.options).groups != its.groups:
            held = f"silo {its.silo!r} has {its.groups} groups"
            raise Refused(f"offer: {held}, {known.name} asks of others")


def _mechanism(
    plan: Plan, problem: Problem, its: Its, rules: Rules, seeded: bool, sums: Sums | None
) -> tuple[Mechanism, tuple[str, ...]]:
    """The mechanism, and what a reader must know of it."""
    most = rules.exact_noise_dimension
    if its.public:
        return NoMechanism(), PUBLIC
    if sums is not None:
        return (sums.mechanism, ()) if seeded else sums.mechanism.exactly(most)
    return silo_mechanism(plan.extent(problem.dimension, its.num_features), most, seeded)


def check_noise(plan: Plan, admitted: Admitted, asked: float) -> None:
    """Refuse a private silo's release with less noise than its operator asks for, whatever it would cost."""
    asks = {ask for r in admitted.terms.rounds for ask in plan.rounds[r]}
    ratio = min((query.noise_ratio for ask in asks for query in ask.queries), default=1.0)
    least = ratio * admitted.noise_multiplier
    if asks and not (admitted.terms.public or least >= asked):
        hint = f"the silo's policy asks for {asked:g}"
        raise Refused(f"the plan has releases of noise multiplier {least:.6g}, {hint}")
