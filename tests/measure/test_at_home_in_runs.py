"""A fit at home in a simulation: its row, what joining is judged by, and what it is refused for."""

from typing import Any

import numpy as np
import pytest
import torch
from support.scenarios import once

import fedsim
from fedsim.common.errors import InputError
from fedsim.data.federation import SiloSplit
from fedsim.measure.evaluator import Evaluator
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.rows import Rows
from fedsim.report.sections.worth import Joining, JoiningSilo, _joining_lines
from fedsim.report.texts import remarks
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve

NUMBERS = {"num_rounds": 10, "step_size": 2.0, "clip_norm": 1.0}


def table(signs: list[int], each: int) -> fedsim.Arrays:
    """Silos in which the first feature points to class 1, or with sign -1 to class 0."""
    rng = np.random.default_rng(0)
    x, silo = rng.uniform(-1, 1, (len(signs) * each, 3)), np.repeat(np.arange(len(signs)), each)
    y = 2.0 * np.array(signs)[silo] * x[:, 0] + rng.logistic(0, 0.6, len(x)) > 0
    return fedsim.Arrays(x, y.astype(int), silo, ranges=(-1.0, 1.0), test_fraction=0.4)


def run_of(data: fedsim.Arrays, **changes: Any) -> fedsim.Run:
    report = {"metric": "loss", "at_home": True} | changes.pop("report", {})
    given = {"seed": 3, "trials": 3, "partition": "natural_id", "privacy": {"epsilon": 5.0}, "report": report}
    return fedsim.simulate(once(**given | {"algorithm": NUMBERS} | changes), data=data, progress=False)


def test_a_silo_that_is_unlike_the_others_loses_nothing_at_home() -> None:
    run = run_of(table([1, 1, 1, -1], 120))
    part, rows = run.summary.joining, run.baselines.to_pylist()
    home = [row for row in rows if row["baseline"] == "at_home"]
    assert [row["silo"] for row in home[:5]] == ["0", "1", "2", "3", None]
    assert "at home (own records)" in [one.label for one in run.summary.baselines]
    strange = part.silos[3]
    assert strange.joined > 1.5 * strange.alone
    assert strange.at_home < 1.05 * strange.alone
    assert (strange.verdict("loss", home=False), strange.verdict("loss")) == (-1, 0)
    (line,) = (line for line in remarks(run.summary) if "joining" in line)
    assert "one made of both at home" in line
    assert "not private" in line
    assert "and costs" not in line.split("without it")[0]


@pytest.mark.parametrize("trials", [1, 3])
def test_a_tie_is_no_loss(trials: int) -> None:
    """Silos of many like records: alone and joined differ in the fourth digit, well within their error."""
    enough = {"num_rounds": 80, "step_size": 8.0, "clip_norm": 2.0}
    report = {"at_home": False, "metric": "error"}
    run = run_of(
        table([1, 1], 1000), trials=trials, privacy={"epsilon": 1e3}, report=report, algorithm=enough
    )
    part = run.summary.joining
    assert part.alone == pytest.approx(part.joined, rel=0.02)
    assert part.joined_error > 0
    assert part.at_home is None
    assert [line.split(":")[0] for line in remarks(run.summary) if "joining" in line] == [
        "joining makes no difference on average beyond two standard errors"
    ]


def joining(alone: float, joined: float, error: float | None, home: float | None = None) -> Joining:
    own: dict[str, Any] = {"alone": alone, "joined": joined, "joined_error": error, "at_home": home}
    own |= {"at_home_error": None if home is None else error}
    silos = [JoiningSilo(name="a", **own)]
    return Joining(metric="loss", gain_interval90=(0.0, 0.0), silos=silos, **own)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (
            joining(0.0741, 0.07414, 0.001),
            "joining makes no difference on average beyond two standard errors",
        ),
        (joining(0.0741, 0.07414, None), "joining makes no difference"),
        (joining(0.07, 0.08, 0.004), "silos are better off alone"),
        (joining(0.07, 0.08, 0.006), "joining makes no difference"),
        (joining(0.08, 0.07, 0.004), "joining pays for 1 of 1 silos, most for a"),
        (joining(0.07, 0.08, 0.001, home=0.066), "joining pays for 1 of 1 silos, most for a, 0.07 to 0.066"),
    ],
)
def test_joining_is_judged_beyond_two_standard_errors(part: Joining, says: str) -> None:
    summary = run_of(table([1, 1], 60), trials=1).summary
    (line,) = _joining_lines(part, summary)
    assert line.startswith(says)
    assert ("report.at_home: true" in line) == (line.startswith("silos") and part.at_home is None)


