"""Tables under a declared schema, and the data set `csv`: a user's own file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag

from fedsim.common.errors import InputError, suggest
from fedsim.common.files import data_folder
from fedsim.common.section import Section
from fedsim.data.column_values import Cells, features_of, is_number
from fedsim.data.dataset import Dataset, Download
from fedsim.data.schema import (
    SCHEMA,
    SILO,
    CategoryColumn,
    Input,
    Label,
    NumberColumn,
    Reading,
    Schema,
    SchemaOrFile,
    levels_of,
    names_of,
    of_hats,
    ranges_of,
    read_schema,
)
from fedsim.data.source import NO_LABEL, Design, Floats, Ints, Labels, Source, require_labels, whole_numbers
from fedsim.data.table import JoinedTable, Table, open_table

DATA = "scenario.data"
DRAFTED = (
    "ranges were read from the records: not covered by epsilon, until a person has confirmed the schema and "
    "deleted `drafted: true`"
)
"""Stands in every report of a run with a drafted schema."""
_Several = Annotated[dict[Label, Path], Field(min_length=1)]
OneOrSeveral = Annotated[
    Annotated[Path, Tag("one")] | Annotated[_Several, Tag("several")],
    Discriminator(lambda value: "several" if isinstance(value, Mapping) else "one"),
]


class Origin(Section):
    """Where a table's file is published, and its checksum."""

    url: str = Field(
        pattern="^https?://", description="Of the file, or of the zip or tar file that it is in."
    )
    sha256: str = Field(
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the content of the file at `path`: with a member, of the member and not of "
        "the zip or tar file; where `path` ends in .gz, of the uncompressed content.",
    )
    member: str | None = Field(None, min_length=1, description="The file's name in the zip or tar file.")


class TableData(Reading, Dataset, ABC):
    """A table of named columns with a declared schema: ranges, categories and fill values."""

    target: str = Field(description="Column to predict; must be in the schema.")
    silo_column: str | None = Field(
        None, description="Column that names each record's silo; of several files, what to call it (silo)."
    )
    person_column: str | None = Field(
        None,
        description="Column of ids that say whose each record is, for unit person; never a feature. Ids are "
        "compared as exact texts, and no record may lack one.",
    )
    attribute: str | None = Field(
        None,
        description="Column whose value is each record's group, to measure fairness by: a category column of "
        "the schema. A record without a value is in no group, whatever the column's fill.",
    )
    attribute_is_feature: bool = Field(
        True, description="false: the attribute is no feature, also of records to predict."
    )
    drafted: bool = Field(
        False,
        description="true: the schema was read from the records, as `fedsim init` does, and no person has "
        "confirmed it; every report says so, and a deployed silo refuses it.",
    )
    columns: SchemaOrFile = Field(
        alias="schema",
        description="Column name to {kind: number, lower, upper, scale, fill, encode} or "
        "{kind: category, categories, fill}, for the features and the target; or "
        "the path of a YAML file that holds this mapping.",
    )

    def open(self) -> Source:
        """Reads the header and the schema; InputError where they do not fit together."""
        return _TableSource(self, self.opened())

    @abstractmethod
    def opened(self) -> Table:
        """The columns."""

    def features_in(self, schema: Schema) -> dict[str, Input]:
        """The columns that features are made of, in the schema's order."""
        others = (self.target, None if self.attribute_is_feature else self.attribute)
        return {name: column for name, column in schema.items() if name not in others}

    @property
    def names_silos(self) -> bool:
        """Whether a column names each record's silo."""
        return self.silo_column is not None

    @property
    def notices(self) -> list[str]:
        """That the schema is a draft, where it is one."""
        return [DRAFTED] if self.drafted else []

    @property
    def not_private(self) -> list[str]:
        """A notice that the schema counts as public or is a draft, beside those of every data set."""
        public = "the schema: its ranges, categories and fill values count as public, so take them from "
        return [*super().not_private, *(self.notices or [public + "documentation, not from the data"])]

    def check_alone(self, section: str) -> None:
        """As every data set; and refuse a schema that is made of the records."""
        super().check_alone(section)
        if self.drafted:
            hint = "the schema was read from records, which no budget covers: compare its ranges, categories "
            hint += "and fill values with documentation that holds for every silo, then delete this line"
            raise InputError(f"{section}.drafted", True, hint)


