"""Tables in memory: data frames, and what the library `datasets` reads, under a schema as a file's table."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, PlainSerializer

from fedsim.common.errors import InputError, suggest
from fedsim.common.files import files_below
from fedsim.common.section import arguments
from fedsim.data.csv_table import DATA, TableData
from fedsim.data.dataset import InMemory
from fedsim.data.inspection import no_silo, survey
from fedsim.data.schema import DEFAULTS, Reading, Schema
from fedsim.data.table import ArrowTable, open_table


def as_arrow(given: Any, field: str, names: Collection[str] | None = None) -> Any:
    """A pyarrow.Table of a data frame of pandas or Polars, or of a pyarrow.Table: the columns `names`, by
    default all. InputError on `field` if it is no table, or lacks or repeats one of them.
    """
    import pyarrow as pa

    if hasattr(given, "iloc"):
        known = list(map(str, given.columns))
    else:
        given = given.to_arrow() if hasattr(given, "to_arrow") else given
        if not isinstance(given, pa.Table):
            hint = "must be a data frame of pandas or Polars, or a pyarrow.Table"
            raise InputError(field, type(given).__name__, hint)
        known = given.column_names
    wanted = known if names is None else names
    for name in wanted:
        if known.count(name) != 1:
            hint = f"the table has {known.count(name)} columns of this name"
            hint = hint if name in known else f"the table has no such column; {suggest(name, known)}"
            raise InputError(field, name, hint)
    at = {name: known.index(name) for name in wanted}
    if isinstance(given, pa.Table):
        return pa.table({name: given.column(k) for name, k in at.items()})
    return pa.table({name: arrow_column(given.iloc[:, k]) for name, k in at.items()})


def arrow_column(values: Any) -> Any:
    """A pandas column or a numpy array as Arrow's; one that mixes numbers and texts becomes texts."""
    import pandas as pd
    import pyarrow as pa

    try:
        made = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError):
        texts = [None if gone else str(value) for value, gone in zip(values, pd.isna(values), strict=True)]
        made = pa.array(texts, pa.string())
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])


def _summary(table: Any) -> str:
    """Columns, shape and SHA-256: what stands for a table in a scenario's text and in keys made of it."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    plain = table.replace_schema_metadata(None).combine_chunks()
    with pa.ipc.new_stream(sink, plain.schema) as stream:
        stream.write_table(plain)
    return f"table{table.shape} sha256 {hashlib.sha256(sink.getvalue()).hexdigest()}"


class Frame(InMemory, TableData):
    """A data frame of pandas or Polars, or a pyarrow.Table, with a schema as a file's table has.

    A scenario's text holds its hash, so it cannot be read back. To other processes it travels whole.

    >>> import pandas as pd
    >>> records = {"age": [41, 58, 63, 35], "ward": list("abab"), "ill": ["no", "yes", "yes", "no"]}
    >>> frame = Frame(pd.DataFrame(records), target="ill", silo="ward")
    >>> frame.drafted, frame.columns["age"].lower, frame.columns["age"].upper
    (True, 34.0, 64.0)

    Args:
        table: the records.
        target: column to predict.
        silo: column that names each record's silo; None where a partition divides the records.
        person: column of ids that say whose each record is, for unit person; never a feature.
        schema: {column: {kind: number, lower, upper, scale, fill, encode} or {kind: category, categories,
            fill}}, or a YAML file that holds it; None drafts it from the records, which epsilon does not
            cover, and every report says so.
        options: the fields of `TableData`, `Dataset` and `Reading`: attribute (the column of each record's
            group), attribute_is_feature, missing, scaling, intercept, test_fraction, ...

    Raises:
        InputError: names the argument, the value and what would be right.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: Literal["frame"] = Field("frame", description="The data set's name.")
    table: Annotated[Any, PlainSerializer(_summary, return_type=str, when_used="json")] = Field(repr=False)

    def __init__(
        self,
        table: Any,
        target: str,
        silo: str | None = None,
        schema: Schema | Path | str | None = None,
        *,
        person: str | None = None,
        **options: Any,
    ) -> None:
        import pyarrow as pa

        from fedsim.data.drafting import draft

        arrow = as_arrow(table, "table")
        with arguments():
            reading = Reading(**{key: options[key] for key in Reading.model_fields if key in options})
        opened = ArrowTable("table", arrow)
        for field, column in (("target", target), ("silo", silo), ("person", person)):
            if column is not None:
                opened.require(column, field)
        if silo is not None and (reason := no_silo(survey(opened, silo, reading))):
            raise InputError("silo", silo, reason)
        given: dict[str, Any] = {"table": arrow, "target": target, "silo_column": silo}
        given["person_column"] = person
        if schema is None:
            others = [own for own in opened.names if own != person or own in (target, silo)]
            drafted = draft(ArrowTable("table", pa.table(opened.read(others))), target, silo, reading)
            given |= {"schema": drafted.schema, "drafted": True}
        else:
            given["schema"] = schema
        with arguments():
            super().__init__(**given, **options)

    def opened(self) -> ArrowTable:
        """The frame."""
        return ArrowTable("data", self.table)


