"""Private tuning: what silos release to choose is what the ledger says, and within their budgets."""

import copy
import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.refusals import lacking
from support.scenarios import BASE, FakeRunner, invoke, result, write

from fedsim.common.errors import Refused
from fedsim.measure.evaluator import Evaluator
from fedsim.privacy import cost, gaussian
from fedsim.privacy.cost import compose_runs
from fedsim.report.record import CellResult, Record
from fedsim.scenario.load import place
from fedsim.simulation.failures import Failure
from fedsim.simulation.host import SiloHost
from fedsim.simulation.side_by_side import Folded
from fedsim.simulation.sweeps import run_cells
from fedsim.simulation.sweeps.cell import Cell
from fedsim.simulation.sweeps.engine import Engine, Event, batches
from fedsim.simulation.sweeps.job import job_of
from fedsim.simulation.sweeps.pool import Local
from fedsim.simulation.sweeps.run_cells import run_batch
from silos.vault.gate import Gate

STEPS = [0.05, 1.0]
TUNE: dict[str, Any] = {
    "grid": {"algorithm.step_size": STEPS},
    "criterion": "private_error",
    "repetitions": 3,
    "private": {"fraction": 0.4},
}
TREE: dict[str, Any] = BASE | {
    "data": {"name": "synthetic", "rows": 300, "features": 3},
    "sweep": {"grid": {"privacy.epsilon": [0.5, 6]}, "tune": TUNE},
}
HALF, REST = 20, 48  # of 100 records: 2 * 20 are put aside, a fifth of the other 60 tests
RUNS, ROUNDS = 6, 4


def changed(**sections: Any) -> dict[str, Any]:
    return copy.deepcopy(TREE | sections)


def sweep(tree: dict[str, Any], folder: Path, code: int = 0) -> str:
    return invoke("sweep", write(folder, tree), "--out", folder / "out", code=code)


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out" / "summary.json").read_text())


def engine(tree: dict[str, Any]) -> Engine:
    return Engine(job_of(tree), Record())


def ignored(_: Event) -> None:
    pass


def all_cells(tree: dict[str, Any]) -> list[Cell]:
    runner = FakeRunner(lambda _: result())
    engine(tree).run(runner, ignored)
    return runner.cells


def epsilon(releases: int, z: float) -> float:
    return float(gaussian.epsilon(math.sqrt(releases) / z, 1 / REST**2))


def test_the_ledger_adds_up_and_a_second_sweep_runs_nothing(tmp_path: Path) -> None:
    output = sweep(TREE, tmp_path)
    assert f"{3 * (RUNS + 2)} cells run" in output
    assert "step_size tuned privately, on 40% of each silo's records" in output
    said = summary(tmp_path)
    assert said["tuning"]["private"] is True
    assert not any("the choice of" in n and "step size" in n for n in said["privacy"]["not_private"])
    ledger = said["privacy"]["tuning"]["combinations"]
    assert [one["varied"] for one in ledger] == [{"privacy.epsilon": 0.5}, {"privacy.epsilon": 6}]
    for budget, one, reported in zip((0.5, 6), ledger, said["combinations"], strict=False):
        assert one["runs"] == RUNS
        assert [silo["name"] for silo in one["silos"]] == ["silo-00", "silo-01", "silo-02"]
        for silo in one["silos"]:
            assert (silo["n_tune"], silo["n_run"], silo["delta"]) == (2 * HALF, REST, 1 / REST**2)
            z, of_score = silo["noise_multiplier"], silo["score_noise_multiplier"]
            assert silo["epsilon_training"] == pytest.approx(epsilon(RUNS * ROUNDS, z), rel=1e-9)
            assert silo["epsilon_scores"] == pytest.approx(epsilon(RUNS, of_score), rel=1e-9)
            assert silo["epsilon_tuning"] == max(silo["epsilon_training"], silo["epsilon_scores"])
            assert silo["epsilon_total"] == max(silo["epsilon_tuning"], silo["epsilon_run"])
            assert 0.999 * budget <= silo["epsilon_total"] <= silo["epsilon_budget"] == budget
        assert reported["epsilon_guaranteed"] == max(silo["epsilon_total"] for silo in one["silos"])
    assert "0 cells run, 24 from the cache" in sweep(TREE, tmp_path)
    again = summary(tmp_path)
    assert (again["privacy"], again["tuning"]) == (said["privacy"], said["tuning"])