class Csv(TableData):
    """Your own CSV or Parquet table, with a declared schema: ranges, categories and fill values."""

    name: Literal["csv"] = Field("csv", description="The data set's name.")
    path: OneOrSeveral = Field(
        description="A CSV file with a header line, or a Parquet file; or a file for each silo, by its name."
    )
    origin: Origin | None = Field(
        None,
        description="From where the file is downloaded where it is missing: {url, sha256, member}; and what "
        "must be in it.",
    )

    def opened(self) -> Table:
        """The file, or several one after another."""
        if isinstance(self.path, Path):
            return open_table(self.path, f"{DATA}.path", self)
        return JoinedTable(self.path, self.silo_column or SILO, f"{DATA}.path", self)

    @property
    def downloads(self) -> tuple[Download, ...]:
        """The table's file, if it has an origin; InputError if `path` names several files, or if the file is
        missing outside the data folder, the only place where a scenario may write.
        """
        if self.origin is None:
            return ()
        if not isinstance(self.path, Path):
            raise InputError(f"{DATA}.origin", self.origin.url, "only of one file; path names several")
        if not self.path.exists() and not self.path.resolve().is_relative_to(data_folder().resolve()):
            hint = f"is not there, and is downloaded only into the data folder {data_folder()}"
            raise InputError(f"{DATA}.path", str(self.path), f"{hint}: give a name without folders above it")
        return (Download(self.path, (self.origin.url,), self.origin.sha256, self.origin.member),)


