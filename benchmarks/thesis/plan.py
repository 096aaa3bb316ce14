"""What `make results` runs and says: the plan beside this file, typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter

from benchmarks.thesis.trials import SERIES
from benchmarks.thesis.verdicts import Claim
from fedsim.common.section import Section
from fedsim.common.serialise import mapping

FILE = Path(__file__).with_name("plan.yaml")


class Experiment(Section):
    """A scenario of scenarios/thesis and what the page says of it."""

    title: str
    about: str = Field(description="what it is, in a sentence")
    origin: str = Field("", description="where its data come from")
    shape: str = Field("", description="what to expect of its curves")
    variants: tuple[str, ...] = ("honest", "thesis")
    judged: str = Field("honest", description="variant whose trials judge the thesis's claims")
    series: tuple[str, ...] = Field(SERIES, description="varied fields that name a curve of the figure")
    published: dict[str, dict[str, str]] = Field(
        {}, description="published figure by variant and setting, drawn over it"
    )
    audit: dict[str, Any] = Field({}, description="makes one run of it, to be audited; none: no audit")
    effort: float = Field(0.5, description="of the audit")
    only_if_named: bool = Field(False, description="whether `--only` must ask for it: it takes hours")
    conclusion: str = Field(
        "",
        description="two sentences; {SETTING | NAME @ EPSILON} is a mean, EPSILON none the baseline's, and "
        "{SETTING | baseline NAME} a baseline's; without a setting there is no bar",
    )

    @property
    def swept(self) -> tuple[str, ...]:
        """The page's variants, and the one for its verdicts."""
        return tuple(dict.fromkeys((*self.variants, self.judged)))


class Plan(Section):
    """Experiments by the name of their scenario, and the thesis's claims."""

    experiments: dict[str, Experiment]
    claims: tuple[Claim, ...]


def read_plan(path: Path = FILE) -> Plan:
    """The plan; pydantic's ValidationError names what is wrong in it."""
    return TypeAdapter(Plan).validate_python(mapping(path, "plan", "experiments:"))
