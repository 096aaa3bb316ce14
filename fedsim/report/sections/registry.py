"""All sections, in the order in which a person reads them, and a run's summary with their parts."""

from __future__ import annotations

from typing import Any

from pydantic import create_model

from fedsim.report.section import Section
from fedsim.report.sections.evaluation import EVALUATION
from fedsim.report.sections.predictions import CALIBRATION, GROUPS
from fedsim.report.sections.training import CLIPPING, CLIPS, OBJECTIVE, H
from fedsim.report.sections.worth import COSTS, JOINING, OWN_MODELS
from fedsim.report.summary import Summary

SECTIONS: tuple[Section, ...] = (
    *(GROUPS, EVALUATION, CALIBRATION, JOINING, OWN_MODELS, COSTS),
    *(OBJECTIVE, CLIPPING, CLIPS, H),
)
_FIELDS: dict[str, Any] = {one.name: one.field for one in SECTIONS if one.part}
FullSummary: type[Summary] = create_model("Summary", __base__=Summary, **_FIELDS)


def told(summary: Summary) -> list[tuple[Section, Any]]:
    """The sections that have something to tell, each with its part."""
    return [(one, part) for one in SECTIONS if one.part and (part := getattr(summary, one.name))]
