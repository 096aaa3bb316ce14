"""Data sets and partitions by the names that a scenario chooses them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args

from pydantic import Field, SerializeAsAny, WrapValidator

from fedsim.common.errors import InputError
from fedsim.common.objects import changed, stand, standing_by
from fedsim.common.plugins import extended
from fedsim.common.section import Section
from fedsim.common.serialise import canonical
from fedsim.data.arrays import Npz
from fedsim.data.builtin import BreastCancer, Digits, Synthetic
from fedsim.data.by_label import (
    DirichletPartition,
    LabelPairsPartition,
    NaturalIdPartition,
    PathologicalPartition,
)
from fedsim.data.csv_table import Csv
from fedsim.data.dataset import Dataset, Elsewhere
from fedsim.data.frame import HuggingFace
from fedsim.data.heavy_tails import HeavyTails
from fedsim.data.images import Cifar10, Mnist
from fedsim.data.partition import IidPartition, Partition, SizePartition, SortedPartition
from fedsim.data.schools import Schools
from fedsim.data.visits import Visits

GROUP = "fedsim.data_sets"
S = TypeVar("S", bound=Section)


def _by_name(*kinds: type[S]) -> dict[str, type[S]]:
    return {kind.model_fields["name"].default: kind for kind in kinds}


_MADE = (Synthetic, HeavyTails, Visits, Schools)  # from a public seed
OWN: dict[str, type[Dataset]] = _by_name(
    BreastCancer, Digits, Mnist, Cifar10, *_MADE, Csv, Npz, HuggingFace, Elsewhere
)
PARTITIONS: dict[str, type[Partition]] = _by_name(
    IidPartition,
    SizePartition,
    DirichletPartition,
    PathologicalPartition,
    NaturalIdPartition,
    LabelPairsPartition,
    SortedPartition,
)


@cache
def data_sets() -> dict[str, type[Dataset]]:
    """{scenario name: model}: ours, and those of the entry point group `fedsim.data_sets`. InputError names
    an entry point that does not load, takes a name twice, or whose field `name` is not its own name.
    """
    found = extended(GROUP, OWN, Dataset)  # type: ignore[type-abstract]
    for name, kind in found.items():
        field = kind.model_fields.get("name")
        if field is None or get_args(field.annotation) != (name,) or field.default != name:
            hint = f"needs the field  name: Literal[{name!r}] = {name!r}"
            raise InputError(f"entry point {GROUP}:{name}", kind.__qualname__, hint)
        if absent := sorted(kind.__abstractmethods__):
            hint = f"a class with the method {', '.join(absent)}"
            raise InputError(f"entry point {GROUP}:{name}", kind.__qualname__, hint)
    return found


def _as_it_is(value: Any, validate: Callable[[Any], Dataset]) -> Dataset:
    """A data set in memory has no YAML form: the scenario holds the object."""
    if isinstance(value, Dataset):
        return value
    given = standing_by(_own(value), Dataset) if isinstance(value, Mapping) else None  # type: ignore[type-abstract]
    if given is None:
        return validate(value)
    types = {name: Annotated[info.annotation, info] for name, info in Dataset.model_fields.items()}
    common = {key: each for key, each in value.items() if key in types}
    return given.model_copy(update=changed(common, given.model_dump(mode="json"), types))


def plain(data: Dataset) -> dict[str, Any]:
    """Plain values that stand for a data set in memory inside `fedsim.common.objects.standing`."""
    tree = data.model_dump(mode="json", exclude_none=True)
    stand(_own(tree), data)
    return tree


def _own(tree: Mapping[str, Any]) -> str:
    """What tells data sets in memory apart: what only they have, hashes of their records among it."""
    common = set(Dataset.model_fields) - {"name"}
    return canonical(_pruned({key: value for key, value in tree.items() if key not in common}))


def _pruned(tree: Any) -> Any:
    if not isinstance(tree, Mapping):
        return tree
    return {key: _pruned(value) for key, value in tree.items() if value is not None}


if TYPE_CHECKING:
    DataConfig = Dataset
    PartitionConfig = Partition
else:
    DataConfig = Annotated[
        SerializeAsAny[Union[tuple(data_sets().values())]],  # noqa: UP007
        Field(discriminator="name"),
        WrapValidator(_as_it_is),
    ]
    PartitionConfig = Annotated[Union[tuple(PARTITIONS.values())], Field(discriminator="name")]  # noqa: UP007
