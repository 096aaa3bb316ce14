"""A cell's key changes with whatever its result depends on, and with nothing else."""

from collections.abc import Iterator, Mapping
from itertools import combinations as pairs
from pathlib import Path
from typing import Any

import pytest
from support.run_keys import OTHER, TREE, baselines, changed, of_batch, of_run, recorded

from fedsim.protocol.batch import FULL
from fedsim.protocol.plan import Release
from fedsim.report.record import Record
from fedsim.scenario.load import parse, place
from fedsim.scenario.resolve import resolve
from fedsim.simulation import code_version
from fedsim.simulation.failures import Failure
from fedsim.simulation.selection import Grant
from fedsim.simulation.sweeps import cell
from fedsim.simulation.sweeps.cell import Cell, CellResult, cell_of, key_of
from fedsim.simulation.sweeps.engine import Engine, Event
from fedsim.simulation.sweeps.job import Place, job_of
from fedsim.simulation.sweeps.run import failure_file, write_failure
from fedsim.simulation.sweeps.run_cells import run_batch


def key(tree: dict[str, Any], trial: int = 0, train_loss: bool = False) -> str:
    return key_of(cell_of(parse(tree), trial, train_loss))


MATTERS: list[tuple[str, Any]] = [
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
]
NOT: list[tuple[str, Any]] = [
    ("name", "another"),
    ("description", "another"),
    ("trials", 9),
    ("runtime", "ray"),
    ("report.evaluate_every", 3),
    ("sweep.grid.privacy.epsilon", [1, 2]),
    ("algorithm.step_size", 0.50),
    ("privacy.epsilon", 1),
]


@pytest.mark.parametrize(("field", "value"), MATTERS + NOT)
def test_the_key_changes_with_a_field_that_matters(field: str, value: Any, base: dict[str, Any]) -> None:
    before = key(base)
    place(base, field, value)
    assert (key(base) != before) == ((field, value) in MATTERS)


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
    before, now = key(base), code_version.code_version()
    for name in ("source", "torch"):
        changed = now | {name: "other"}
        monkeypatch.setattr(cell, "code_version", lambda changed=changed: changed)
        assert key(base) != before


def test_the_source_covers_what_cells_run_and_not_the_command_line() -> None:
    names = {name for name, _ in code_version._sources()}
    for name in (
        "fedsim/algorithms/local_sgd.py",
        "silos/vault/entropy.py",
        "server/loop.py",
        "shuffler/rounds.py",
        "fedsim/simulation/sweeps/run_cells.py",
    ):
        assert name in names
    assert not any(name.startswith("fedsim/cli/") for name in names)
    assert {name for name in names if name.startswith("fedsim/report/")} == {
        f"fedsim/report/{name}.py" for name in ("outcome", "record")
    }


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
    assert chosen.batch.sampler == "fresh"


# Which cells of a sweep share noise, and that what is composed never does.


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """See `run_keys.recorded`."""
    return recorded(monkeypatch)


def cells_of(*changes: Mapping[str, Any]) -> list[Cell]:
    return [cell_of(parse(baselines(changed(TREE, one))), 0, False) for one in changes]


def test_cells_that_fold_share_their_noise_and_are_what_they_are_alone(keys: list[int]) -> None:
    cells = cells_of({}, OTHER["clip"], OTHER["step size"], OTHER["epsilon"])
    together = of_batch(cells, keys)
    assert len(together) == 3
    folded = run_batch(cells)
    for one, found in zip(cells, folded, strict=True):
        assert of_batch([one], keys) == together
        (alone,) = run_batch([one])
        assert isinstance(alone, CellResult)
        assert isinstance(found, CellResult)
        assert alone.loss == pytest.approx(found.loss, rel=1e-9)
    assert len({one.loss for one in folded if isinstance(one, CellResult)}) == 4


def test_only_cells_that_fold_share(keys: list[int]) -> None:
    shared = of_batch(cells_of({}), keys)
    for name in set(OTHER) - {"clip", "step size", "epsilon", "another silo's epsilon"}:
        assert shared.isdisjoint(of_batch(cells_of(OTHER[name]), keys)), name