class HuggingFace(TableData):
    """A table that the library `datasets` reads: a folder of Parquet or CSV files, or a name on its hub.

    Needs the extra `huggingface`. The library downloads and caches what has a name on the hub by itself.
    """

    name: Literal["huggingface"] = Field("huggingface", description="The data set's name.")
    path: str = Field(description="A folder beside the scenario, or a name on the hub.")
    config: str | None = Field(None, description="Which configuration of a data set that has several.")
    split: str = Field("train", description="Which split: train, test, ..., or train+test.")
    revision: str | None = Field(None, description="Commit of a data set on the hub; it fixes the records.")

    def opened(self) -> ArrowTable:
        """The split, with classes by their names."""
        return ArrowTable(f"{DATA}.path", _loaded(self), f"{self.path} ({self.split})")

    @property
    def files(self) -> dict[str, Path]:
        """The files of a local folder, beside a schema's."""
        folder = Path(self.path)
        found = files_below(folder) if folder.is_dir() else []
        return {**super().files, **{f"path.{file.relative_to(folder)}": file for file in found}}


def _loaded(data: HuggingFace) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        import datasets
    except ModuleNotFoundError:
        hint = "needs the library datasets: pip install 'fedsim-isrl[huggingface]'"
        raise InputError(f"{DATA}.name", data.name, hint) from None
    try:
        found = datasets.load_dataset(data.path, data.config, split=data.split, revision=data.revision)
    except Exception as error:  # its own, the hub's, and a hundred kinds of each reader
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{DATA}.path", data.path, f"`datasets` cannot read it: {reason}") from None
    table = found.with_format("arrow")[:]
    for name, kind in found.features.items():
        if hasattr(kind, "names"):  # classes
            codes = table.column(name)  # a negative one is no class
            some = pc.if_else(pc.less(codes, 0), None, codes)
            column = pc.take(pa.array(kind.names, pa.string()), some)
            table = table.set_column(table.column_names.index(name), name, column)
    return table


FIELD = "table"


def columns_of(given: Any, names: Collection[str], reading: Reading = DEFAULTS) -> Mapping[str, Any]:
    """The named columns as pyarrow.ChunkedArray, all of one length; others are not read.

    `given` is a data frame of pandas or Polars, a pyarrow.Table, a `fedsim.Frame`, the path of a CSV or
    Parquet file, or an array (n, d) whose columns are `names` in their order. InputError if it is none of
    these, or lacks or repeats a column.
    """
    if isinstance(given, str | os.PathLike):
        opened = open_table(Path(given), FIELD, reading)
        for name in names:
            opened.require(name, FIELD)
        return opened.read(names)
    if isinstance(given, np.ndarray):
        if given.ndim != 2 or given.shape[1] != len(names):
            hint = f"must have shape (n, {len(names)}): a column for each that the model needs"
            raise InputError(FIELD, given.shape, hint)
        return {name: arrow_column(given[:, k]) for k, name in enumerate(names)}
    table = as_arrow(given.table if isinstance(given, Frame) else given, FIELD, names)
    return {name: table.column(name) for name in names}
