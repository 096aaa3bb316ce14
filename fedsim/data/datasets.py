"""Data sets as a scenario names them: ours, and those of the entry point group `fedsim.data_sets`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag

from fedsim.common.errors import InputError
from fedsim.common.plugins import extended
from fedsim.data.model import Config
from fedsim.data.reserve import Reserve
from fedsim.data.schema import ColumnConfig

if TYPE_CHECKING:
    from fedsim.data.source import Source


class Dataset(Config, ABC):
    """What every data set can be asked for."""

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """The name that a scenario chooses it by: in a subclass a field with one literal value."""

    intercept: bool = Field(True, description="Append a feature that is 1 in every record.")
    scaling: Literal["declared", "none", "training_statistics"] = Field(
        "declared",
        description="declared: map features by declared ranges to [-1, 1]; none: leave them as they are; "
        "training_statistics: standardise by all silos' pooled training records, which is not private "
        "(simulation only).",
    )
    pca: int | None = Field(
        None,
        ge=1,
        description="Keep so many principal components of the scaled features, fitted on all silos' pooled "
        "training records, which is not private (simulation only).",
    )
    test_fraction: float = Field(0.2, gt=0, lt=1, description="Part of each silo's records kept for testing.")
    reserve: Reserve | None = Field(
        None, description="Records that each silo puts aside once and for all, to tune with; default none."
    )

    @abstractmethod
    def open(self) -> Source:
        """The records, with nothing read but the header of a table."""


class BreastCancer(Dataset):
    """Breast Cancer Wisconsin (diagnostic): 569 records, 30 features; 0 malignant, 1 benign."""

    name: Literal["breast_cancer"] = Field("breast_cancer", description="The data set's name.")

    def open(self) -> Source:
        """See `fedsim.data.breast_cancer`."""
        from fedsim.data.breast_cancer import BreastCancerSource

        return BreastCancerSource()


class Digits(Dataset):
    """Handwritten digits of 8 x 8 pixels: 1,797 records, 64 features; the digit, or odd against even."""

    name: Literal["digits"] = Field("digits", description="The data set's name.")
    task: Literal["digit", "parity"] = Field(
        "digit", description="digit: ten classes; parity: 1 for odd, 0 for even digits."
    )

    def open(self) -> Source:
        """See `fedsim.data.digits`."""
        from fedsim.data.digits import DigitsSource

        return DigitsSource(self)


class Synthetic(Dataset):
    """A generalised linear model with features uniform on [-1, 1] and a known population optimum."""

    name: Literal["synthetic"] = Field("synthetic", description="The data set's name.")
    link: Literal["logistic", "linear", "softmax"] = Field(
        "logistic", description="How features set the target."
    )
    rows: int = Field(1000, ge=1, description="Records in all silos together.")
    features: int = Field(10, ge=1, description="Features, the intercept not counted.")
    classes: int = Field(3, ge=2, description="Classes (softmax only).")
    noise: float = Field(0.1, ge=0, description="Standard deviation of the target's noise (linear only).")
    seed: int = Field(0, ge=0, description="Seed of parameters and records, apart from the scenario's seed.")

    def open(self) -> Source:
        """See `fedsim.data.synthetic`."""
        from fedsim.data.synthetic import SyntheticSource

        return SyntheticSource(self)


def _schema_form(value: Any) -> str:
    return "inline" if isinstance(value, Mapping) else "file"


SchemaConfig = Annotated[
    Annotated[dict[str, ColumnConfig], Tag("inline")] | Annotated[Path, Tag("file")],
    Discriminator(_schema_form),
]


class Csv(Dataset):
    """Your own CSV or Parquet table, with a declared schema: ranges, categories and fill values."""

    name: Literal["csv"] = Field("csv", description="The data set's name.")
    path: Path = Field(description="A CSV file with a header line, or a Parquet file.")
    target: str = Field(description="Column to predict; must be in the schema.")
    silo_column: str | None = Field(None, description="Column that names each record's silo.")
    columns: SchemaConfig = Field(
        alias="schema",
        description="Column name to {kind: number, lower, upper, scale, fill} or "
        "{kind: category, categories, fill}, for the features and the target; or "
        "the path of a YAML file that holds this mapping.",
    )

    def open(self) -> Source:
        """See `fedsim.data.csv_source`."""
        from fedsim.data.csv_source import CsvSource

        return CsvSource(self)


GROUP = "fedsim.data_sets"
OWN: dict[str, type[Dataset]] = {
    "breast_cancer": BreastCancer,
    "digits": Digits,
    "synthetic": Synthetic,
    "csv": Csv,
}


@cache
def data_sets() -> dict[str, type[Dataset]]:
    """{scenario name: model}; another distribution's class derives from `Dataset`.

    Raises:
        InputError: names the distribution whose entry point does not load, takes a name twice, or has a class
            whose field `name` is not the literal name of the entry point.
    """
    found = extended(GROUP, OWN, Dataset)  # type: ignore[type-abstract]
    for name, kind in found.items():
        field = kind.model_fields.get("name")
        if field is None or get_args(field.annotation) != (name,) or field.default != name:
            expected = f"needs the field  name: Literal[{name!r}] = {name!r}"
            raise InputError(f"entry point {GROUP}:{name}", kind.__qualname__, expected)
        if absent := sorted(kind.__abstractmethods__):
            expected = f"a class with the method {', '.join(absent)}"
            raise InputError(f"entry point {GROUP}:{name}", kind.__qualname__, expected)
    return found
