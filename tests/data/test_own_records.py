"""A silo reads its own records: another one's never reach the process that hosts it."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.scenarios import once

from fedsim.common.errors import InputError
from fedsim.data.builtin import Synthetic, SyntheticSource
from fedsim.data.by_label import NaturalIdPartition
from fedsim.data.federation import load, load_silos
from fedsim.data.partition import IidPartition
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import SiloHost
from fedsim.simulation.on_ray import HostWorker
from fedsim.simulation.trial import read

ASKED: list[int] = []
PARTITION = {"name": "iid", "num_partitions": 4}
NUMBERS = {"num_rounds": 2, "step_size": 1.0}


class Watched(SyntheticSource):
    """Notes which rows it is asked for."""

    def design(self, rows):
        ASKED.extend(rows.tolist())
        return super().design(rows)


class WatchedData(Synthetic):
    """Synthetic records that are watched."""

    def open(self) -> Watched:
        return Watched(self)


@pytest.fixture(autouse=True)
def asked() -> Iterator[list[int]]:
    """Rows that were read, in this test."""
    ASKED.clear()
    yield ASKED
    ASKED.clear()


def scenario(data: Synthetic) -> dict[str, Any]:
    return once(data=data, partition=PARTITION, algorithm=NUMBERS, privacy={"delta": 0.01})


def test_a_hosts_process_reads_no_other_silos_records(asked: list[int]) -> None:
    data = WatchedData(rows=40, features=2)
    HostWorker(parse(scenario(data)), 0, ["silo-01", "silo-03"], "digest of all silos' records")
    owned = IidPartition(**PARTITION).assign(data.open(), 0).by_name
    assert sorted(asked) == sorted([*owned["silo-01"], *owned["silo-03"]])


def test_some_silos_draw_the_noise_that_they_draw_among_all() -> None:
    tree = scenario(Synthetic(rows=40, features=2))
    resolved = resolve(parse(tree))
    federation = read(resolved, 0)
    everyone = SiloHost(resolved, 0, federation)
    everyone.open("private", [range(2)] * 4)
    some = HostWorker(parse(tree), 0, ["silo-01", "silo-03"], federation.digest)
    some.open("private", [range(2)] * 2)
    w = torch.zeros(3, dtype=torch.float64)
    theirs = everyone.answer("private", 0, {"w": w}, [0, 1, 2, 3])
    for name, ours in some.answer("private", 0, {"w": w.numpy()}, [0, 1]).items():
        np.testing.assert_allclose(ours, theirs[name][[1, 3]], rtol=1e-12)


@pytest.mark.parametrize("options", [{"scaling": "none"}, {}, {"scaling": "training_statistics"}, {"pca": 2}])
def test_only_what_pools_records_reads_those_of_all(options, asked: list[int]) -> None:
    data = WatchedData(rows=40, features=2, **options)
    (silo,) = load_silos(data, IidPartition(**PARTITION), 0, 0, ["silo-02"])
    pooled = "pca" in options or options.get("scaling") == "training_statistics"
    assert data.pools_records is pooled
    assert sorted(set(asked)) == list(range(40)) if pooled else len(asked) == 10
    (same,) = (one for one in load(data, IidPartition(**PARTITION), 0, 0).silos if one.name == silo.name)
    assert np.array_equal(silo.train.features, same.train.features)


BROKEN = """\
age,sex,hospital,chol,outcome
63,male,north,233,ill
old,unknown,south,?,?
57,female,north,354,ill
29,male,east,-inf,well
"""


def test_cells_of_another_silos_rows_are_not_interpreted(make_csv) -> None:
    data = make_csv(BROKEN)
    (north,) = load_silos(data, NaturalIdPartition(), 0, 0, ["north"])
    assert len(north.train.features) + len(north.test.features) == 2
    for silo, said in (
        ("south", "schema.age: 'old': row 2: not a number"),
        ("east", "schema.chol: -inf: row 4"),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            load_silos(data, NaturalIdPartition(), 0, 0, [silo])
