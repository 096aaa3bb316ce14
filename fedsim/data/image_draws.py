"""Which images of a labelled collection become records."""

from __future__ import annotations

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.source import Ints


def of_each(
    labels: Ints, count: int, names: tuple[str, ...], rng: np.random.Generator, field: str
) -> list[Ints]:
    """Places of `count` images of each label, in random order.

    Args:
        labels: of every image, codes among `names`.
        count: how many of each.
        names: of the labels.
        rng: draws them.
        field: that asks for so many.

    Raises:
        InputError: on `field`: there are fewer of a label.
    """
    found = []
    for code, name in enumerate(names):
        places = np.flatnonzero(labels == code)
        if len(places) < count:
            raise InputError(field, count, f"at most {len(places):,}: the files have no more of {name}")
        found.append(rng.permutation(places)[:count])
    return found
