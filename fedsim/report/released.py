"""Released values, `release.json` in a run directory, as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsim.report.summary import AGAIN, read_json
from fedsim.report.tables import TextTable

FILE = "release.json"
_MOST = 200


def released_table(rows: Sequence[Mapping[str, Any]]) -> TextTable:
    """A row for each of the first values."""
    cells = [
        [row["of"], row["what"], *_texts(row["value"], row["standard_error"], row["rank_error"])]
        for row in rows[:_MOST]
    ]
    if len(rows) > _MOST:
        cells.append(["", f"{len(rows) - _MOST:,} more in {FILE}", "", ""])
    return TextTable("", ["of", "what", "value", "standard error"], cells)


def _texts(value: float, error: float | None, rank: float | None) -> tuple[str, str]:
    """To two digits of the error."""
    if not error:
        return f"{value:.4g}", "" if rank is None else f"{100 * rank:.2g} % of ranks"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{digits}f}", f"{error:,.{digits}f}"


def read_released(directory: Path | None) -> TextTable | None:
    """The table of a run directory; None where it is of another run."""
    there = directory is not None and (directory / FILE).exists()
    return released_table(read_json(directory / FILE, AGAIN)) if directory and there else None
