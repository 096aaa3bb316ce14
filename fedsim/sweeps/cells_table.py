"""A sweep's `cells.parquet`: one row per combination and trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fedsim.common.canonical import canonical, finite
from fedsim.scenario.metric import BY_SKLEARN
from fedsim.sweeps.engine import Results, Row
from fedsim.sweeps.job import Job


def cells_table(job: Job, results: Results) -> pa.Table:
    """Varied and chosen fields as columns, then what was measured."""
    rows = [_row(job, row) for row in results.rows]
    names = list(rows[0]) if rows else []
    return pa.table({name: _column([row[name] for row in rows]) for name in names})


def _row(job: Job, row: Row) -> dict[str, Any]:
    combination, result = job.combinations[row.place.combination], row.result
    picked = combination.candidates[row.place.candidate].chosen
    return {
        **{field: combination.varied.get(field) for field in job.varied},
        **{field: picked.get(field) for field in job.tuned},
        "private": combination.private,
        "trial": row.place.trial,
        "error": result.error,
        "loss": result.loss,
        **{name: result.more[name] for name in BY_SKLEARN if name in result.more},
        "epsilon_guaranteed": finite(result.epsilon),
        "worst_silo": result.silo if combination.private else None,
        "noise_multiplier": result.noise_multiplier,
        "seconds": result.seconds,
        "cached": row.cached,
        "key": row.key,
    }


def _column(values: Sequence[Any]) -> pa.Array:
    """Values of one type as they are; whole sections, and a mixture, as texts."""
    try:
        if not any(isinstance(value, dict | list) for value in values):
            return pa.array(values)
    except pa.ArrowException:
        pass
    return pa.array([v if v is None or isinstance(v, str) else canonical(v) for v in values], pa.string())
