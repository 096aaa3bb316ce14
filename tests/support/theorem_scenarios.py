"""Scenarios of synthetic records in equal silos, of which tests of theorems change some sections."""

from typing import Any


def tree(silos: int, records: int, **sections: Any) -> dict[str, Any]:
    """Logistic regression on five features and a constant, `records` training records in each silo."""
    return {
        "name": "theorems",
        "data": {"name": "synthetic", "rows": silos * records * 4 // 3, "features": 5, "test_fraction": 0.25},
        "partition": {"name": "iid", "num_partitions": silos},
        "problem": {"name": "logistic_regression"},
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "runtime": "inprocess",
    } | sections
