"""The server's own public test records: the only ones that a deployed run is measured on."""

from __future__ import annotations

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.dataset import Dataset
from fedsim.data.federation import SiloSplit
from fedsim.data.prepare import prepare
from fedsim.measure.evaluator import Evaluator
from fedsim.measure.metrics import asked_of
from fedsim.scenario.resolve import Resolved

NAME = "public test records"


def public_evaluator(test: Dataset, resolved: Resolved) -> Evaluator:
    """Measures a model on all records of `test`, prepared as it says.

    Raises:
        InputError: they cannot be read, or are of another kind than the silos'.
    """
    try:
        source = test.open()
        rows = np.arange(source.num_rows)
        features, target, by = prepare(test, source.design(rows), rows, rows)
    except InputError as error:
        field = error.field.replace("scenario.data", "federation.test", 1)
        raise InputError(field, error.value, error.hint) from None
    outline = resolved.outline
    if features.shape[1] != outline.num_features:
        hint = f"{outline.num_features} prepared features, as the silos have, the intercept included"
        raise InputError("federation.test", f"{features.shape[1]} features", hint)
    if (
        bool(outline.num_classes) != np.issubdtype(target.dtype, np.integer)
        or source.num_classes > outline.num_classes
    ):
        hint = f"a target of {outline.num_classes} classes" if outline.num_classes else "a target of numbers"
        raise InputError("federation.test", f"{source.num_classes} classes", hint)
    nothing = features[:0], target[:0]
    silo = SiloSplit(NAME, *nothing, features, target)
    return Evaluator(resolved.problem, [silo], resolved.dtype, asked_of(resolved, by))
