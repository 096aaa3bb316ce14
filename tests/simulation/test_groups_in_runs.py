"""A simulated silo's gate has the groups of the records that it answers about, and no others."""

from typing import Any

import numpy as np
import pytest
from support.scenarios import FAIR, changed

import fedsim
from fedsim.data.arrays import Arrays
from fedsim.data.source import NO_LABEL
from fedsim.report.texts import remarks
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import SiloHost
from fedsim.simulation.trial import read
from silos.vault.records import Records

TREE: dict[str, Any] = {
    "name": "grouped",
    "partition": {"name": "iid", "num_partitions": 3, "proportions": [1, 2, 5]},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 0.5, "clip_norm": 1.0},
    "runtime": "inprocess",
    "evaluate": {"bins": 4},
}


def resolved_of(clipping: bool, unit: str, groups: bool = True) -> Resolved:
    rows, rng = np.arange(120), np.random.default_rng(0)
    group = rng.choice(["a", "b", ""], 120) if groups else None
    data = Arrays(rng.normal(size=(120, 2)), rows % 2, person=rows, group=group, test_fraction=0.3)
    privacy = {"epsilon": 1.0, "delta": 1e-6, "unit": unit}
    given = parse(TREE | {"data": "digits", "privacy": privacy, "report": {"clipping": clipping}})
    return resolve(given.model_copy(update={"data": data}))


def codes_of(records: Records) -> dict[int, list[int]]:
    """Each silo's codes in the order that its gate has, without those of padding."""
    found = {}
    for block in records.full(range(len(records.sizes))):
        assert block.group is not None
        for member, codes in zip(block.members, block.group.tolist(), strict=True):
            found[member] = codes[: records.sizes[member]]
            assert set(codes[records.sizes[member] :]) <= {NO_LABEL}
    return found


@pytest.mark.parametrize("clipping", [True, False])
@pytest.mark.parametrize("unit", ["record", "person"])
def test_gates_have_groups_of_their_part(clipping: bool, unit: str) -> None:
    resolved = resolved_of(clipping, unit)
    data = read(resolved, 0)
    host = SiloHost(resolved, 0, data)
    parts: list[tuple[SiloHost, list[np.ndarray | None]]] = [
        (host, [silo.train.groups for silo in data.silos]),
        (host._held_out, [silo.test.groups for silo in data.silos]),
    ]
    for there, expected in parts:
        found = codes_of(there._records)
        for member, labels in enumerate(expected):
            assert labels is not None
            assert found[member] == labels.tolist()
            assert len(set(found[member])) > 1


def test_without_an_attribute_gates_have_none() -> None:
    resolved = resolved_of(clipping=False, unit="record", groups=False)
    assert not SiloHost(resolved, 0, read(resolved, 0))._records.grouped


def test_a_fair_run_is_not_held_against_models_that_pay_for_no_fairness() -> None:
    def report(weight: float) -> Any:
        tree = changed(FAIR, {"problem.fairness.weight": weight, "partition.num_partitions": 2})
        return fedsim.simulate(tree).summary

    assert report(0.0).joining is not None
    assert report(2.0).joining is None
    assert not [line for line in remarks(report(2.0)) if "cost most" in line or "better off alone" in line]
