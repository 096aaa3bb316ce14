"""What a silo agrees to, whatever a server asks: the `policy` section of silo.yaml."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from fedsim.algorithms.registry import shipped
from fedsim.common.errors import InputError, suggest
from fedsim.common.section import Section
from fedsim.problems.kinds import PROBLEMS
from fedsim.protocol.limits import Limits
from fedsim.scenario.model import Probability

Epsilon = Annotated[float, Field(gt=0, le=500)]
Count = Annotated[int, Field(ge=1)]


class Sampled(Section):
    """The part of a lifetime that plans with sampled batches may use; by default they are refused."""

    epsilon: float = Field(0.0, ge=0, description="sum of their epsilons")
    delta: float = Field(0.0, ge=0, lt=1, description="sum of their deltas")


class Lifetime(Section):
    """What everything that ever leaves the silo is within; fixed at enrolment (`silos.account`)."""

    epsilon: Epsilon = Field(description="of all runs together")
    delta: Probability = Field(description="of all runs together")
    expires: date = Field(description="the last day, in UTC; nothing is released afterwards")
    sampled: Sampled = Field(Sampled(), description="of it, for plans with sampled batches")


class PerRun(Section):
    """The most that one run may cost, whatever it offers."""

    epsilon: Epsilon = Field(description="of one run")
    delta: Probability = Field(description="of one run")


def _list_of_plug_ins(value: Any) -> Any:
    """`false` is none of them; `true` would let a server choose any function of the installation."""
    if value is True:
        raise ValueError("list those that may run: names of entry points, module:attribute of networks")
    return () if value is False else value


PlugIns = Annotated[tuple[str, ...], BeforeValidator(_list_of_plug_ins)]


class Policy(Section):
    """What a silo agrees to."""

    lifetime: Lifetime = Field(description="over all runs")
    per_run: PerRun | None = Field(None, description="the most for one run; default: all of the lifetime's")
    algorithms: tuple[str, ...] | None = Field(None, description="those that may run; default: fedsim's own")
    problems: tuple[str, ...] | None = Field(None, description="those that may run; default: fedsim's own")
    plug_ins: PlugIns = Field(
        (),
        description="code that fedsim does not ship and that may be started, in a confined process: names of "
        "entry points in plug_in_folder, module:attribute of networks; false: none",
    )
    min_noise_multiplier: float = Field(0.1, gt=0, le=1e4, description="least base noise multiplier")
    max_noise_multiplier: float = Field(1e4, gt=0, le=1e4, description="largest base noise multiplier")
    max_epsilon_colluding: float | None = Field(
        None,
        gt=0,
        description="the most that a run may cost if server and shuffler collude; default: infinity",
    )
    max_runs: Count = Field(
        1_000, description="runs that are open or had a round paid for, in the silo's whole life"
    )
    max_rounds: Count = Field(1_000, description="rounds of a plan")
    max_queries_per_round: Count = Field(1_000, description="noisy answers of a round")
    max_dimension: Count = Field(1_000_000, description="parameters of a model")
    max_planned_numbers: Count = Field(
        100_000_000,
        description="numbers in all answers of a plan, one of fewer than 5,000 counted as 5,000: bounds "
        "the time that trying a plan out takes",
    )
    min_clip: float = Field(1e-6, ge=1e-6, description="least clip, but for 0")
    max_clip: float = Field(1e6, gt=0, le=1e6, description="largest clip")
    max_point: float = Field(1e6, gt=0, le=1e6, description="largest entry of a point")
    exact_noise_dimension: int = Field(
        100_000, ge=0, description="largest dimension with exact noise; above, it is drawn in floating point"
    )
    run_days: float = Field(7.0, gt=0, le=3650, description="days until a run that is not closed is closed")

    @property
    def limits(self) -> Limits:
        """Bounds on plans and queries."""
        return Limits(
            max_rounds=self.max_rounds,
            max_dimension=self.max_dimension,
            max_queries_per_round=self.max_queries_per_round,
            max_planned_numbers=self.max_planned_numbers,
            max_point=self.max_point,
            min_clip=self.min_clip,
            max_clip=self.max_clip,
            max_noise_multiplier=self.max_noise_multiplier,
        )

    @property
    def run_budget(self) -> tuple[float, float]:
        """(epsilon, delta) of one run at most."""
        bound = self.per_run or self.lifetime
        return bound.epsilon, bound.delta

    @property
    def allowed_algorithms(self) -> tuple[str, ...]:
        """By name."""
        return self.allowed(shipped()) if self.algorithms is None else self.algorithms

    @property
    def allowed_problems(self) -> tuple[str, ...]:
        """By name."""
        return self.allowed(PROBLEMS) if self.problems is None else self.problems

    def allowed(self, known: Iterable[str]) -> tuple[str, ...]:
        """The parts that fedsim ships, and the plug-ins that are listed: these run in a confined process."""
        return tuple(dict.fromkeys((*known, *(name for name in self.plug_ins if ":" not in name))))

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for field, low, high in (
            ("min_noise_multiplier", self.min_noise_multiplier, self.max_noise_multiplier),
            ("min_clip", self.min_clip, self.max_clip),
        ):
            if low > high:
                raise InputError(field, low, f"at most {field.replace('min', 'max', 1)}, {high:g}")
        for field, known in (("algorithms", shipped()), ("problems", PROBLEMS)):
            for name in getattr(self, field) or ():
                if name not in self.allowed(known):
                    hint = f"not shipped; {suggest(name, known)}, or list the plug-in under plug_ins too"
                    raise InputError(field, name, hint)
        return self
