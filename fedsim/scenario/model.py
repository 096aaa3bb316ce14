"""A scenario: one YAML file that says everything a run depends on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fedsim.data.config import DataConfig, PartitionConfig
from fedsim.scenario.algorithm import AlgorithmConfig
from fedsim.scenario.section import Section
from fedsim.scenario.sweep import SweepSection

Positive = Annotated[float, Field(gt=0, le=1e6)]
Probability = Annotated[float, Field(ge=1e-100, lt=1)]
Share = Annotated[float, Field(gt=0)]


def _named(value: Any) -> Any:
    """`participation: all` is short for `participation: {name: all}`."""
    return {"name": value} if isinstance(value, str) else value


class NoConstraint(Section):
    """The whole space."""

    name: Literal["none"] = "none"


class BallConstraint(Section):
    """|w|_2 <= radius."""

    name: Literal["l2_ball"]
    radius: Annotated[float, Field(gt=0, description="D / 2: radius of the ball around 0")]


class BoxConstraint(Section):
    """lower <= w_j <= upper."""

    name: Literal["box"]
    lower: float = Field(description="least value of every parameter")
    upper: float = Field(description="largest value of every parameter")


class RegulariserSection(Section):
    """l1 |w|_1 + l2 / 2 |w|^2, public and never clipped."""

    l1: float = Field(0.0, ge=0, description="weight of the l1 norm")
    l2: float = Field(0.0, ge=0, description="lambda: weight of half the squared l2 norm")


class ProblemSection(Section):
    """What is minimised: the silos' weighted mean loss, plus a public part."""

    name: Literal["logistic_regression", "softmax_regression", "linear_regression"] = Field(
        description="the loss of one record"
    )
    regulariser: RegulariserSection = Field(RegulariserSection(), description="f1, without the constraint")
    constraint: Annotated[
        NoConstraint | BallConstraint | BoxConstraint, Field(discriminator="name"), BeforeValidator(_named)
    ] = Field(NoConstraint(), description="W: the set that parameters stay in")
    silo_weights: Literal["equal", "size"] | tuple[Share, ...] | dict[str, Share] = Field(
        "equal", description="p_i: equal (1/N), by number of records, or one weight a silo (scaled to sum 1)"
    )


class PrivacySection(Section):
    """Each silo's budget: its transcript is (epsilon, delta)-DP for replacing one of its records."""

    mechanism: Literal["gaussian", "none"] = Field(
        "gaussian", description="gaussian: clip and add noise; none: neither (no privacy)"
    )
    epsilon: Positive | tuple[Positive, ...] | dict[str, Positive] | None = Field(
        None, description="epsilon_i: one for all silos, a list in order of silo names, or a map by silo"
    )
    delta: Probability | Literal["1/n^2"] | tuple[Probability, ...] | dict[str, Probability] = Field(
        "1/n^2", description="delta_i: as epsilon, or 1/n^2 for one over the squared number of records"
    )
    calibration: Literal["accountant"] = Field(
        "accountant", description="noise is the smallest whose exact cost is within the budget"
    )


class AllSilos(Section):
    """Every silo in every round."""

    name: Literal["all"]


class UniformSilos(Section):
    """A uniformly random set of silos in each round."""

    name: Literal["uniform"]
    num_silos: int = Field(ge=1, description="M: silos in a round")


class RuntimeSection(Section):
    """Where the run happens."""

    name: Literal["ray", "inprocess"] = Field("ray", description="ray: trials in parallel processes")
    silo_hosts: int = Field(
        0, ge=0, description="ray: processes that hold a trial's silos; 0 keeps them in the trial's own"
    )
    address: str | None = Field(None, description="ray: an existing cluster instead of a local one")
    dtype: Literal["float64", "float32"] = Field("float64", description="type of parameters and features")


class ReportSection(Section):
    """What is measured along the way; all of it exists in simulation only."""

    evaluate_every: int = Field(1, ge=1, description="rounds between two evaluations on the test records")
    nonprivate_twin: bool = Field(True, description="also run with neither clipping nor noise, to compare")


class Scenario(Section):
    """Everything a run depends on."""

    name: str = Field(description="title of the run", min_length=1)
    description: str = Field("", description="what it shows")
    seed: int = Field(0, ge=0, description="seed of partition, splits, participation and simulated noise")
    trials: int = Field(1, ge=1, description="repetitions, each with a fresh split and fresh noise")
    data: Annotated[DataConfig, BeforeValidator(_named)] = Field(description="the records")
    partition: Annotated[PartitionConfig, BeforeValidator(_named)] = Field(
        description="who holds which record"
    )
    problem: Annotated[ProblemSection, BeforeValidator(_named)] = Field(description="what is minimised")
    algorithm: AlgorithmConfig = Field(description="how")
    privacy: PrivacySection = Field(description="what each silo allows")
    participation: Annotated[
        AllSilos | UniformSilos, Field(discriminator="name"), BeforeValidator(_named)
    ] = Field(AllSilos(name="all"), description="who takes part in a round")
    runtime: Annotated[RuntimeSection, BeforeValidator(_named)] = Field(
        RuntimeSection(), description="where it runs"
    )
    report: ReportSection = Field(ReportSection(), description="what is measured")
    sweep: SweepSection | None = Field(None, description="variations of this scenario, for `fedsim sweep`")