def test_the_shipped_scenario_keeps_its_budgets(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "scenarios" / "private_tuning.yaml"
    sweep(yaml.safe_load(shipped.read_text()) | {"trials": 1}, tmp_path)
    for one in summary(tmp_path)["privacy"]["tuning"]["combinations"]:
        for silo in one["silos"]:
            assert silo["n_tune"] + silo["n_run"] == 600 + 0.8 * 1400
            assert silo["epsilon_total"] <= silo["epsilon_budget"] == one["varied"]["privacy.epsilon"]


def test_the_least_noisy_score_wins_and_what_is_reported_is_the_rest() -> None:
    def outcome(cell: Cell) -> CellResult:
        aside = cell.scenario["data"]["reserve"]["use"] == "reserved"
        assert aside == cell.scored
        assert cell.grant is not None
        return result(abs(cell.scenario["algorithm"]["step_size"] - 1.0) if aside else 0.3)

    runner = FakeRunner(outcome)
    results = engine(TREE).run(runner, ignored)
    assert [STEPS[results.chosen[number] or 0] for number in range(3)] == [1.0] * 3
    assert {row.result.error for row in results.rows} == {0.3}
    assert len(runner.cells) == 3 * (RUNS + 2)


def test_no_two_runs_of_a_combination_share_a_trial_and_so_their_noise() -> None:
    trials = defaultdict(list)
    for cell in all_cells(TREE):
        trials[str(cell.scenario["privacy"].get("epsilon"))].append(cell.trial)
    assert len(trials) == 3
    for own in trials.values():
        assert sorted(own) == list(range(RUNS + 2))


@pytest.mark.parametrize("batch", [{"sampler": "full"}, {"sampler": "poisson", "fraction": 0.5}], ids=str)
def test_candidates_draw_noise_of_their_own(batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two candidates that are all but the same end far apart, in equal trials too; one repeated does not."""
    tree = changed(algorithm=BASE["algorithm"] | {"batch": batch})
    tree["sweep"]["tune"]["grid"] = {"algorithm.step_size": [1.0, 1.0 + 1e-9]}
    tree["sweep"]["grid"] = {"privacy.epsilon": [1]}
    models, real = [], run_cells._result

    def kept(cell: Cell, *rest: Any) -> CellResult:
        models.append(next(each.model for each in rest if isinstance(each, Folded)))
        return real(cell, *rest)

    monkeypatch.setattr(run_cells, "_result", kept)
    tuning = [cell for cell in all_cells(tree) if cell.scored and any(cell.grant.noise)]
    assert len(tuning) == RUNS
    scores = [found.error for found in run_batch(tuning) if isinstance(found, CellResult)]
    assert len(set(scores)) == len(models) == RUNS
    assert all((a - b).norm() > 0.01 for i, a in enumerate(models) for b in models[:i])
    models.clear()
    run_batch([_forged(cell._replace(trial=0)) for cell in tuning])
    half = RUNS // 2
    assert all(torch.equal(a, b) for own in (models[:half], models[half:]) for a in own for b in own)
    assert (models[0] - models[half]).norm() > 0.01


def test_a_cell_of_private_tuning_folds_with_none() -> None:
    every = all_cells(TREE)
    tuning = [cell for cell in every if cell.scored]
    assert len(tuning) == 3 * RUNS  # the baseline's too: it has no noise, and a score without
    assert all(len(batch) == 1 for batch in batches(tuning))
    assert any(len(batch) > 1 for batch in batches(every))
    some = tuning[:2] + tuning[-2:]
    alone = [run_batch([cell])[0] for cell in some]
    assert [_value(one) for one in run_batch(some)] == [_value(one) for one in alone]


def test_a_candidate_s_run_looks_at_the_records_that_score_it_by_the_noisy_count_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(*_: object) -> None:
        raise RuntimeError("a record made this fail")

    cell = all_cells(changed())[0]
    assert cell.scored
    for method in ("__init__", "__call__", "by_silo", "of_model"):
        monkeypatch.setattr(Evaluator, method, look)
    (outcome,) = run_batch([cell])
    assert isinstance(outcome, CellResult), outcome


def _forged(cell: Cell) -> Cell:
    """With its grant filled in for what the cell has become, which no `Parts` would do."""
    assert cell.grant is not None
    return cell._replace(grant=cell.grant._replace(run=cell.run_id))


def _with(cell: Cell, field: str, value: Any) -> Cell:
    tree = copy.deepcopy(dict(cell.scenario))
    place(tree, field, value)
    return cell._replace(scenario=tree)


MORE: dict[str, Callable[[Cell], Cell]] = {
    "one more run": lambda cell: cell._replace(trial=cell.trial + 100),
    "another step size": lambda cell: _with(cell, "algorithm.step_size", 0.123),
    "other noise": lambda cell: _with(cell, "seed", 77),
    "another measurement": lambda cell: cell._replace(train_loss=True),
    "the other part": lambda cell: _with(cell, "data.reserve.use", "rest" if cell.scored else "reserved"),
    "no grant": lambda cell: cell._replace(grant=None),
}


@pytest.mark.parametrize("way", MORE)
def test_a_worker_runs_what_was_granted_and_nothing_more(way: str) -> None:
    every = all_cells(TREE)
    chosen = [next(cell for cell in every if cell.scored == scored) for scored in (True, False)]
    for cell in chosen:
        (refused,) = run_batch([MORE[way](cell)])
        assert isinstance(refused, Failure), refused
        assert refused.kind == "refused"
        assert "grant" in refused.message
    reported = [cell for cell in every if not cell.scored][:4]
    refused, *others = run_batch([MORE[way](reported[0]), *reported[1:]])  # as a batch, too
    assert isinstance(refused, Failure)
    assert all(isinstance(other, CellResult) for other in others)


def test_a_grant_of_other_terms_than_the_cell_s_is_refused_before_anything_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = next(cell for cell in all_cells(TREE) if cell.scored and any(cell.grant.noise))
    monkeypatch.setattr(Gate, "asked", lambda *_: pytest.fail("answered"))
    for field, value in [
        ("algorithm.num_rounds", ROUNDS + 1),
        ("privacy.noise_multiplier", [15.0] * 3),
        ("algorithm.batch", {"sampler": "poisson", "fraction": 0.5}),
    ]:
        (refused,) = run_batch([_forged(_with(cell, field, value))])
        assert isinstance(refused, Failure)
        assert "not the plan, at the noise, that was priced" in refused.message


def test_a_selection_is_run_once() -> None:
    """By another engine with the same selection nothing is handed out again; a new one is priced anew."""
    first, runner = engine(TREE), FakeRunner(lambda _: result())
    first.run(runner, ignored)
    with pytest.raises(Refused, match="once is paid for"):
        first.run(runner, ignored)
    for selection in first._job.selections.values():
        trained = {selection.parts._candidates == set(range(RUNS)), len(selection.parts._reported) == 2}
        assert trained == {True}


def test_where_nothing_is_chosen_the_rest_is_reported_all_the_same() -> None:
    tree = changed(report={"nonprivate_baseline": False})
    tree["sweep"]["tune"]["grid"] = {"algorithm.step_size": [1.0]}
    runner = FakeRunner(lambda _: result())
    engine(tree).run(runner, ignored)
    assert [cell.grant.part for cell in runner.cells] == ["reported"] * 4
    assert all(isinstance(one, CellResult) for one in run_batch(runner.cells[:2]))


def _value(one: object) -> float:
    assert isinstance(one, CellResult)
    assert one.loss is None
    return one.error


PLANS: dict[str, dict[str, Any]] = {
    "all": {},
    "some silos": {"participation": {"name": "uniform", "num_silos": 1}},
    "who comes": {"participation": {"name": "availability", "probability": 0.4}},
    "poisson": {"algorithm": BASE["algorithm"] | {"batch": {"sampler": "poisson", "fraction": 0.3}}},
    "local steps": {
        "algorithm": BASE["algorithm"]
        | {"name": "local_sgd", "local_steps": 3, "batch": {"sampler": "subsample", "fraction": 0.2}}
    },
    "theorem": {
        "algorithm": {"name": "prox_sgd", "parameters": "theorem"},
        "assumptions": {"L": 1.0, "beta": 0.25, "mu": 0.1, "Delta": 1.0},
    },
}


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS)
def test_what_the_gates_admit_costs_what_the_silos_agreed_to(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = changed(**changes, trials=1, report={"nonprivate_baseline": False})
    tree["sweep"]["grid"] = {"privacy.epsilon": [2]}
    spent, real = defaultdict(list), SiloHost.open

    def opened(host: SiloHost, variant: Any, rounds: Any) -> Any:
        admitted = real(host, variant, rounds)
        aside = host._resolved.scenario.data.reserve.use == "reserved"
        for each in admitted:
            assert each.terms.n == (HALF if aside else REST)
            census = host._resolved.trace.plan.census(tuple(each.terms.rounds))
            spent[aside, each.terms.name].append((census, each.noise_multiplier))
        return admitted

    monkeypatch.setattr(SiloHost, "open", opened)
    desk = engine(tree)
    desk.run(Local(), ignored)
    for silo in desk._job.selections[0].parts.silos:
        candidates = silo["candidates"]
        terms, z = candidates.terms, candidates.noise_multiplier
        runs = spent[True, terms.name]
        assert len(runs) == RUNS
        assert {own for census, own in runs if census} <= {z}
        found = compose_runs([census for census, _ in runs], HALF).epsilon(z, terms.delta)
        assert found == pytest.approx(candidates.epsilon_guaranteed, rel=1e-9)
        assert silo.epsilon <= terms.epsilon == 2
        assert terms.delta == 1 / REST**2
        ((census, z),) = spent[False, terms.name]
        assert cost.epsilon(census, REST, z, terms.delta) <= terms.epsilon


def test_a_reported_run_that_is_refused_has_cost_nothing_and_the_ledger_is_written(tmp_path: Path) -> None:
    """Three fresh batches of 0.4 fit into 3 records that are put aside, and not into the 5 that train."""
    fresh = {"batch": {"sampler": "fresh", "fraction": 0.4}, "num_rounds": 3}
    tree = changed(
        data={"name": "synthetic", "rows": 36, "features": 3},
        algorithm=BASE["algorithm"] | fresh,
        report={"nonprivate_baseline": False},
    )
    tree["sweep"]["tune"]["private"]["fraction"] = 0.5
    assert "fresh units" in sweep(tree, tmp_path, code=1)
    for one in summary(tmp_path)["privacy"]["tuning"]["combinations"]:
        for silo in one["silos"]:
            assert (silo["n_tune"], silo["n_run"], silo["epsilon_run"]) == (6, 5, 0.0)
            assert silo["epsilon_total"] == silo["epsilon_tuning"] > 0


def test_a_silo_may_train_on_one_record_also_in_a_twin(tmp_path: Path) -> None:
    tree = changed(data={"name": "synthetic", "rows": 15, "features": 2})
    tree["privacy"]["delta"] = 0.01  # 1/n^2 of two records is more than anybody can mean
    sweep(tree, tmp_path)
    assert summary(tmp_path)["privacy"]["tuning"]["combinations"][0]["silos"][0]["n_tune"] == 2


DIGITS: dict[str, Any] = {"data": {"name": "digits"}, "problem": "softmax_regression"}
HINGE = {"problem": "hinge_loss"}
REGRESSION = {
    "data": {"name": "synthetic", "rows": 300, "features": 3, "link": "linear"},
    "problem": "linear_regression",
}


def scored(**private: Any) -> dict[str, Any]:
    return {"criterion": None, "private": {"fraction": 0.4, **private}}


BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("tune.private.metric", {}, scored(metric="rmse"), "auc"),
    ("tune.private.metric", DIGITS, scored(metric="auc"), "SoftmaxRegression of 10 classes"),
    ("tune.private.metric", HINGE, scored(metric="brier"), "HingeLoss | all but error probabilities"),
    ("tune.private.metric", {}, {"private": scored(metric="auc")["private"]}, "private_metric"),
    ("tune.private.bins", {}, scored(metric="auc", bins=1), "2"),
    ("tune.private.bound", {}, scored(metric="log_loss", bound=0.5), "0.5"),
    ("tune.grid.data.pca", {}, {"grid": {"data.pca": [1, 2]}}, "sets records or budgets"),
    ("tune.grid.seed", {}, {"grid": {"seed": [1, 2]}}, "sets records or budgets"),
    ("tune.grid.partition.num_partitions", {}, {"grid": {"partition.num_partitions": [1, 2]}}, "records"),
    ("tune.grid.privacy.delta", {}, {"grid": {"privacy.delta": [1e-5, 1e-6]}}, "budgets"),
    ("tune.criterion", {}, {"criterion": "final_train_loss"}, "use private_error"),
    ("tune.criterion", {}, {"private": None}, "needs tune.private"),
    ("tune.private.fraction", {}, {"private": {"fraction": 1}}, "less than 1"),
    ("tune.private.fraction", {}, {"private": {"fraction": 0.005}}, "0 of its 100 units"),
    ("data.reserve", {"data": BASE["data"] | {"reserve": {"fraction": 0.1}}}, {}, "leave it out"),
    ("problem.name", REGRESSION, {}, "must be a class, not a number"),
    (
        "tune.private",
        {"privacy": {"mechanism": "none"}, "sweep": {"grid": {"algorithm.num_rounds": [1, 2]}}},
        {},
        "'fraction': 0.4 | give mechanism gaussian",
    ),
    (
        "tune.private",
        {"privacy": {"delta": 1e-9}, "sweep": {"grid": {"privacy.epsilon": [6, 0.01]}}},
        {"repetitions": 500},
        "silo 'silo-00', 1000 runs to choose from | lower repetitions | epsilon=0.01",
    ),
]


@pytest.mark.parametrize(("field", "sections", "tune", "words"), BAD)
def test_bad_input_is_one_line_that_names_the_field(
    field: str, sections: dict[str, Any], tune: dict[str, Any], words: str, tmp_path: Path
) -> None:
    tree = changed(**sections, report={"nonprivate_baseline": False})
    tree["sweep"]["tune"] = {k: v for k, v in (TUNE | tune).items() if v is not None}
    output = sweep(tree, tmp_path, code=2)
    name = f"scenario.sweep.{field}" if field.startswith("tune") else f"scenario.{field}"
    assert lacking(output, f"{name} | {words}") == []
    assert len(output.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_models_that_are_not_finite_lose_and_nothing_else_fails(tmp_path: Path) -> None:
    tree = changed(report={"nonprivate_baseline": False})
    tree["sweep"]["tune"]["grid"] = {"algorithm.step_size": [1.0, 1e9]}
    assert "diverged in 3 tuning runs" in sweep(tree, tmp_path)
    said = summary(tmp_path)
    assert [one["chosen"]["algorithm.step_size"] for one in said["combinations"]] == [1.0, 1.0]
    for one in said["privacy"]["tuning"]["combinations"]:
        assert one["runs"] == RUNS  # what failed is paid for all the same
    assert torch.isfinite(torch.tensor([one["error"] for one in said["combinations"]])).all()
