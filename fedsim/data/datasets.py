"""Data sets as a scenario names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from fedsim.data.model import Config
from fedsim.data.reserve import Reserve
from fedsim.data.schema import ColumnConfig


class Dataset(Config):
    """What every data set can be asked for."""

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


class BreastCancer(Dataset):
    """Breast Cancer Wisconsin (diagnostic): 569 records, 30 features; 0 malignant, 1 benign."""

    name: Literal["breast_cancer"] = Field("breast_cancer", description="The data set's name.")


class Digits(Dataset):
    """Handwritten digits of 8 x 8 pixels: 1,797 records, 64 features; the digit, or odd against even."""

    name: Literal["digits"] = Field("digits", description="The data set's name.")
    task: Literal["digit", "parity"] = Field(
        "digit", description="digit: ten classes; parity: 1 for odd, 0 for even digits."
    )


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
