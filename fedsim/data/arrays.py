"""A user's own arrays, in memory or in a file."""

from __future__ import annotations

import hashlib
import weakref
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ConfigDict, Field, PlainSerializer

from fedsim.common.errors import InputError, suggest
from fedsim.common.section import arguments
from fedsim.data.dataset import FITTED_SCALINGS, Dataset, InMemory, Scaling
from fedsim.data.source import NO_LABEL, Design, Floats, Ints, Labels, Matrix, Ranges, Target

TARGET, SILO, PERSON, GROUP = "target", "silo", "person", "group"


def _summary(values: NDArray[Any]) -> str:
    """Type, shape and SHA-256: what stands for an array in a scenario's text and in keys made of it."""
    if (known := _SUMMARIES.get(id(values))) is not None:
        return known
    content = np.ascontiguousarray(values)
    found = f"{content.dtype.str}{content.shape} sha256 {hashlib.sha256(content.data).hexdigest()}"
    if not values.flags.writeable:  # as long as it lives, its id is its own
        _SUMMARIES[id(values)] = found
        weakref.finalize(values, _SUMMARIES.pop, id(values), None)
    return found


_SUMMARIES: dict[int, str] = {}
_Array = Annotated[np.ndarray[Any, Any], PlainSerializer(_summary, return_type=str, when_used="json")]


Groups = Annotated[
    tuple[str, ...] | None,
    Field(
        min_length=2,
        description="All groups, in the order of their codes; default: those that records have, sorted.",
    ),
]


class _OwnArrays(Dataset):
    images = True

    @property
    def not_private(self) -> list[str]:
        public = "the ranges count as public, so take them from documentation, not from the data"
        return super().not_private + ([public] if self.scaling == "declared" else [])


class Arrays(InMemory, _OwnArrays):
    """Arrays in memory.

    A scenario's text holds their hashes, so it cannot be read back. To other processes they travel whole,
    also to one that hosts some of the silos.

    Columns for a partition: features `x0`, `x1`, ..., `target`, and `silo` if it is given.

    >>> data = Arrays([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [0, 1, 1], ["north", "south", "north"])
    >>> source = data.open()
    >>> source.num_rows, source.num_features, source.num_classes, source.silo_column
    (3, 2, 2, 'silo')

    Args:
        features: numbers, shape (n, p).
        target: shape (n,): whole numbers from 0 are classes, real numbers are regressed on.
        silo: the silo of each record, n texts or whole numbers; None where a partition divides the records.
        person: whose each record is, for unit person: n texts or whole numbers, compared as exact texts.
        group: each record's group, to measure fairness by: n texts or whole numbers; None or "" where a
            record is in none. It is no feature.
        groups: all groups as texts, in the order of their codes; default: those that there are, sorted.
        ranges: (lower, upper), each a number or of shape (p,), declared and not taken from the records.
        classes: the number of classes, including classes without records here; default: the largest target
            plus one.
        scaling: as in every data set; by default `declared` with ranges and `none` without.
        options: the other fields of `Dataset`: intercept, transform, pca, preprocessing_cost, record_norm,
            test_fraction, reserve.

    Raises:
        InputError: names the argument, the value and what would be right.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: Literal["arrays"] = Field("arrays", description="The data set's name.")
    features: _Array = Field(repr=False)
    target: _Array = Field(repr=False)
    silo: _Array | None = Field(repr=False)
    person: _Array | None = Field(None, repr=False)
    group: _Array | None = Field(None, repr=False)
    groups: Groups = None
    ranges: _Array | None = Field(repr=False)
    classes: int | None = Field(None, ge=2)

    def __init__(
        self,
        features: ArrayLike,
        target: ArrayLike,
        silo: ArrayLike | None = None,
        *,
        person: ArrayLike | None = None,
        group: ArrayLike | None = None,
        groups: Sequence[str] | None = None,
        ranges: tuple[ArrayLike, ArrayLike] | None = None,
        scaling: Scaling | None = None,
        classes: int | None = None,
        **options: Any,
    ) -> None:
        if scaling == "declared" and ranges is None:
            raise InputError("scaling", scaling, "needs ranges")
        matrix = _features(features)
        given: dict[str, Any] = {
            "features": matrix,
            "target": _target(target, len(matrix), classes),
            "silo": None if silo is None else _names(SILO, silo, len(matrix)),
            "person": None if person is None else _names(PERSON, person, len(matrix)),
            "group": None if group is None else _groups(group, len(matrix)),
            "groups": groups,
            "ranges": None if ranges is None else _ranges(ranges, matrix.shape[1]),
            "scaling": scaling or ("none" if ranges is None else "declared"),
            "classes": classes,
        }
        with arguments():
            super().__init__(**given, **options)
        self.labels()

    def labels(self) -> Labels | None:
        """`group` by the groups' codes. InputError for fewer than two groups, or records of others."""
        if self.group is None:
            if self.groups is not None:
                raise InputError("groups", self.groups, "only where each record's group is given: group")
            return None
        names = self.groups or tuple(map(str, np.unique(self.group[self.group != ""])))
        if len(set(names)) < max(2, len(names)):
            hint = "at least two different ones: declare all groups, also those without records (groups)"
            raise InputError("groups", len(set(names)), hint)
        place = {name: code for code, name in enumerate(names)}
        codes = np.array([place.get(name, NO_LABEL) for name in self.group.tolist()])
        if others := int((codes == NO_LABEL).sum() - (self.group == "").sum()):
            hint = f"of {len(codes):,} records are in no declared group: declare theirs too (groups)"
            raise InputError(GROUP, others, hint)
        return Labels(codes, names)

    @property
    def names_silos(self) -> bool:
        """Whether `silo` is given."""
        return self.silo is not None

    def open(self) -> Matrix:
        """The arrays themselves."""
        return _ArraysSource(self)


