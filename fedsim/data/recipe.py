"""Recipes: how a table's columns become a model's features. A model is kept with its recipe.

A recipe has public constants alone: names, declared ranges, categories, fill values. What a simulation fits
on all silos' pooled training records stands apart, in `Fitted`, and is not private.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.data.column_values import Cells, features_of
from fedsim.data.csv_table import TableData
from fedsim.data.dataset import Dataset, Scaling
from fedsim.data.fitted import Components, Standard
from fedsim.data.prepare import Preparation
from fedsim.data.schema import (
    DEFAULTS,
    SCHEMA,
    CategoryColumn,
    Input,
    MeasuredColumn,
    NumberColumn,
    Reading,
    names_of,
    ranges_of,
    read_schema,
)
from fedsim.data.source import Design, Floats, Matrix, Ranges, Source
from fedsim.data.transform import Transform


class Recipe(Section):
    """How columns become features, and scores become predictions."""

    columns: dict[str, Input] = Field(description="What features are made of, in their order.")
    target: str = Field(description="Name of the target.")
    predicts: Input = Field(description="Its classes, or the range by which a number is scaled.")
    scaling: Scaling
    intercept: bool
    pca: int | None = None
    record_norm: float | None = None
    transform: Transform | None = None
    reading: Reading = Field(DEFAULTS, description="How tables are read, and what means no value.")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the target's classes; none for a number."""
        return self.predicts.categories if isinstance(self.predicts, CategoryColumn) else ()

    @property
    def num_features(self) -> int:
        """Features of a prepared record, the constant one included."""
        width = len(self._made)
        if self.transform is not None:
            return self.transform.width(width) + self.intercept
        return (self.pca or width) + self.intercept

    @property
    def names(self) -> list[str]:
        """Names of the prepared features: column, or column=category; `1` is the constant feature."""
        made = self._made
        if self.transform is not None:
            made = self.transform.names(len(made))
        components = [f"component_{k}" for k in range(self.pca or 0)]
        return [*(components or made), *(["1"] if self.intercept else [])]

    @property
    def _made(self) -> list[str]:
        """Names of the features that the columns become."""
        return [each for name, kind in self.columns.items() for each in names_of(name, kind, self.intercept)]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A recipe and the numbers that a simulation fitted for it, if it needs any."""

    recipe: Recipe
    standard: Standard | None = None
    components: Components | None = None

    @cached_property
    def preparation(self) -> Preparation:
        """The preparation of these columns: the same code as in training."""
        recipe, predicts = self.recipe, self.recipe.predicts
        return Preparation(
            recipe.scaling,
            recipe.intercept,
            ranges_of(recipe.columns.values(), recipe.intercept),
            ranges_of([predicts]) if isinstance(predicts, NumberColumn) else None,
            recipe.record_norm,
            recipe.transform,
            self.standard,
            self.components,
        )

    def features(self, table: Any) -> Floats:
        """Prepared features (n, d) of a table's records (`columns_of`), in their order. InputError names the
        wrong column and row; or each silo's records were scaled by themselves.
        """
        if self.recipe.scaling == "silo_statistics":
            hint = "each silo's records were scaled by their own statistics, and these records are no silo's"
            raise InputError("model", "scaling: silo_statistics", f"cannot be used: {hint}")
        from fedsim.data.frame import columns_of  # of records to predict

        return self.of_columns(columns_of(table, self.recipe.columns, self.recipe.reading))

    def of_columns(self, found: Mapping[str, Any], reading: Reading | None = None) -> Floats:
        """The same of columns, a pyarrow.ChunkedArray each; `reading` says what means no value."""
        columns, reading = self.recipe.columns, reading or self.recipe.reading
        rows = np.arange(len(found[next(iter(columns))]))
        cells = {name: Cells(found[name], rows, f"table.{name}", reading) for name in columns}
        return self.preparation.features(features_of(columns, cells, self.recipe.intercept))


def recipe_of(data: Dataset, source: Source, design: Design) -> Recipe:
    """The recipe of what `prepare` does to records of this source; InputError if its ranges are invalid."""
    return _of_schema(data) if isinstance(data, TableData) else _of_source(data, source, design)


_PUBLIC = ("breast_cancer", "cifar10", "digits", "mnist", "synthetic", "visits")


def declared_recipe(data: Dataset, num_features: int, num_classes: int) -> Recipe | None:
    """The recipe that needs no record: from a declared schema, whose file alone is opened, or from a public
    data set. None where nothing is declared, or it does not fit what silos state of prepared records.
    """
    try:
        if isinstance(data, TableData):
            made = _of_schema(data)
        elif data.name in _PUBLIC:
            source, nothing = data.open(), np.zeros(0, dtype=np.int64)
            assert isinstance(source, Matrix)
            design = Design(np.zeros((0, source.num_features)), source.ranges, nothing, None)
            made = _of_source(data, source, design)
        else:
            return None
    except InputError:  # the schema's file is elsewhere; no recipe is needed then
        return None
    return made if (made.num_features, len(made.classes)) == (num_features, num_classes) else None


def _of_schema(data: TableData) -> Recipe:
    schema = read_schema(data.columns)
    if data.target not in schema:
        raise InputError(SCHEMA, data.target, "the target needs an entry in the schema too")
    return _recipe(data, data.features_in(schema), data.target, schema[data.target])


def _of_source(data: Dataset, source: Source, design: Design) -> Recipe:
    names = feature_names(source, len(design.ranges.lower))
    columns = dict(zip(names, _inputs(names, design.ranges), strict=True))
    predicts: Input = MeasuredColumn()
    if source.num_classes:
        predicts = CategoryColumn(kind="category", categories=_classes(source, design))
    elif design.target_range is not None:
        predicts = next(_inputs([source.target], design.target_range))
    return _recipe(data, columns, source.target, predicts)


def _recipe(data: Dataset, columns: dict[str, Input], target: str, predicts: Input) -> Recipe:
    options = ("scaling", "intercept", "pca", "record_norm", "transform")
    own: dict[str, Any] = {option: value for option, value in data if option in options}
    if isinstance(data, Reading):
        own["reading"] = Reading(**{name: value for name, value in data if name in Reading.model_fields})
    return Recipe(columns=columns, target=target, predicts=predicts, **own)


def feature_names(source: Source, count: int) -> list[str]:
    """The source's own names of its features; x0, x1, ... where they do not fit their number."""
    names = list(dict.fromkeys(source.feature_names))
    return names if len(names) == count else [f"x{j}" for j in range(count)]


def _inputs(names: Sequence[str], made: Ranges) -> Iterator[Input]:
    for name, *ends, log, numeric in zip(names, made.lower, made.upper, made.log, made.numeric, strict=True):
        if not numeric or not np.isfinite(ends).all():
            yield MeasuredColumn() if numeric else MeasuredColumn(scaled=False)
            continue
        lower, upper = map(float, ends)
        try:
            yield NumberColumn(kind="number", lower=lower, upper=upper, scale="log" if log else "linear")
        except ValidationError as error:
            hint = error.errors()[0]["msg"]
            raise InputError(f"scenario.data: range of {name}", [lower, upper], hint) from None


def _classes(source: Source, design: Design) -> tuple[str, ...]:
    """The source's names of the target's classes; those of its labels where these are the same classes."""
    if isinstance(source, Matrix):
        return source.classes
    labels = source.labels(source.target, "scenario.data")
    same = len(labels.names) == source.num_classes and np.array_equal(labels.codes, design.target)
    return labels.names if same else source.classes
