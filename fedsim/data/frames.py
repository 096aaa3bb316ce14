"""Records that somebody has in memory, as a table's columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest

FIELD = "table"


def columns_of(given: Any, names: Collection[str]) -> Mapping[str, Any]:
    """The named columns as pyarrow.ChunkedArray, all of one length.

    Args:
        given: a pandas.DataFrame, a pyarrow.Table, or an array (n, d) whose columns are `names` in order.
        names: what is needed.

    Raises:
        InputError: it is none of these, or a column is missing or there twice.
    """
    import pandas as pd
    import pyarrow as pa

    if isinstance(given, np.ndarray):
        return _of_array(given, names)
    if isinstance(given, pa.Table):
        known, take = given.column_names, given.column
    elif isinstance(given, pd.DataFrame):
        known, take = list(given.columns), lambda place: _arrow(given.iloc[:, place])
    else:
        kinds = "a pandas.DataFrame, a pyarrow.Table or an array (n, d)"
        raise InputError(FIELD, type(given).__name__, f"must be {kinds}")
    for name in names:
        if known.count(name) != 1:
            raise InputError(FIELD, name, _wrong(name, known))
    return {name: take(known.index(name)) for name in names}


def _wrong(name: str, known: list[str]) -> str:
    if name in known:
        return f"the table has {known.count(name)} columns of this name"
    return f"the model needs this column, and the table has none; {suggest(name, map(str, known))}"


def _of_array(given: np.ndarray[Any, Any], names: Collection[str]) -> Mapping[str, Any]:
    import pyarrow as pa

    if given.ndim != 2 or given.shape[1] != len(names):
        expected = f"must have shape (n, {len(names)}): a column for each that the model needs"
        raise InputError(FIELD, given.shape, expected)
    return {name: pa.chunked_array([pa.array(own)]) for name, own in zip(names, given.T, strict=True)}


def _arrow(column: Any) -> Any:
    """A DataFrame's column, also one that holds numbers beside texts."""
    import pandas as pd
    import pyarrow as pa

    try:
        made = pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError):
        texts = [
            None if missing else str(value) for value, missing in zip(column, pd.isna(column), strict=True)
        ]
        made = pa.array(texts, pa.string())
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])
