"""Principal components of the features, fitted on pooled training records.

The components depend on every silo's records and on no noise, so they are covered by no guarantee: they
exist in simulation only.

References: K. Pearson, Philosophical Magazine 2 (1901), 559-572, doi:10.1080/14786440109462720.
"""

from __future__ import annotations

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.source import Floats, Ints


def principal_components(values: Floats, training_rows: Ints, count: int) -> Floats:
    """Coordinates (n, count) of (n, d) values along the directions of largest variance, centred.

    Mean and directions are those of the training rows; the sign of a direction makes its largest entry
    positive, so that it does not depend on the linear algebra library.
    """
    training = values[training_rows]
    centre = training.mean(axis=0)
    centred = training - centre
    _, directions = np.linalg.eigh(centred.T @ centred)  # in ascending order of variance
    directions = directions[:, ::-1][:, :count]
    largest = np.abs(directions).argmax(axis=0)
    signs = np.sign(directions[largest, np.arange(count)])
    return np.asarray((values - centre) @ (directions * signs), dtype=np.float64)


def check_components(count: int | None, num_features: int) -> int:
    """The number of features after PCA.

    Raises:
        InputError: more components than features.
    """
    if count is not None and count > num_features:
        raise InputError("scenario.data.pca", count, f"at most {num_features}, the number of features")
    return num_features if count is None else count
