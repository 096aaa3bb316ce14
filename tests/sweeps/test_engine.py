"""Tuning and resuming, with a runner whose results are made up."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.scenarios import FakeRunner, result

from fedsim.api import sweep
from fedsim.common.errors import InputError, Refused
from fedsim.measure.evaluator import Evaluator
from fedsim.protocol.limits import DIVERGED
from fedsim.report.record import CellResult, Record
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.failures import Failure
from fedsim.simulation.host import SiloHost
from fedsim.simulation.side_by_side import shared_key
from fedsim.simulation.sweeps import run_cells
from fedsim.simulation.sweeps.cell import Cell, CellOutcome, cell_of
from fedsim.simulation.sweeps.engine import Engine, Event, SweepResults, batches
from fedsim.simulation.sweeps.job import Place, job_of
from fedsim.simulation.sweeps.run import reported
from fedsim.simulation.sweeps.run_cells import run_batch, train_loss
from fedsim.simulation.trial import Trial, read

STEPS = [0.1, 0.2, 0.4]


def run(
    tree: dict[str, Any], folder: Path, outcome: Callable[[Cell], CellOutcome]
) -> tuple[SweepResults, FakeRunner]:
    runner = FakeRunner(outcome)
    with Record.open(folder / "record.sqlite", pytest.fail) as record:
        return Engine(job_of(tree), record).run(runner, lambda _: None), runner


def tuned(base: dict[str, Any], criterion: str = "final_train_loss") -> dict[str, Any]:
    tune = {"grid": {"algorithm.step_size": STEPS}, "criterion": criterion, "repetitions": 3}
    return base | {"sweep": {"grid": {"privacy.epsilon": [1, 2]}, "tune": tune}}


def best_step(cell: Cell) -> float:
    """A made-up truth: the best step depends on the budget."""
    return {1.0: 0.1, 2.0: 0.4}.get(cell.scenario["privacy"].get("epsilon"), 0.2)


def distance(cell: Cell) -> float:
    return abs(cell.scenario["algorithm"]["step_size"] - best_step(cell))


def test_the_best_mean_is_chosen_for_each_combination_and_reported_on_trials_of_its_own(
    base: dict[str, Any], tmp_path: Path
) -> None:
    def outcome(cell: Cell) -> CellResult:  # one lucky run of a bad step must not win
        lucky = cell.trial == 0 and cell.scenario["algorithm"]["step_size"] == 0.2
        return result(0.5, distance(cell) - 0.05 * lucky if cell.train_loss else None)

    results, runner = run(tuned(base), tmp_path, outcome)
    chosen = [STEPS[results.chosen[number] or 0] for number in range(3)]
    assert chosen == [0.1, 0.4, 0.2]
    tuning = {cell.trial for cell in runner.cells if cell.train_loss}
    reported = {cell.trial for cell in runner.cells if not cell.train_loss}
    assert (tuning, reported) == ({0, 1, 2}, {3, 4})
    assert len(runner.cells) == 3 * 3 * 3 + 3 * 2
    assert {row.place.trial for row in results.rows} == {3, 4}
    for row in results.rows:
        assert row.place.candidate == results.chosen[row.place.combination]


def test_the_better_of_two_algorithms_is_reported_and_every_candidate_is_tried(
    base: dict[str, Any], tmp_path: Path
) -> None:
    """Made up: the second is better at epsilon 1 only, and best at its own candidate."""
    second = {"name": "prox_spider", "tune": {"period": [1, 2, 3]}}
    either = {"label": "SPIDER", "num_rounds": 4, "clip_norm": 1.0, "step_size": 0.5}
    either["one_of"] = [{"name": "spider_alternate", "tune": {"step_size": [0.1, 0.2]}}, second]
    tree = base | {"sweep": {"grid": {"algorithm": [either], "privacy.epsilon": [1, 2]}}}

    def outcome(cell: Cell) -> CellResult:
        algorithm, epsilon = cell.scenario["algorithm"], cell.scenario["privacy"].get("epsilon")
        known = {0.1: 0.3, 0.2: 0.2}.get(algorithm["step_size"]) or 0.4 - 0.1 * algorithm["period"]
        return result(0.5, known + (0 if epsilon == 1 or "period" not in algorithm else 1))

    results, runner = run(tree, tmp_path, outcome)
    job = job_of(tree)
    chosen = [job.combinations[n].candidates[at or 0].chosen for n, at in sorted(results.chosen.items())]
    spider = {"algorithm.one_of": "prox_spider", "algorithm.period": 3}
    alternate = {"algorithm.one_of": "spider_alternate", "algorithm.step_size": 0.2}
    assert chosen == [spider, alternate, alternate]  # the last is the baseline
    assert sum(cell.train_loss for cell in runner.cells) == 3 * 5 * 3
    assert {row.place.trial for row in results.rows} == {3, 4}
    (row, *_) = results.rows
    assert row.place.candidate == 4
    assert spider.items() <= reported(job, results)[0].chosen.items()


def test_train_loss_is_measured_only_where_it_chooses(base: dict[str, Any], tmp_path: Path) -> None:
    results, runner = run(tuned(base, "final_metric"), tmp_path, lambda cell: result(distance(cell)))
    assert not any(cell.train_loss for cell in runner.cells)
    assert [STEPS[results.chosen[number] or 0] for number in range(3)] == [0.1, 0.4, 0.2]


def test_a_candidate_that_failed_once_is_not_chosen(base: dict[str, Any], tmp_path: Path) -> None:
    def outcome(cell: Cell) -> CellOutcome:
        if distance(cell) == 0 and cell.trial == 1:
            return Failure("refused", "diverged")
        return result(0.5, distance(cell))

    results, _ = run(tuned(base), tmp_path, outcome)
    assert [STEPS[results.chosen[number] or 0] for number in range(3)] == [0.2, 0.2, 0.1]
    assert len(results.failures) == 3


def test_where_every_candidate_fails_nothing_is_reported_and_the_rest_goes_on(
    base: dict[str, Any], tmp_path: Path
) -> None:
    def outcome(cell: Cell) -> CellOutcome:
        failed = cell.scenario["privacy"].get("epsilon") == 1
        return Failure("failed", "no") if failed else result(0.5, distance(cell))

    results, _ = run(tuned(base), tmp_path, outcome)
    assert results.chosen[0] is None
    assert {row.place.combination for row in results.rows} == {1, 2}


def test_finished_cells_are_not_run_again_and_failed_ones_are(base: dict[str, Any], tmp_path: Path) -> None:
    tree = base | {"sweep": {"grid": {"privacy.epsilon": [1, 2, 4]}}}

    def flaky(cell: Cell) -> CellOutcome:
        failed = cell.scenario["privacy"].get("epsilon") == 2
        return Failure("out of memory", "no") if failed else result(0.1)

    first, before = run(tree, tmp_path, flaky)
    assert (len(before.cells), first.ran, len(first.failures)) == (8, 8, 2)
    second, after = run(tree, tmp_path, lambda _: result(0.3))
    assert [cell.scenario["privacy"]["epsilon"] for cell in after.cells] == [2, 2]
    assert (second.cached, second.ran) == (6, 2)
    assert sorted(row.result.error for row in second.rows) == [0.1] * 6 + [0.3] * 2


def test_more_trials_run_only_the_new_ones(base: dict[str, Any], tmp_path: Path) -> None:
    run(tuned(base), tmp_path, lambda cell: result(0.5, distance(cell)))
    _, runner = run(tuned(base) | {"trials": 5}, tmp_path, lambda cell: result(0.5, distance(cell)))
    assert {cell.trial for cell in runner.cells} == {5, 6, 7}


def test_a_batch_holds_every_setting_in_every_trial(base: dict[str, Any], tmp_path: Path) -> None:
    tree = base | {"sweep": {"grid": {"privacy.epsilon": [1, 2], "algorithm.num_rounds": [3, 4]}}}
    _, runner = run(tree, tmp_path, lambda _: result())
    found = batches(reversed(runner.cells), most=10)
    # baselines, and private runs, of 3 and 4 rounds; two trials
    assert sorted(map(len, found)) == [2, 2, 4, 4]
    for batch in found:
        settings = {str(cell.scenario) for cell in batch}
        assert len({cell.trial for cell in batch}) * len(settings) == len(batch)
        assert len({cell.scenario["algorithm"]["num_rounds"] for cell in batch}) == 1
    assert sorted(map(len, batches(runner.cells, most=1))) == [1] * 12


# What a worker does with a batch.


def test_train_loss_is_the_weighted_mean_over_silos(base: dict[str, Any]) -> None:
    base["problem"] = {"name": "logistic_regression", "silo_weights": "size", "regulariser": {"l2": 0.5}}
    base["partition"] |= {"proportions": [1, 2, 5]}
    resolved = resolve(parse(base))
    silos = read(resolved, 0).silos
    w = torch.linspace(-1, 1, resolved.problem.dimension, dtype=torch.float64)
    pooled = []  # weights by size make the weighted mean that of all records
    for silo in silos:
        for x, y in zip(silo.train.features, silo.train.target, strict=True):
            pooled.append(math.log1p(math.exp((1 - 2 * y) * float(x @ w.numpy()))))
    assert train_loss(resolved, silos, w) == pytest.approx(sum(pooled) / len(pooled), rel=1e-12)
    equal = resolve(parse(base | {"problem": "logistic_regression"}))
    assert train_loss(equal, silos, w) != pytest.approx(train_loss(resolved, silos, w), rel=1e-6)


def test_a_cell_is_the_trial_whatever_ran_before_it_in_the_process(base: dict[str, Any]) -> None:
    scenarios = [parse(base | {"seed": seed}) for seed in (0, 1)]
    wanted = [cell_of(scenario, trial, False) for scenario in scenarios for trial in (0, 1, 2, 0)]
    for cell, found in zip(wanted, run_batch(wanted), strict=True):
        assert isinstance(found, CellResult)
        resolved = resolve(parse(cell.scenario))
        data = read(resolved, cell.trial)
        hosts = SiloHost(resolved, cell.trial, data, shared_key(resolved, data))
        trial = Trial(
            resolved, cell.trial, hosts, Evaluator(resolved.problem, data.silos, resolved.dtype), data
        )
        last = trial.advance(1e9)[-1]
        assert found.error == last.error
        assert found.loss == pytest.approx(last.loss, rel=1e-12)  # cells that fold round otherwise
        said = trial.result().statements
        assert found.epsilon == max(one.admitted.epsilon_guaranteed for one in said)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InputError("field", 1, "other"), "bad input"),
        (Refused("no"), "refused"),
        (Refused(f"a point is large {DIVERGED}"), "diverged"),
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), "out of memory"),
        (ZeroDivisionError("x"), "failed"),
    ],
)
def test_whatever_goes_wrong_is_that_cell_s_alone(
    error: Exception, kind: str, base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = cell_of(parse(base), 0, False), cell_of(parse(base), 1, False)
    real = run_cells._result

    def result(cell: Cell, *rest: Any) -> CellResult:
        if cell.trial == 1:
            raise error
        return real(cell, *rest)

    monkeypatch.setattr(run_cells, "_result", result)
    first, second, third = run_batch([good, bad, good])
    assert isinstance(first, CellResult)
    assert isinstance(second, Failure)
    assert second.kind == kind
    assert second.message
    assert isinstance(third, CellResult)


# What a person sees while a sweep runs.

CELL = Cell({}, 0, False)


def test_the_board_counts_and_names_the_best_private_mean_and_the_time_left(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(sweep.time, "monotonic", lambda: now)
    board = sweep._Board(job_of(base | {"trials": 2, "sweep": {"grid": {"privacy.epsilon": [1, 2]}}}))
    board.add(Event(Place(0, 0, 0), "key", CELL, result(0.4), True))
    board.add(Event(Place(2, 0, 0), "key", CELL, result(0.1), False))  # the baseline
    assert board.seconds_left() is None
    for trial, error in enumerate((0.1, 0.5)):  # lucky once
        assert board.text() == ""  # no combination has all its trials
        now += 3.0
        board.add(Event(Place(1, 0, trial), "key", CELL, result(error + 0.2), False))
    now += 3.0
    board.add(Event(Place(0, 0, 1), "key", CELL, Failure("refused", "no"), False))
    assert (board.done, board.cached, board.failed) == (5, 1, 1)
    assert board.seconds_left() == pytest.approx(3.0)
    assert board.text() == "1 failed; best so far 0.5000: epsilon=2"


def test_the_best_so_far_of_a_metric_whose_best_is_the_highest_never_falls(base: dict[str, Any]) -> None:
    tree = base | {
        "trials": 2,
        "report": {"metric": "auc"},
        "sweep": {"grid": {"privacy.epsilon": [1, 2, 3]}},
    }
    board = sweep._Board(job_of(tree))
    shown = []
    for number, values in enumerate(((0.7, 0.5), (0.9, 0.1), (0.8, 0.8))):
        for trial, auc in enumerate(values):
            cell = result(0.5)._replace(more={"auc": auc})
            board.add(Event(Place(number, 0, trial), "key", CELL, cell, False))
            shown.append(board.text().partition(":")[0])
    assert shown == ["", *["best so far 0.6000"] * 4, "best so far 0.8000"]