def test_of_one_trial_the_error_is_that_of_the_test_records() -> None:
    """And silos of few records, which have no error, take no verdict away from the others."""
    run = run_of(table([1, 1], 400), trials=1, report={"metric": "error"})
    rows = {row["silo"]: row for row in run.table("joining").to_pylist()}
    known = [silo for silo in run.summary.joining.silos if silo.joined_error is not None]
    assert known
    for silo in known:
        assert silo.joined_error == rows[silo.name]["joined"]
    assert run.summary.joining.joined_error is not None


@pytest.mark.parametrize("each", [1, 5])
def test_a_paired_error_is_that_of_the_mean_of_units(each: int) -> None:
    """A jackknife of parts beside the deviation of units' means, where a unit has one record or five."""
    problem, found = LogisticRegression(3), []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(400, 3)), rng.integers(0, 2, 400).astype(float)
        owners = np.repeat(np.arange(400), each) if each > 1 else None
        rows = Rows(np.repeat(x, each, 0), np.repeat(y, each), None, owners)
        evaluate = Evaluator(problem, [SiloSplit("a", rows, rows)], torch.float64)
        evaluate._chosen = ("loss",)
        w, other = torch.tensor([1.0, 0.0, 0.0]).double(), torch.tensor([0.0, 0.8, 0.0]).double()
        losses = [problem.losses(torch.as_tensor(x) @ v, torch.as_tensor(y)) for v in (w, other)]
        found.append(evaluate.paired_error("a", w, other) / (float((losses[0] - losses[1]).std()) / 20))
    assert np.mean(found) == pytest.approx(1.0, abs=0.1)


def test_a_run_makes_the_model_of_one_silo(tmp_path) -> None:
    data = table([1, 1, -1], 100)
    run = run_of(data, trials=2)
    home = run.at_home("2", trial=1)
    assert [part.kind for part in home.parts] == ["alone", "federation", "adapted"]
    assert home.parts[0].weight > home.parts[1].weight
    weights, _ = home.coefficients()
    assert weights.shape == (1, 3)
    assert home.to_sklearn() is not None
    assert float(weights[0, 0]) < 0  # as the silo's own records have it
    for changes, words in (
        ({"silo": "9"}, "must be one of 0, 1, 2"),
        ({"silo": "2", "trial": 7}, "finished"),
    ):
        with pytest.raises(InputError, match=words):
            run.at_home(**changes)
    small = run_of(table([1, 1], 20), trials=1)
    with pytest.raises(InputError, match="has no fit at home: 12 records, and 15 are needed"):
        small.at_home("0")
    assert small.summary.joining.at_home == small.summary.joining.joined  # as it is


def test_of_a_network_as_well() -> None:
    network = {"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}}
    run = run_of(table([1, 1], 60), trials=1, problem=network)
    home, shared = run.at_home("1").parameters, run.predictor().parameters
    assert home.dtype == shared.dtype
    assert torch.equal(home[: 4 * 4 + 4], shared[: 4 * 4 + 4])  # features and the intercept's, four units
    assert not torch.equal(home, shared)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"problem": "hinge_loss"}, "scenario.report.at_home", "false: it is for logistic"),
        (
            {"report": {"at_home": True, "baselines": False}},
            "scenario.report.at_home",
            "needs report.baselines",
        ),
        (
            {"algorithm": NUMBERS | {"name": "mean_regularised", "pull": 0.1, "own_step_size": 0.5}},
            "scenario.report.at_home",
            "false: the algorithm has models of silos' own already",
        ),
        (
            {
                "problem": {
                    "name": "neural_network",
                    "model": {"name": "module", "path": "support.network_modules:Wide"},
                }
            },
            "scenario.report.at_home",
            "false: it is for logistic",
        ),
    ],
)
def test_what_has_no_fit_at_home_is_refused(changes: dict[str, Any], field: str, words: str) -> None:
    data = {"name": "breast_cancer"}
    with pytest.raises(InputError, match=words) as found:
        resolve(parse(once(**{"data": data, "report": {"at_home": True}, "algorithm": NUMBERS} | changes)))
    assert found.value.field == field
