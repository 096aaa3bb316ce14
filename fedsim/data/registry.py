"""Data sets and partitions by the names that a scenario chooses them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import WrapValidator

from fedsim.common.errors import InputError
from fedsim.common.objects import changed, stand, standing_by
from fedsim.common.plugins import extended
from fedsim.common.registry import OneOf, Registry
from fedsim.common.serialise import canonical
from fedsim.data.dataset import Dataset
from fedsim.data.partition import Partition

GROUP = "fedsim.data_sets"
_PACKAGE = "fedsim.data"
_PLACES = {
    "breast_cancer": "builtin:BreastCancer",
    "digits": "builtin:Digits",
    "mnist": "images:Mnist",
    "cifar10": "images:Cifar10",
    "synthetic": "builtin:Synthetic",  # this and the next three from a public seed
    "heavy_tails": "heavy_tails:HeavyTails",
    "visits": "visits:Visits",
    "schools": "schools:Schools",
    "csv": "csv_table:Csv",
    "npz": "arrays:Npz",
    "huggingface": "frame:HuggingFace",
    "silos": "dataset:Elsewhere",
}
OWN: Registry[type[Dataset]] = Registry.of(_PACKAGE, _PLACES)
_GIVEN = {"arrays": "arrays:Arrays", "frame": "frame:Frame"}
SHIPPED: Registry[type[Dataset]] = Registry.of(_PACKAGE, _PLACES | _GIVEN)
"""Data sets whose code is ours, those too that are given as objects."""
PARTITIONS: Registry[type[Partition]] = Registry.of(
    _PACKAGE,
    {
        "iid": "partition:IidPartition",
        "size": "partition:SizePartition",
        "dirichlet": "by_label:DirichletPartition",
        "pathological": "by_label:PathologicalPartition",
        "natural_id": "by_label:NaturalIdPartition",
        "label_pairs": "by_label:LabelPairsPartition",
        "sorted": "partition:SortedPartition",
    },
)


@cache
def data_sets() -> Mapping[str, type[Dataset]]:
    """{scenario name: model}: ours, and those of the entry point group `fedsim.data_sets`. InputError names
    an entry point that does not load, takes a name twice, or whose field `name` is not its own name.
    """
    found = extended(GROUP, OWN, Dataset)  # type: ignore[type-abstract]
    for name in found.keys() - OWN.keys():
        kind = found[name]
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


DataConfig = Annotated[Dataset, OneOf(data_sets()), WrapValidator(_as_it_is)]
PartitionConfig = Annotated[Partition, OneOf(PARTITIONS)]
