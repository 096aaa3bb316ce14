"""Released values, `release.json` in a run directory, as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsim.common.errors import InputError
from fedsim.report.summary import AGAIN, read_json
from fedsim.report.tables import TextTable

FILE = "release.json"
_MOST = 200


def released_table(found: Mapping[str, Any]) -> TextTable:
    """A row for each of the first values of `release.json`; its caption says what they are of."""
    rows, spent = found["values"], found["spent"]
    cells = [[row["of"], row["what"], *_texts(row)] for row in rows[:_MOST]]
    if len(rows) > _MOST:
        cells.append(["", f"{len(rows) - _MOST:,} more in {FILE}", "", ""])
    shares = ", ".join(f"{asked} {share:.3g}" for asked, share in spent.items())
    said = [*found["notices"], f"Values are of {found['weighing']} (unit {found['unit']})"]
    caption = ". ".join([*said, f"Shares of mu^2 that were spent: {shares}."])
    return TextTable(caption, ["of", "what", "value", "standard error"], cells)


def _texts(row: Mapping[str, Any]) -> tuple[str, str]:
    """To two digits of the error."""
    value, error, rank = row["value"], row["standard_error"], row["rank_error"]
    if not error:
        step = "" if row["half_step"] is None else f" +- {row['half_step']:.2g}"
        return f"{value:.4g}{step}", "" if rank is None else f"{100 * rank:.2g} % of ranks"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{digits}f}", f"{error:,.{digits}f}"


def read_released(directory: Path | None) -> TextTable | None:
    """The table of a run directory; None where it is of another run, InputError of an earlier version."""
    if directory is None or not (directory / FILE).exists():
        return None
    found = read_json(directory / FILE, AGAIN)
    if not isinstance(found, dict):
        hint = "of an earlier version, whose values do not say what they are of; release them again"
        raise InputError("RUN", str(directory / FILE), hint)
    return released_table(found)
