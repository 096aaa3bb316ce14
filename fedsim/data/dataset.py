"""The interface of a data set: its settings, files, and notices of what the guarantee does not cover."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.data.source import Source
from fedsim.data.transform import Transform

Scaling = Literal["declared", "none", "training_statistics", "silo_statistics"]

IGNORED = "at a privacy cost that is ignored"  # ends every notice about preparation fitted on records
FITTED_SCALINGS = (
    "training_statistics: standardise by all silos' pooled training records; silo_statistics: standardise "
    "each silo's records, training and test together, by themselves. Neither is private (simulation only)."
)


@dataclass(frozen=True)
class Download:
    """A file, where it is published, and what must be in it."""

    path: Path  # where it is kept
    urls: tuple[str, ...]  # of the file, or of the archive that it is in; tried in this order
    sha256: str | None  # of its content (`fedsim.data.fetch`); None where only the archive's is known
    member: str | None = None  # its name in the archive, a zip or a tar file
    archive_sha256: str | None = None  # of the archive's bytes
    size: int | None = None  # its bytes, where they are known

    @property
    def archive(self) -> Path:
        """A copy of the archive here, beside the file, is used instead of a download."""
        name = Path(urlsplit(self.urls[0]).path).name
        return self.path.with_name(name if name.strip(".") else "archive")


class Reserve(Section):
    """Part of each silo's records that is put aside, the same in every trial."""

    fraction: float = Field(gt=0, lt=1, description="part of each silo's records that is put aside")
    use: Literal["rest", "reserved"] = Field(
        "rest",
        description="rest: run without what is put aside; reserved: on it alone, half to train, half to test",
    )


class Dataset(Section, ABC):
    """The `data` section of a scenario; another distribution's data set derives from it."""

    if TYPE_CHECKING:
        name: str  # by which a scenario chooses it; in a subclass a field with one literal value

    images: ClassVar[bool] = False  # whether records may be images, pixel by pixel

    intercept: bool = Field(True, description="Append a feature that is 1 in every record.")
    scaling: Scaling = Field(
        "declared",
        description="declared: map features by declared ranges to [-1, 1]; none: leave them as they are; "
        + FITTED_SCALINGS,
    )
    transform: Transform | None = Field(
        None,
        description="Turn images, once scaled, into coefficients of low frequency. A function of the record "
        "alone, so the guarantee covers it.",
    )
    pca: int | None = Field(
        None,
        ge=1,
        description="Keep so many principal components of the scaled features, fitted on all silos' pooled "
        "training records, which is not private (simulation only).",
    )
    preprocessing_cost: Literal["ignored"] | None = Field(
        None,
        description="ignored: what scaling or pca fit on records they fit without noise, and the guarantee "
        "leaves it out; must be said where they do.",
    )
    record_norm: float | None = Field(
        None,
        ge=1e-6,
        le=1e6,
        description="Scale each record's features, after scaling, transform or PCA and before the intercept, "
        "to this L2 norm; a record of zeros stays. A function of the record alone: the guarantee covers it.",
    )
    test_fraction: float = Field(0.2, ge=0, lt=1, description="Part of each silo's records kept for testing.")
    reserve: Reserve | None = Field(
        None, description="Records that each silo puts aside once and for all, to tune with; default none."
    )

    @abstractmethod
    def open(self) -> Source:
        """Open the records; of a table, only the header is read."""

    @property
    def pools_records(self) -> bool:
        """Whether preparing one silo's records uses other silos' records, or steps outside the account."""
        return bool(self.fitted)

    @property
    def fitted(self) -> dict[str, str]:
        """{field: description} of preparation that is fitted on records without noise."""
        found = dict[str, str]()
        if self.scaling == "training_statistics":
            found["scaling"] = "features were scaled by statistics of the training records"
        if self.scaling == "silo_statistics":
            found["scaling"] = "each silo's features were scaled by statistics of its own records"
        if self.pca is not None:
            found["pca"] = "features were reduced to principal components of the training records"
        return found

    @property
    def fitted_values(self) -> dict[str, Any]:
        """{field: its value} of that preparation."""
        return {field: value for field, value in self if field in self.fitted}

    def check(self) -> None:
        """Require `preprocessing_cost: ignored` where preprocessing is fitted on records without noise."""
        if self.fitted and self.preprocessing_cost is None:
            options = " and ".join(f"{field}: {value}" for field, value in self.fitted_values.items())
            hint = f"say `preprocessing_cost: ignored`, since {options} is fitted on records without noise, "
            hint += "which the guarantee leaves out; or leave that out"
            raise InputError("scenario.data.preprocessing_cost", None, hint)

    def check_alone(self, section: str) -> None:
        """InputError on the field of `section` that keeps a silo from preparing its records by itself."""
        for field, value in self.fitted_values.items():
            hint = "is fitted on records without noise, which exists in simulation only; use declared ranges"
            raise InputError(f"{section}.{field}", value, hint)
        if self.pools_records:
            hint = "takes all silos' records together, which exists in simulation only"
            raise InputError(f"{section}.name", self.name, hint)

    @property
    def knows_optimum(self) -> bool:
        """Whether `Source.optimum` is the optimum for the prepared features."""
        return False

    @property
    def names_silos(self) -> bool:
        """Whether the records themselves say whose they are, so that they need no partition."""
        return False

    @property
    def notices(self) -> list[str]:
        """Lines on the records that every report begins with."""
        return []

    @property
    def not_private(self) -> list[str]:
        """Steps of the preparation that the guarantee does not cover."""
        values = self.fitted_values
        return [f"{what} ({field}: {values[field]}), {IGNORED}" for field, what in self.fitted.items()]

    @property
    def downloads(self) -> tuple[Download, ...]:
        """Files with a download address and a checksum."""
        return ()

    @property
    def files(self) -> dict[str, Path]:
        """Files that the records depend on, by field."""
        found: dict[str, Path] = {}
        for name, value in self:
            field = type(self).model_fields[name].alias or name
            several = value.items() if isinstance(value, Mapping) else ()
            named = {field: value, **{f"{field}.{key}": each for key, each in several}}
            found |= {key: each for key, each in named.items() if isinstance(each, Path)}
        return found


class Elsewhere(Dataset):
    """The silos' own records, which only they have; for `fedsim deploy`, and the default there."""

    name: Literal["silos"] = Field("silos", description="The data set's name.")

    def open(self) -> Source:
        """InputError: only silos can open their records."""
        hint = "name the records: only `fedsim deploy`, whose silos have their own, goes without"
        raise InputError("scenario.data", self.name, hint)


class InMemory(Dataset, ABC):
    """A data set whose records were given as objects: its text has their hashes, by which it is compared."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.model_dump_json() == other.model_dump_json()

    def __hash__(self) -> int:
        return hash(self.model_dump_json())