class _ArraysSource(Matrix):
    target = TARGET

    def __init__(self, data: Arrays) -> None:
        self._data = data
        self.num_rows, self.num_features = data.features.shape
        self.num_classes = 0
        if data.target.dtype == np.int64:
            self.num_classes = data.classes or int(data.target.max()) + 1
        self.names = tuple(f"x{j}" for j in range(self.num_features))
        self.columns = (*self.names, TARGET)
        if data.silo is not None:
            self.silo_column = SILO
            self.columns += (SILO,)
            names, self._silos = np.unique(data.silo, return_inverse=True)
            self.silos = tuple(map(str, names))
        if data.person is not None:
            self.person_column = PERSON
        self._groups = data.labels()
        self.groups = () if self._groups is None else self._groups.names
        unknown = np.full((2, self.num_features), np.nan)
        self.ranges = Ranges.linear(*(unknown if data.ranges is None else data.ranges))

    @property
    def features(self) -> Floats:
        return self._data.features

    def other(self, column: str) -> Target:
        return self._data.target if column == TARGET else self._silos

    def ids(self) -> list[str] | None:
        return None if self._data.person is None else self._data.person.tolist()

    def design(self, rows: Ints) -> Design:
        return replace(super().design(rows), groups=self._groups and self._groups[rows])


def _features(given: ArrayLike) -> Floats:
    values = _numbers("features", given, "numbers of shape (n, p)")
    if values.ndim != 2 or 0 in values.shape:
        hint = "must have shape (n, p), with at least one record and feature"
        raise InputError("features", values.shape, hint)
    return _frozen(values.astype(np.float64))


def _target(given: ArrayLike, records: int, classes: int | None) -> Target:
    values = _numbers("target", given, "whole numbers from 0 for classes, or real numbers")
    _require_length("target", values, records)
    if values.dtype.kind == "f":
        if classes is not None:
            raise InputError("classes", classes, "only where the targets are whole numbers")
        return _frozen(values.astype(np.float64))
    if values.min() < 0:
        raise InputError("target", int(values.min()), "classes are whole numbers from 0")
    if classes is None and values.max() == 0:
        raise InputError("target", 0, "needs records of at least two classes, 0 and 1")
    if classes is not None and values.max() >= classes:
        raise InputError("target", int(values.max()), f"classes are 0 to {classes - 1}")
    return _frozen(values.astype(np.int64))


def _names(field: str, given: ArrayLike, records: int) -> NDArray[Any]:
    """Silos or persons as texts; an error holds no value, which may be an id."""
    values = np.asarray(given, dtype=object)
    _require_length(field, values, records)
    if wrong := [row for row, name in enumerate(values) if not _is_name(name)]:
        hint = f"of {records:,} records have no text or whole number (the first is row {wrong[0]})"
        raise InputError(field, len(wrong), hint)
    return _frozen(values.astype(str))


def _groups(given: ArrayLike, records: int) -> NDArray[Any]:
    """Groups as texts, "" for none."""
    values = np.asarray(given, dtype=object)
    _require_length(GROUP, values, records)
    whole = [int(each) if isinstance(each, float) and each.is_integer() else each for each in values]
    values = np.array([*whole, None], dtype=object)[:-1]  # of pandas, where some have none
    none = np.array([not each if isinstance(each, str) else str(each) in _NONE for each in values])
    return _frozen(np.where(none, "", _names(GROUP, np.where(none, "none", values), records)))


