"""Points of a comparison, and a CSV file of published ones: series, epsilon, error[, low, high].

In place of `error` a column has the name of whichever metric is compared.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from fedsim.common.errors import InputError

REQUIRED, OPTIONAL = ("series", "epsilon"), ("low", "high")
_FIELD = "--points"


@dataclass(frozen=True)
class Compared:
    """One mean: whose, at which epsilon (None: without privacy or unknown), and its 90 % interval.

    `trials` is None for a published point; series of one `family` look alike.
    """

    source: str
    series: str
    epsilon: float | None
    value: float
    low: float | None
    high: float | None
    trials: int | None
    family: str = ""


def read_points(path: Path, metric: str) -> list[Compared]:
    """The file's rows, with values of that metric. An empty epsilon means without privacy.

    Raises:
        InputError: names the file, the line and what would be right.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for name in (*REQUIRED, metric):
                if name not in (reader.fieldnames or []):
                    columns = f"columns are {', '.join((*REQUIRED, metric, *OPTIONAL))}"
                    raise InputError(_FIELD, str(path), f"has no column {name!r}; {columns}")
            rows = [_row(path, reader.line_num, row, metric) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a CSV file"
        raise InputError(_FIELD, str(path), f"cannot be read ({reason})") from None
    if not rows:
        raise InputError(_FIELD, str(path), "has a header and no points")
    return rows


def _row(path: Path, line: int, row: dict[str, str | None], metric: str) -> Compared:
    value = _number(path, line, metric, row.get(metric))
    if value is None:
        raise InputError(f"{path.name} line {line}, {metric}", row.get(metric), "a number is required")
    epsilon, low, high = (_number(path, line, name, row.get(name)) for name in ("epsilon", "low", "high"))
    if epsilon is not None and epsilon <= 0:
        raise InputError(f"{path.name} line {line}, epsilon", epsilon, "above 0, or empty for no privacy")
    if not (low if low is not None else value) <= value <= (high if high is not None else value):
        raise InputError(
            f"{path.name} line {line}, {metric}", value, f"between low and high, {low} and {high}"
        )
    return Compared(path.name, row.get("series") or path.stem, epsilon, value, low, high, None)


def _number(path: Path, line: int, name: str, text: str | None) -> float | None:
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise InputError(f"{path.name} line {line}, {name}", text, "a finite number")
    return value
