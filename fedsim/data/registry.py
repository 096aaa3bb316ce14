"""One line on each data set and partition, for `fedsim list`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import get_args

from fedsim.data.config import AnyPartition
from fedsim.data.datasets import data_sets
from fedsim.data.model import Config


def datasets() -> dict[str, str]:
    """Name to one line, for every data set."""
    return _lines(data_sets().values())


def partitions() -> dict[str, str]:
    """Name to one line, for every partition."""
    return _lines(get_args(AnyPartition))


def _lines(models: Iterable[type[Config]]) -> dict[str, str]:
    return {
        model.model_fields["name"].default: (inspect.getdoc(model) or "").partition("\n")[0]
        for model in models
    }