@pytest.mark.parametrize(
    ("changes", "equal"),
    [
        ({}, False),
        ({"privacy": {"epsilon": "unlimited", "calibration": "sigma", "noise_multiplier": 3.0}}, True),
    ],
)
def test_simulate_shares_with_a_cell_only_what_is_the_same_run(
    changes: dict[str, Any], equal: bool, keys: list[int], tmp_path: Path
) -> None:
    """A failed cell's file says which of the two it is."""
    tree = baselines(changed(TREE, changes))
    (cell,) = cells_of(changes)
    own, alone = of_batch([cell], keys), of_run(tree, keys)
    assert own == alone if equal else own.isdisjoint(alone)
    assert cell.repeated_by_simulate == equal
    failure = Failure("failed", "of noise")
    failed = Event(Place(0, 0, 0), "0" * 64, cell, failure, False)
    write_failure(failed, "title", tmp_path)
    said = failure_file(failed, tmp_path).read_text()
    assert ("draws noise of its own" in said) == (not equal)
    assert "draw the noise again" in said


TUNED: dict[str, Any] = changed(TREE, {"data.rows": 300, "report": {"nonprivate_baseline": False}})
GRID = [0.05, 1.0]


def of_selection(keys: list[int], folder: Path, **changes: Any) -> list[tuple[Cell, set[int]]]:
    """Each cell that a private selection runs, and the keys of its run and its score."""
    tune = {
        "grid": {"algorithm.step_size": GRID},
        "criterion": "private_error",
        "repetitions": 2,
        "private": {"fraction": 0.4},
    }
    tree = TUNED | {"sweep": {"tune": tune | changes}}
    found: list[tuple[Cell, set[int]]] = []

    class Watched:
        def run(self, batches: Any) -> Iterator[tuple[Cell, Any]]:
            for batch in batches:
                for one in batch:
                    keys.clear()
                    (outcome,) = run_batch([one])
                    found.append((one, set(keys)))
                    yield one, outcome

    Engine(job_of(tree), Record()).run(Watched(), lambda _: None)
    return found


def test_private_tuning_shares_noise_with_nothing(keys: list[int], tmp_path: Path) -> None:
    found = of_selection(keys, tmp_path)
    tuning = [own for cell, own in found if cell.scored]
    assert len(tuning) == 4
    assert all(len(own) == 3 for own in tuning)  # one key a silo, and a purpose for each of noise and score
    assert all(a.isdisjoint(b) for a, b in pairs([own for _, own in found], 2))


SECOND: dict[str, dict[str, Any]] = {
    "another candidate": {"grid": {"algorithm.step_size": [GRID[0], 0.5]}},
    "more repetitions": {"repetitions": 3},
}


@pytest.mark.parametrize("changes", SECOND.values(), ids=SECOND)
def test_a_second_selection_on_the_same_records_draws_noise_of_its_own(
    changes: dict[str, Any], keys: list[int], tmp_path: Path
) -> None:
    """Also for a candidate that both have, at equal noise multipliers and in equal trials."""
    first = of_selection(keys, tmp_path / "first")
    second = of_selection(keys, tmp_path / "second", **changes)
    candidates = [[own for cell, own in found if cell.scored] for found in (first, second)]
    assert all(a.isdisjoint(b) for a in candidates[0] for b in candidates[1])
    assert of_selection(keys, tmp_path / "again") == first


def test_the_unit_is_a_part_of_keys_without_noise_too(base: dict[str, Any]) -> None:
    """It decides who is dealt out, so neither unit is ever given the records of the other."""
    for mechanism in ("none", "gaussian"):
        told = base["privacy"] | {"mechanism": mechanism}
        one, other = (
            cell_of(parse(base | {"privacy": told | {"unit": unit}}), 0, False)
            for unit in ("record", "person")
        )
        assert key_of(one) != key_of(other)
        assert one.run_id.records != other.run_id.records
        assert cell.data_key(one.scenario) != cell.data_key(other.scenario)
        assert one.scenario["privacy"].get("unit", {"name": "record"}) == {"name": "record"}
        assert other.scenario["privacy"]["unit"]["name"] == "person"
        assert (one.fold_key is None, other.fold_key is None) == (False, True)
