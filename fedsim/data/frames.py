"""Records that somebody wants predicted, in memory or in a file, as a table's columns."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.data.reading import DEFAULTS, Reading
from fedsim.data.table import open_table

FIELD = "table"


def columns_of(given: Any, names: Collection[str], reading: Reading = DEFAULTS) -> Mapping[str, Any]:
    """The named columns as pyarrow.ChunkedArray, all of one length; others are not read.

    Args:
        given: a pandas.DataFrame, the path of a CSV or Parquet file, or an array (n, d) whose columns are
            `names` in their order.
        names: what is needed.
        reading: how a file is read.

    Raises:
        InputError: it is none of these, or a column is missing or there twice.
    """
    import pandas as pd

    if isinstance(given, str | os.PathLike):
        return _of_file(Path(given), names, reading)
    if isinstance(given, np.ndarray):
        given = _framed(given, names)
    if not isinstance(given, pd.DataFrame):
        expected = "must be a pandas.DataFrame, the path of a table or an array (n, d)"
        raise InputError(FIELD, type(given).__name__, expected)
    known = list(map(str, given.columns))
    for name in names:
        if known.count(name) != 1:
            raise InputError(FIELD, name, _wrong(name, known))
    return {name: _arrow(given.iloc[:, known.index(name)]) for name in names}


def _of_file(path: Path, names: Collection[str], reading: Reading) -> Mapping[str, Any]:
    opened = open_table(path, FIELD, reading)
    for name in names:
        opened.require(name, FIELD)
    return opened.read(names)


def _framed(given: np.ndarray[Any, Any], names: Collection[str]) -> Any:
    import pandas as pd

    if given.ndim != 2 or given.shape[1] != len(names):
        expected = f"must have shape (n, {len(names)}): a column for each that the model needs"
        raise InputError(FIELD, given.shape, expected)
    return pd.DataFrame(given, columns=list(names))


def _wrong(name: str, known: list[str]) -> str:
    if name in known:
        return f"the table has {known.count(name)} columns of this name"
    return f"the model needs this column, and the table has none; {suggest(name, known)}"


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
