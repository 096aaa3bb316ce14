"""What is done beside one run, with each feature: tuning, sweeps, audits, conversions, verification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsim
from crossings.features import DIMENSIONS, Crossing, every, names, overrides, scenario
from crossings.walk import judge, protected, state

Tree = dict[str, Any]


def _sweep(tree: Tree, data: fedsim.Arrays, **private: Any) -> Any:
    varied = "step_size" if "step_size" in tree["algorithm"] else "clip_norm"
    section: Tree = {"grid": {f"algorithm.{varied}": [0.3, 0.5]}}
    if private:
        section = {"tune": section | {"repetitions": 1, "private": {"fraction": 0.4, **private}}}
    return fedsim.sweep(tree | {"sweep": section}, data=data, workers=0, progress=False).summary


def tune(tree: Tree, data: fedsim.Arrays, crossing: Crossing, metric: str = "error") -> list[str]:
    said = _sweep(tree, data, metric=metric).privacy.tuning
    return [] if said is None else protected(crossing, said.guarantee, "the tuning's guarantee")


def tune_by_auc(tree: Tree, data: fedsim.Arrays, crossing: Crossing) -> list[str]:
    return tune(tree, data, crossing, "auc")


def sweep(tree: Tree, data: fedsim.Arrays, crossing: Crossing) -> list[str]:
    """Its runs without privacy are those of `simulate`, but where batches are drawn, which have streams of
    their own, and where a number follows from the noise.
    """
    drawn = {"batch", "budget"} & {*crossing} or "localized" in crossing.values()
    if drawn or crossing.get("unit", "").endswith("private_root"):
        _sweep(tree, data)
        return []
    if "step_size" not in tree["algorithm"]:
        return []
    tree = tree | {"report": tree["report"] | {"nonprivate_baseline": True}}
    alone = fedsim.simulate(tree, data=data, progress=False).summary
    wanted = (alone.metrics.nonprivate if alone.privacy.private else alone.metrics).loss
    found = [row.loss for row in _sweep(tree, data).combinations if not row.private]
    near = wanted is None or any(np.isclose(getattr(own, "mean", own), wanted, rtol=1e-9) for own in found)
    return [] if near else [f"loss without privacy {found}, of a run {wanted}"]


def conversions(tree: Tree, data: fedsim.Arrays, crossing: Crossing) -> list[str]:
    said = fedsim.price(tree, data=data, conversions=True).statement
    if said.mechanism == "none":
        return []
    faults = protected(crossing, said.title, "the title")
    faults += protected(crossing, said.persons.note, "the table of persons") if said.persons else []
    central = said.conversions.central and said.conversions.central_of
    return faults + (protected(crossing, central, "the conversion") if central else [])


def verify(tree: Tree, data: fedsim.Arrays, crossing: Crossing) -> list[str]:
    silos = fedsim.price(tree, data=data, verify=True).statement.silos
    both = [(row.epsilon_guaranteed, row.epsilon_dp_accounting) for row in silos]
    return [f"{a} is below dp-accounting's {b}" for a, b in both if a and b and a < b * (1 - 1e-3)]


def audit(tree: Tree, data: fedsim.Arrays, crossing: Crossing) -> list[str]:
    made = fedsim.audit(tree, data=data, effort=0.001, progress=False)
    return [f"the audit says broken: {'; '.join(made.verdict)[:150]}"] if made.broken else []


OPERATIONS = {each.__name__: each for each in (tune, tune_by_auc, sweep, conversions, verify, audit)}


def faults_of(crossing: Crossing) -> list[str]:
    if (over := overrides({name: own for name, own in crossing.items() if name != "operation"})) is None:
        return []
    its, found = state(lambda: OPERATIONS[crossing["operation"]](*scenario(over), crossing))
    return found if its == "works" else [] if its == "refused" else [found]


def _alone(dimensions: Any, gate: bool = True) -> list[Crossing]:
    return [{name: value} for name in dimensions for value in names(name, gate)]


def test_operations_with_each_feature():
    audited = [{"mechanism": "attribute"}, {"unit": "limit/replace_person"}]
    whose, how = _alone(("unit", "mechanism")), _alone(("unit", "mechanism", "wrapper", "algorithm"))
    chosen = dict.fromkeys(OPERATIONS, whose) | {"conversions": how, "verify": how, "audit": audited}
    del chosen["tune_by_auc"]
    judge(
        "operation", faults_of, [{"operation": name} | own for name, rows in chosen.items() for own in rows]
    )


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation(operation):
    both = every({"operation": [operation], "unit": names("unit"), "mechanism": names("mechanism")})
    judge(
        "operation",
        faults_of,
        [*both, *({"operation": operation} | own for own in _alone(DIMENSIONS, gate=False))],
    )
