"""Run directories to report on, as `fedsim simulate` writes them."""

from pathlib import Path

import pytest
from support.scenarios import HOSTILE, SMALL, simulate


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every text that a scenario can set tries to become markup."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = [
        f'{20 + i % 50},"{HOSTILE[i % 5].replace(chr(34), chr(34) * 2)}",{i * 7 % 3 > 0:d}'
        for i in range(150)
    ]
    (folder / "table.csv").write_text("\n".join(["age,ward,sick", *rows]) + "\n", encoding="utf-8")
    schema = {
        "age": {"kind": "number", "lower": 0, "upper": 100},
        "ward": {"kind": "category", "categories": list(HOSTILE)},
        "sick": {"kind": "category", "categories": ["0", "1"]},
    }
    tree = SMALL | {
        "name": HOSTILE[0],
        "description": f"{HOSTILE[1]} {HOSTILE[3]}",
        "data": {"name": "csv", "path": "table.csv", "target": "sick", "schema": schema},
        "partition": {"name": "natural_id", "partition_by": "ward"},
        "privacy": {"epsilon": 2.0},
    }
    return simulate(folder, tree)


@pytest.fixture(scope="session")
def large_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand silos, the tightest of them in the table."""
    tree = SMALL | {
        "name": "a thousand silos",
        "trials": 1,
        "algorithm": SMALL["algorithm"] | {"num_rounds": 2},
        "report": {"baselines": False},
        "data": {"name": "synthetic", "rows": 5_000, "features": 3},
        "partition": {"name": "iid", "num_partitions": 1000},
        "privacy": {"epsilon": [0.5 + i / 500 for i in range(1000)]},
    }
    return simulate(tmp_path_factory.mktemp("large"), tree)
