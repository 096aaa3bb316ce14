"""One line on each data set and partition, for `fedsim list`."""

from __future__ import annotations

from types import UnionType
from typing import get_args

from fedsim.data.config import AnyData, AnyPartition


def datasets() -> dict[str, str]:
    """Name to one line, for every data set."""
    return _lines(AnyData)


def partitions() -> dict[str, str]:
    """Name to one line, for every partition."""
    return _lines(AnyPartition)


def _lines(union: UnionType) -> dict[str, str]:
    models = get_args(union)
    return {model.model_fields["name"].default: model.__doc__.strip().splitlines()[0] for model in models}