class _TableSource(Source):
    """Reads single columns when a partition needs them.

    `design` reads the schema's columns, and interprets and checks the cells of the rows asked for alone.
    """

    def __init__(self, data: TableData, table: Table) -> None:
        self._schema = read_schema(data.columns)
        self._table, self._reading = table, data
        self.target, self.silo_column = data.target, data.silo_column
        self.person_column, self._attribute = data.person_column, data.attribute
        if isinstance(data, Csv) and not isinstance(data.path, Path):
            self.silo_column = data.silo_column or SILO
        self.columns = self._table.names
        self._check()
        self._check_hats(data)
        self._features, self._intercept = data.features_in(self._schema), data.intercept
        self.num_features = len(self.feature_names)
        self.num_classes = len(self.classes)
        self.recoded = data.intercept and any(map(levels_of, self._features.values()))
        if not data.attribute_is_feature and self._attribute is None:
            hint = "says so of an attribute: name its column (attribute), or leave this out"
            raise InputError(f"{DATA}.attribute_is_feature", False, hint)
        if self.num_classes == 1:
            hint = "a target needs at least two categories"
            raise InputError(f"{SCHEMA}.{self.target}", self.target, hint)
        if not self._features:
            beside = "the target" if data.attribute_is_feature else "the target and the attribute"
            hint = f"declare at least one feature column beside {beside}"
            raise InputError(SCHEMA, list(self._schema), hint)

    def _check(self) -> None:
        self._table.require(self.target, f"{DATA}.target")
        if self.silo_column is not None:
            self._table.require(self.silo_column, f"{DATA}.silo_column")
        for name in self._schema:
            self._table.require(name, f"{SCHEMA}.{name}")
        if self.target not in self._schema:
            hint = suggest(self.target, self._schema)
            raise InputError(SCHEMA, self.target, f"the target needs an entry in the schema too; {hint}")
        if self.person_column is not None:
            self._table.require(self.person_column, f"{DATA}.person_column")
            uses: dict[str | None, str] = dict.fromkeys(self._schema, "a feature in the schema")
            uses |= {self.target: "the target", self.silo_column: "the silos' names"}
            if use := uses.get(self.person_column):
                hint = f"is {use}; ids say whose a record is and nothing else: name a column of their own"
                raise InputError(f"{DATA}.person_column", self.person_column, hint)
        if self._attribute is not None:
            self.groups = self._declared_groups(self._attribute, f"{DATA}.attribute")

    def _check_hats(self, data: TableData) -> None:
        for name, column in of_hats(self._schema).items():
            field, given = f"{SCHEMA}.{name}.encode", column.model_dump(exclude_none=True)["encode"]
            if name == self.target:
                raise InputError(field, given, "is of features, and this is the target: leave it out")
            if data.scaling != "declared":
                hint = f"goes with scaling: declared, not {data.scaling}: knots are of the declared range"
                raise InputError(field, given, hint)

    def _declared_groups(self, name: str, field: str) -> tuple[str, ...]:
        uses = {self.target: "the target", self.silo_column: "the silos' names", self.person_column: "ids"}
        column = self._schema.get(name)
        if name in uses:
            raise InputError(field, name, f"is {uses[name]}; a group is another value: name its column")
        if column is None:
            raise InputError(field, name, f"needs an entry in the schema; {suggest(name, self._schema)}")
        if not isinstance(column, CategoryColumn) or len(column.categories) < 2:
            raise InputError(field, name, "groups need a column of kind: category, of two categories or more")
        return column.categories

    def ids(self) -> list[str] | None:
        """Only this column is read."""
        if self.person_column is None:
            return None
        cells = replace(self._cells(self.person_column, DATA), field=f"{DATA}.person_column")
        return cells.ids(self.person_column)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Column names in the schema's order; a category column has one for each of its features."""
        kinds = self._features.items()
        return tuple(made for name, kind in kinds for made in names_of(name, kind, self._intercept))

    @property
    def squared_norms(self) -> tuple[float, float]:
        """The sums over the columns: of different ones, each may be at its largest."""
        norms = [column.squared_norms(self._intercept) for column in self._features.values()]
        return sum(largest for largest, _ in norms), sum(typical for _, typical in norms)

    @property
    def classes(self) -> tuple[str, ...]:
        target = self._schema[self.target]
        return target.categories if isinstance(target, CategoryColumn) else ()

    @cached_property
    def num_rows(self) -> int:  # type: ignore[override]
        return self._table.num_rows

    def keys(self, column: str, field: str) -> Floats:
        """Numbers, or positions of declared categories; without a declaration, numbers if all texts are, else
        positions in text order."""
        declared = self._schema.get(column)
        if isinstance(declared, NumberColumn):
            values = self._cells(column, SCHEMA).finite()
            require_labels(np.where(np.isnan(values), NO_LABEL, 0), column, field)
            return values
        labels = self.labels(column, field)
        require_labels(labels.codes, column, field)
        numbers = None if declared else _numbers(labels.names)
        return labels.codes.astype(np.float64) if numbers is None else numbers[labels.codes]

    def labels(self, column: str, field: str) -> Labels:
        """Declared categories; outside the schema the column's own texts. Nothing is filled."""
        declared = self._schema.get(column)
        if declared is None:
            return _labels(self._cells(column, DATA).names())
        cells = self._cells(column, SCHEMA)
        if isinstance(declared, CategoryColumn):
            return Labels(cells.places(declared), declared.categories)
        return whole_numbers(cells.finite(), column, field)

    def _cells(self, column: str, field: str) -> Cells:
        values = self._table.read([column])[column]
        return self._of(column, values, np.arange(len(values)), field)

    def _of(self, column: str, values: Any, rows: Ints, field: str = SCHEMA) -> Cells:
        field = f"{field}.{column}"
        return Cells(values, rows, field, self._reading, self._table.place, column == self._attribute)

    def design(self, rows: Ints) -> Design:
        found = self._table.read(self._schema)
        cells = {name: self._of(name, values.take(rows), rows) for name, values in found.items()}
        groups, declared = None, self._schema.get(name := self._attribute or "")
        if isinstance(declared, CategoryColumn):
            groups = Labels(cells[name].places(declared), declared.categories)
        features = features_of(self._features, cells, self._intercept)
        ranges, target = ranges_of(self._features.values(), self._intercept), self._schema[self.target]
        curved = of_hats(self._features).items()
        encoded = {name: (cells[name].numbers(kind), ranges_of([kind.straight])) for name, kind in curved}
        if isinstance(target, NumberColumn):
            numbers = cells[self.target].numbers(target)
            return Design(features, ranges, numbers, ranges_of([target]), groups, encoded)
        return Design(features, ranges, cells[self.target].codes(target), None, groups, encoded)


def _labels(texts: Sequence[str | None]) -> Labels:
    present = {text for text in texts if text is not None}
    numeric = _numbers(tuple(present)) is not None
    found = sorted(present, key=lambda text: (float(text) if numeric else 0.0, text))
    place: dict[str | None, int] = {text: code for code, text in enumerate(found)}
    return Labels(np.array([place.get(text, NO_LABEL) for text in texts], dtype=np.int64), tuple(found))


def _numbers(texts: Sequence[str]) -> Floats | None:
    numbers = np.array([float(text) if is_number(text) else np.nan for text in texts])
    return numbers if np.isfinite(numbers).all() else None
