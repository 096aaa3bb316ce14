"""A run's results are the same whether it has just ended or was read from its directory."""

import pytest
import torch
from support.refusals import ANY, refused
from support.scenarios import SMALL

from fedsim.report.page import save
from fedsim.report.plots import figure_of
from fedsim.results.outcome import Outcome, Results
from fedsim.results.run_directory import RunData, data_of, read
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
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
    for name in ("metrics", "silos", "ledger", "spend"):
        assert back.table(name).equals(run.table(name), check_metadata=True)


def test_models_are_by_variant_and_trial(outcome: Outcome, back: RunData) -> None:
    own = data_of(outcome).models
    assert {variant: list(trials) for variant, trials in back.models.items()} == {
        "private": [0, 1],
        "nonprivate": [0, 1],
    }
    for variant, trials in own.items():
        for trial, model in trials.items():
            assert torch.equal(back.models[variant][trial], model)


def test_a_damaged_model_is_named(back: RunData) -> None:
    assert back.directory is not None
    path = back.directory / "nonprivate_twin.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    with refused("RUN", ANY, "nonprivate_twin.safetensors", "damaged"):
        _ = read(back.directory).models
    path.write_bytes(whole)


def test_a_metric_has_a_figure_where_it_was_measured(outcome: Outcome) -> None:
    run = data_of(outcome)
    axes = figure_of(run, "error").axes[0]
    assert axes.get_ylabel() == "test error"
    assert figure_of(run, "excess_risk").axes[0].get_yscale() == "log"
    with refused("plot", "eror", "did you mean"):
        figure_of(run, "eror")
    unmeasured = resolve(parse(SMALL | {"report": {"excess_risk": False}}))
    with refused("plot", "excess_risk", "has nothing to show"):
        figure_of(data_of(Outcome(unmeasured, Results(), 1.0)), "excess_risk")
