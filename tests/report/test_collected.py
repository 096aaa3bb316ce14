"""A run's results are the same whether it has just ended or was read from its directory."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from support.refusals import ANY, refused
from support.scenarios import SMALL

import fedsim
from fedsim.api.given import one_run, resolved_of
from fedsim.measure.evaluator import Evaluator
from fedsim.report.arrow import table_of
from fedsim.report.outcome import Outcome, Results
from fedsim.report.page import save
from fedsim.report.record import exported
from fedsim.report.run_directory import RunData, data_of, read
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import preview
from fedsim.simulation.trial import execute


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    resolved, results = resolve(parse(SMALL)), Results()
    execute(resolved, results, lambda _: None)
    return Outcome(resolved, results, 1.0)


@pytest.fixture(scope="module")
def back(outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> RunData:
    directory = tmp_path_factory.mktemp("run") / "out"
    assert save(outcome, directory)[-1] == "figures/"
    return read(directory)


def test_what_is_read_is_what_was_written(outcome: Outcome, back: RunData) -> None:
    run = data_of(outcome)
    assert back.summary == run.summary
    assert back.summary.json_text() == run.summary.json_text()
    assert (back.scenario, back.description) == (run.scenario, run.description)
    for name in exported():
        assert table_of(back, name).equals(table_of(run, name), check_metadata=True)


def test_a_damaged_model_is_named(back: RunData) -> None:
    assert back.directory is not None
    path = back.directory / "nonprivate_baseline.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    with refused("RUN", ANY, "nonprivate_baseline.safetensors", "damaged"):
        _ = read(back.directory).models
    path.write_bytes(whole)


# What a silo spent is one number, in the table, in the curves, and where nothing is known of it.

SOME = {"participation": {"name": "availability", "probability": 0.5}, "trials": 4}


def test_the_curves_end_where_the_table_says() -> None:
    run = fedsim.simulate(SMALL | SOME, progress=False)
    last = {row["silo"]: row["epsilon_spent"] for row in run.spend}
    assert last == {silo.name: silo.epsilon_spent for silo in run.summary.privacy.silos}
    firsts = [row for row in run.ledger if row["trial"] == 0]
    counts = {silo.name: silo.rounds for silo in run.summary.privacy.silos}
    assert counts != {name: sum(row["silo"] == name for row in firsts) for name in counts}  # not the first's


def test_an_interrupted_run_without_a_trial_does_not_claim_to_have_spent_its_plan() -> None:
    resolved = resolved_of(one_run(SMALL))
    outcome = Outcome(resolved, Results(), 1.0, interrupted=True, admitted=preview(resolved))
    privacy = data_of(outcome).summary.privacy
    assert [silo.name for silo in privacy.silos] == ["silo-00", "silo-01", "silo-02"]
    assert all(silo.epsilon_guaranteed is not None for silo in privacy.silos)
    assert all(not {"epsilon_spent", "rounds"} & silo.model_fields_set for silo in privacy.silos)
    assert "what was spent is not known" in privacy.epsilon_spent_note


# A metric that the test records do not define ends no run: it is null, and a line says so.


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_run_whose_error_is_no_number_is_saved_and_says_so(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Evaluator.__call__

    def undefined(self: Evaluator, *args: object, **more: object) -> object:
        found = real(self, *args, **more)
        return type(found)(value, *found[1:]) if hasattr(found, "_fields") else (value, *found[1:])

    monkeypatch.setattr(Evaluator, "__call__", undefined)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = fedsim.simulate(
            "quickstart", trials=1, num_rounds=2, runtime="inprocess", progress=True, out=tmp_path / "run"
        )
    assert run.summary.metrics.error is None
    assert run.summary.metrics.loss is not None
    (line,) = [line for line in run.summary.warnings if "not a number" in line]
    assert "test error is not a number in 6 of 6 evaluations (first in trial 0, round 0)" in line
    read = fedsim.load_run(tmp_path / "run")
    assert set(read.metrics["error"]) == {None}
    assert read.summary.warnings == run.summary.warnings
    assert "not a number" in (tmp_path / "run" / "report.html").read_text()


def test_targets_all_alike_end_no_regression(tmp_path: Path) -> None:
    """The error is relative to the targets' spread, of which there is none."""
    rng = np.random.default_rng(0)
    records = fedsim.Arrays(rng.normal(size=(60, 3)), np.ones(60), np.repeat(["a", "b", "c"], 20))
    run = fedsim.simulate(
        {
            "name": "alike",
            "data": {"name": "synthetic"},
            "partition": {"name": "iid", "num_partitions": 3},
            "problem": "linear_regression",
            "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 0.1, "clip_norm": 1.0},
            "privacy": {"epsilon": 1.0},
            "runtime": "inprocess",
        },
        data=records,
        out=tmp_path / "run",
        progress=False,
    )
    assert len(run.model) == 1
    assert (tmp_path / "run" / "report.html").exists()
