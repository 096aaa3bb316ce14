"""A section of a run's results: what is kept of one measurement and how it is shown, declared in one file.

The files are in `fedsim.report.sections`, the list of them in its `registry`. Record, summary, terminal, page
and notebook go through that list, so that a new one needs a line there, and code that measures it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_origin

from fedsim.report.outcome import Outcome
from fedsim.report.record import declare
from fedsim.report.summary import Summary
from fedsim.report.tables import TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Section:
    """One measurement; only its name must be given. What shows a part gets none that is empty."""

    name: str  # of its table, and of its field in summary.json
    row: Any = None  # the class of its rows in the record; its fields are the table's columns
    made_of: str = ""  # the records that rows are made of in a simulation; with it, the table is exported
    part: Any = None  # the type of its field in summary.json
    summarise: Callable[[Outcome], Any] = lambda outcome: None  # makes the part
    lines: Callable[[Any, Summary], list[str]] = lambda part, run: []  # sentences about the part
    title: str = ""  # of `table`
    table: Callable[[Any], TextTable] | None = None  # makes a table of the part
    stem: str = ""  # the name of its figure's file
    caption: str = ""  # of the figure
    draw: Callable[[list[Any], bool], Figure] | None = None  # of its rows, of a run that is private or not

    def __post_init__(self) -> None:
        if self.row is not None:
            declare(self.name, self.row, self.made_of)

    @property
    def field(self) -> tuple[Any, Any]:
        """The type of its field in a summary, and what that is where there is nothing to tell."""
        return (self.part, []) if get_origin(self.part) is list else (self.part | None, None)
