"""A scenario and everything that follows from it without reading feature values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, cast

import torch

from fedsim.algorithms.registry import shipped
from fedsim.data.source import Outline
from fedsim.privacy.calibrate import Budget, noise_ratios
from fedsim.privacy.mechanism import Mechanism
from fedsim.privacy.registry import GAUSSIAN, MECHANISMS
from fedsim.privacy.unit_words import Words, words
from fedsim.problems.kinds import Problem
from fedsim.problems.registry import dtype_of, is_shipped
from fedsim.protocol.contract import Algorithm, Public, innermost, traits
from fedsim.protocol.dryrun import Trace, dry_run
from fedsim.protocol.facts import Facts
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Admitted
from fedsim.protocol.unit import Protects
from fedsim.scenario.automatic import step_warning
from fedsim.scenario.by_theorem import need_privacy
from fedsim.scenario.contributions import Stages
from fedsim.scenario.facts import facts_of
from fedsim.scenario.model import Scenario
from fedsim.theory.participants import Participants
from fedsim.theory.symbols import Premises, Symbols, symbols
from fedsim.theory.theorem import Derived, Prescribed

if TYPE_CHECKING:
    from fedsim.algorithms.with_public import WithPublic
    from fedsim.isolated.parts import Isolated
    from fedsim.secagg.agreement import Sums


@dataclass(frozen=True)
class Resolved:
    """A scenario and what follows from it; every list by silo is in canonical order."""

    scenario: Scenario  # with the numbers that theorems supplied
    outline: Outline
    problem: Problem
    algorithm: Algorithm  # with all its numbers
    budgets: tuple[Budget, ...]  # (n_i, eps_i, delta_i); epsilon is infinity with mechanism `none`
    premises: Premises  # what theorems start from: the silos' names, weights, participation and claims
    derived: Derived | None  # numbers that a theorem or `auto` chose; None where all are given
    prescribed: Prescribed | None  # the silos' noise where the scenario fixes it; else each finds its own
    stages: Stages  # of private preparation, with their clips
    inner: Problem  # the problem on the features that these make
    of_unit: Sequence[str]  # what a report says of the unit

    @property
    def names(self) -> tuple[str, ...]:
        """The silos."""
        return self.premises.names

    @property
    def weights(self) -> tuple[float, ...]:
        """p_i, summing to 1."""
        return self.premises.weights

    @property
    def active(self) -> Participants:
        """Participation: None for all silos, M for M at random, or another law."""
        return self.premises.participants

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """n_i, units that train."""
        return tuple(budget.n for budget in self.budgets)

    @cached_property
    def epsilons(self) -> tuple[float, ...]:
        """eps_i."""
        return tuple(budget.epsilon for budget in self.budgets)

    @cached_property
    def deltas(self) -> tuple[float, ...]:
        """delta_i."""
        return tuple(budget.delta for budget in self.budgets)

    @cached_property
    def public_silos(self) -> tuple[bool, ...]:
        """Whether a silo's records are public."""
        return tuple(each == "public" for each in self.scenario.privacy.epsilons(self.names))

    @property
    def mechanism(self) -> Mechanism:
        """The privacy mechanism."""
        return MECHANISMS[self.scenario.privacy.mechanism] if self.sums is None else self.sums.mechanism

    @cached_property
    def sums(self) -> Sums | None:
        """The terms of secure aggregation; None where each silo answers for itself."""
        privacy = self.scenario.privacy
        if not MECHANISMS[privacy.mechanism].sums_only:
            return None
        answers = self.trace.plan.extent(self.problem.dimension, self.problem.num_features)
        return privacy.sums(answers, self.sizes, self.weights, self.active)

    @property
    def noise_multipliers(self) -> tuple[float, ...] | None:
        """z_i where the scenario fixes them, None where each silo finds its own."""
        return None if self.prescribed is None else self.prescribed.noise_multipliers

    @property
    def dtype(self) -> torch.dtype:
        """Type of parameters and features."""
        return dtype_of(self.scenario.runtime.dtype)

    @property
    def symbols(self) -> Symbols:
        """The theorems' symbols; InputError for a scenario without noise."""
        need_privacy(self.scenario.privacy)
        return symbols(self.premises)

    def public(self, noise_multipliers: Sequence[float] | None = None) -> Public:
        """The federation's public numbers; noise is unknown (zero) before admission."""
        noise = noise_multipliers or [0.0] * len(self.names)
        sizes, weights = torch.tensor(self.sizes), torch.tensor(self.weights, dtype=self.dtype)
        privacy = self.scenario.privacy
        about = MECHANISMS[privacy.mechanism].sums_only, privacy.unit
        return Public(self.names, sizes, weights, torch.tensor(noise, dtype=self.dtype), *about)

    @property
    def protects(self) -> Protects:
        """What of a unit's records the guarantee is about."""
        if self.mechanism.of_groups:
            return "group"
        return "label" if self.trace.plan.protects_labels_alone else "record"

    @property
    def words(self) -> Words:
        """The words of its unit."""
        column = getattr(self.scenario.data, "person_column", None)  # of a table alone
        own = words(self.scenario.privacy.unit, self.protects, column)
        shown = self.problem.composite.records is not None or any(self.public_silos)
        return own.private if shown else own

    @property
    def facts(self) -> Facts:
        """What is known of the run to the table of clashes."""
        trace, mechanism = self.trace, self.mechanism
        return facts_of(
            self.scenario,
            trace.plan,
            **{
                "noise that is not Gaussian": mechanism != GAUSSIAN,
                "an algorithm that is not linear or has memory": trace.remembers or not self.algorithm.linear,
                "memory": trace.remembers,
                "own models": self.own is not None,
                "messages of several sizes": trace.uneven,
                "no budget": mechanism.private and inf in self.epsilons,
                "a plug-in's problem": not is_shipped(self.problem),
                "held-out records": False,
            },
        )

    @cached_property
    def trace(self) -> Trace:
        """The plan, by dry run."""
        algorithm, problem = self.gate_algorithm, self.gate_problem
        about = algorithm, problem, self.public(), self.scenario.seed, LIMITS
        if self._isolated is None:
            return dry_run(*about).of(self.scenario.privacy.unit)
        from fedsim.isolated.parts import trace_of

        return trace_of(*about).of(self.scenario.privacy.unit)

    def warnings(self, admitted: Sequence[Admitted]) -> list[str]:
        """Lines on numbers that are allowed and hardly intended."""
        problem = self.weighed(admitted)
        return [] if self.stages else step_warning(self.algorithm, problem, self.outline.squared_norms)

    def weighed(self, admitted: Sequence[Admitted]) -> Problem:
        """The problem, with the weight of public records that follows from the silos' noise."""
        if not admitted or (algorithm := self._with_public) is None:
            return self.problem
        found = algorithm.weighed(self.problem, self.public([silo.noise_multiplier for silo in admitted]))
        return cast(Problem, found)

    @property
    def _with_public(self) -> WithPublic | None:
        """The algorithm with a server that preconditions and weighs public records, where it is to."""
        records = self.problem.composite.records
        if self.stages or records is None or not records.by_server:
            return None
        from fedsim.algorithms.with_public import WithPublic

        return WithPublic(self.algorithm, records, self.premises.active / len(self.names))

    @property
    def gate_algorithm(self) -> Algorithm:
        """The algorithm that the gates and the server's loop run: `algorithm` after its stages, or with a
        server that preconditions and weighs public records, where it is to.

        With `runtime.plug_ins: isolated` it is a confined process's, where a part is not fedsim's.
        """
        if self.stages:
            from fedsim.algorithms.prepared import Prepared

            return Prepared(self.stages, self._stage_ratios, self.algorithm)
        if (with_public := self._with_public) is not None:
            return with_public
        return self.algorithm if self._isolated is None else cast(Algorithm, self._isolated)

    @property
    def gate_problem(self) -> Problem:
        """The problem that the gates apply to records; a plug-in's as a confined process described it."""
        return self.problem if self._isolated is None or is_shipped(self.problem) else self._isolated.problem

    @property
    def beside(self) -> Mapping[str, Algorithm]:
        """Algorithms of the same plan that own models are compared with, by variant; empty for most."""
        return traits(self.gate_algorithm).beside() if self.own else {}

    @property
    def own(self) -> str | None:
        """The entry of memory that is a silo's own part of its model; None where there are no own models."""
        return None if self.stages else traits(self.algorithm).own

    @cached_property
    def _stage_ratios(self) -> tuple[float, ...]:
        """The stages' noise ratios, which follow from the algorithm's own plan and the budgets."""
        own = dry_run(self.algorithm, self.inner, self.public(), self.scenario.seed, LIMITS)
        census = own.of(self.scenario.privacy.unit).plan.census()
        return noise_ratios([stage.share for stage in self.stages], census, self.premises.claims)

    @property
    def _isolated(self) -> Isolated | None:
        """The child process that runs plug-in code; None where nothing is isolated."""
        if self.scenario.runtime.plug_ins == "in_process" or self._recipe is None:
            return None
        from fedsim.isolated.parts import of_objects

        return of_objects(self._recipe)

    @cached_property
    def _recipe(self) -> str | None:
        """The recipe for a child process; None where all parts are shipped."""
        kind = shipped().get(self.scenario.algorithm.name)
        if kind is type(innermost(self.algorithm)) and is_shipped(self.problem):
            return None
        from fedsim.isolated.parts import recipe_of

        return recipe_of(self.algorithm, self.problem, self.scenario.runtime.dtype)
