"""A cell's key changes with whatever its result depends on, and with nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim.protocol.batch import FULL
from fedsim.protocol.plan import Release
from fedsim.scenario.load import parse, place
from fedsim.scenario.resolve import resolve
from fedsim.simulation.selection import Grant
from fedsim.sweeps import cell
from fedsim.sweeps.cell import cell_of, key_of
from fedsim.sweeps.job import job_of


def key(tree: dict[str, Any], trial: int = 0, train_loss: bool = False) -> str:
    return key_of(cell_of(parse(tree), trial, train_loss))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 7),
        ("data.rows", 121),
        ("data.test_fraction", 0.3),
        ("partition.num_partitions", 4),
        ("problem", {"name": "logistic_regression", "regulariser": {"l2": 0.1}}),
        ("algorithm.step_size", 0.500001),
        ("algorithm.clip_norm", 2.0),
        ("algorithm.batch", {"sampler": "subsample", "fraction": 0.5}),
        ("privacy.epsilon", 1.1),
        ("privacy.delta", 1e-5),
        ("privacy.mechanism", "none"),
        ("participation", {"name": "uniform", "num_silos": 2}),
        ("runtime", {"name": "inprocess", "dtype": "float32"}),
    ],
)
def test_a_field_that_matters_changes_the_key(field: str, value: object, base: dict[str, Any]) -> None:
    before = key(base)
    place(base, field, value)
    assert key(base) != before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "another"),
        ("description", "another"),
        ("trials", 9),
        ("runtime", "ray"),
        ("report.evaluate_every", 3),
        ("sweep.grid.privacy.epsilon", [1, 2]),
        ("algorithm.step_size", 0.50),
        ("privacy.epsilon", 1),
    ],
)
def test_a_field_that_does_not_matter_leaves_the_key(field: str, value: object, base: dict[str, Any]) -> None:
    before = key(base)
    place(base, field, value)
    assert key(base) == before


def test_trial_and_measurement_change_the_key(base: dict[str, Any]) -> None:
    cell = cell_of(parse(base), 0, False)
    run, census = cell.run_id, ((Release(FULL, 1.0), 3),)
    grants = [
        Grant("reported", run),
        Grant("candidate", run, (census,), (1.0,), (1.0,)),
        Grant("candidate", run, (census,), (1.0,), (2.0,)),
        Grant("candidate", run, (census * 2,), (1.0,), (2.0,)),
    ]
    granted = {key_of(cell._replace(grant=grant)) for grant in grants}
    assert len({key(base), key(base, trial=1), key(base, train_loss=True)} | granted) == 7


def test_without_a_mechanism_the_budget_does_not_matter(base: dict[str, Any]) -> None:
    found = {key(base | {"privacy": {"mechanism": "none", "epsilon": e}}) for e in (1, 2, None)}
    assert len(found) == 1


def test_the_code_and_the_packages_change_the_key(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, now = key(base), cell.code_version()
    for name in ("source", "torch"):
        changed = now | {name: "other"}
        monkeypatch.setattr(cell, "code_version", lambda changed=changed: changed)
        assert key(base) != before


def test_the_source_covers_what_cells_run_and_not_the_command_line() -> None:
    names = {name for name, _ in cell._sources()}
    for name in (
        "fedsim/algorithms/local_sgd.py",
        "silos/noise.py",
        "server/loop.py",
        "fedsim/sweeps/run_cells.py",
    ):
        assert name in names
    assert not any(name.startswith(("fedsim/cli/", "fedsim/report/")) for name in names)


def test_the_content_of_a_table_changes_the_key_and_its_name_alone_does_not_hide_it(
    base: dict[str, Any], tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    schema = {
        "age": {"kind": "number", "lower": 0, "upper": 100},
        "sick": {"kind": "category", "categories": ["no", "yes"]},
    }
    base["data"] = {"name": "csv", "path": str(table), "target": "sick", "schema": schema}
    found = []
    for last in ("30,yes", "31,yes"):
        table.write_text(f"age,sick\n20,no\n{last}\n")
        found.append(key(base))
    assert found[0] != found[1]


def test_code_of_others_gives_all_cells_of_a_sweep_a_nonce_that_the_next_one_does_not_have(
    base: dict[str, Any],
) -> None:
    base["sweep"] = {"grid": {"algorithm.step_size": [0.1, 0.2]}}
    assert job_of(base).scenario.nonce is None
    base["problem"] = {"name": "neural_network", "model": {"name": "module", "path": "torch.nn:Linear"}}
    first, second = job_of(base), job_of(base)
    (nonce,) = {one.scenario.nonce for one in first.combinations}
    assert nonce == first.tree["nonce"]
    assert nonce not in (None, second.scenario.nonce)
    assert key_of(cell_of(first.scenario, 0, False)) != key_of(cell_of(second.scenario, 0, False))


THEOREM = {
    "algorithm": {"name": "prox_sgd", "parameters": "theorem"},
    "assumptions": {"L": 1.0, "beta": 0.25, "mu": 0.1, "Delta": 1.0},
}


def test_a_theorem_chooses_the_same_numbers_for_a_cell_as_for_its_scenario(base: dict[str, Any]) -> None:
    scenario = parse(base | THEOREM)
    cell = cell_of(scenario, 0, False)
    chosen = resolve(parse(cell.scenario)).algorithm
    assert chosen == resolve(scenario).algorithm
    assert chosen.batch.sampler == "fresh"  # type: ignore[attr-defined]