_NONE = ("None", "nan", "<NA>")  # how what stands for no value in Python, numpy and pandas is written


def _is_name(given: object) -> bool:
    named = isinstance(given, str | int | np.integer) and not isinstance(given, bool)
    return named and bool(str(given).strip())


def _ranges(given: tuple[ArrayLike, ArrayLike], features: int) -> NDArray[Any]:
    """Lower and upper ends, shape (2, p)."""
    hint = f"must be (lower, upper): finite numbers or {features} of them each, lower below upper"
    try:
        lower, upper = (np.broadcast_to(np.asarray(end, dtype=np.float64), features) for end in given)
    except (TypeError, ValueError):
        raise InputError("ranges", given, hint) from None
    if not (np.isfinite(upper - lower).all() and (lower < upper).all()):
        raise InputError("ranges", given, hint)
    return _frozen(np.stack([lower, upper]))


def _numbers(name: str, given: ArrayLike, hint: str) -> NDArray[Any]:
    """An array of whole numbers or finite ones."""
    try:
        values = np.asarray(given)
    except ValueError as error:  # rows of unequal length
        raise InputError(name, type(given).__name__, f"must be {hint} ({error})") from None
    if values.dtype.kind not in "biuf":
        raise InputError(name, str(values.dtype), f"must be {hint}")
    for place in np.argwhere(~np.isfinite(values))[:1]:
        raise InputError(name, float(values[tuple(place)]), f"at {place.tolist()}: must be finite")
    return values


def _require_length(name: str, values: NDArray[Any], records: int) -> None:
    if values.shape != (records,):
        hint = f"must have shape ({records},): one value for each row of features"
        raise InputError(name, values.shape, hint)


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    """A read-only copy."""
    own = values.copy()
    own.flags.writeable = False
    return own


FIELD = "scenario.data.path"
_KNOWN = ("features", TARGET, SILO, PERSON, GROUP, "ranges")


class Npz(_OwnArrays):
    """Your own arrays in an npz file: features (n, p), target (n,); if need be ranges, silo, person, group.

    Ranges have shape (2, p), silo, person and group (n,); a record of no group has "". Whole numbers from 0
    are classes, real numbers are regressed on. Nothing in the file is ever unpickled.
    """

    name: Literal["npz"] = Field("npz", description="The data set's name.")
    path: Path = Field(description="The file, as np.savez writes it.")
    classes: int | None = Field(
        None,
        ge=2,
        description="Number of classes of an integer target, including classes without records here; "
        "default: the largest target plus one.",
    )
    groups: Groups = None
    scaling: Scaling = Field(
        "none",
        description="none: leave features as they are; declared: map them by the file's ranges to [-1, 1]; "
        + FITTED_SCALINGS,
    )

    def open(self) -> Matrix:
        """The file's arrays; InputError where they do not fit together."""
        given = _read(self.path)
        ranges = given.pop("ranges", None)
        if self.scaling == "declared" and ranges is None:
            raise InputError("scenario.data.scaling", self.scaling, f"{self.path.name} has no array ranges")
        if ranges is not None and "scaling" not in self.model_fields_set:
            hint = f"{self.path.name} has ranges: say whether they scale (declared) or not (none)"
            raise InputError("scenario.data.scaling", None, hint)
        try:
            if ranges is not None and ranges.shape[:1] != (2,):
                raise InputError("ranges", ranges.shape, "must be lower and upper ends, shape (2, p)")
            return Arrays(**given, ranges=ranges, classes=self.classes, groups=self.groups).open()
        except InputError as error:
            raise _wrong(self.path, f"{error.field}: {error.value!r}: {error.hint}") from None


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise _wrong(path, "no such file")
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            found = dict(file) if isinstance(file, np.lib.npyio.NpzFile) else {}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _wrong(path, f"not a readable npz file ({error})") from None
    for name in found:
        if name not in _KNOWN:
            raise _wrong(path, f"unknown array {name!r}; {suggest(name, _KNOWN)}")
    if absent := [name for name in _KNOWN[:2] if name not in found]:
        hint = f"has no array {absent[0]!r}; np.savez(path, features=..., target=...) writes both"
        raise _wrong(path, hint)
    return found


def _wrong(path: Path, hint: str) -> InputError:
    return InputError(FIELD, str(path), hint)
