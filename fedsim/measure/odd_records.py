"""What is odd about a trial's records, as only a simulation can know. Not private."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsim.data.federation import Federation, SiloSplit


def odd_records(data: Federation) -> list[str]:
    """Lines for a run's warnings."""
    return [*data.odd_ranges, *_alike(data.silos)]


def _alike(silos: Sequence[SiloSplit]) -> list[str]:
    """Targets with nothing to learn, or to tell apart."""
    train = np.concatenate([silo.train_target for silo in silos])
    test = np.concatenate([silo.test_target for silo in silos])
    found = {"training": "there is nothing to learn", "test": "any model that says so is never wrong"}
    parts = zip(found.items(), (train, test), strict=True)
    return [
        f"all {len(target):,} {part} records have one and the same target: {means}"
        for (part, means), target in parts
        if len(target) and (target == target[0]).all()
    ]
