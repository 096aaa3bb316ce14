"""A silo that is absent spends nothing; what its plan covers depends on whether it knew."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from support.refusals import lacking
from support.scenarios import refusal, simulate, write

from fedsim.api.run import load_run
from fedsim.privacy import cost
from fedsim.report.outcome import Results
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation import on_ray
from fedsim.simulation import trial as in_process

ROUNDS = 12
GOOD: dict[str, Any] = {
    "name": "absence",
    "data": {"name": "synthetic", "rows": 200, "features": 3},
    "partition": {"name": "iid", "num_partitions": 4},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": ROUNDS, "step_size": 1.0, "clip_norm": 1.0},
    "privacy": {"epsilon": 2.0},
    "runtime": "inprocess",
}
AVAILABILITY = {
    "name": "availability",
    "probability": {f"silo-0{i}": p for i, p in enumerate((1, 0.5, 0.3, 1e-6))},
}
TRACE = "round,silo\n" + "".join(
    f"{2 * r},silo-0{i}\n" for r in range(ROUNDS) for i in range(3) if r % (i + 1) == 0
)


def execute(participation: Any, runtime: str = "inprocess", **changes: Any) -> tuple[Resolved, Results]:
    resolved = resolve(parse(GOOD | {"participation": participation, "runtime": runtime} | changes))
    results = Results()
    (in_process if runtime == "inprocess" else on_ray).execute(resolved, results, lambda _: None)
    return resolved, results


def test_unknown_availability_guarantees_all_rounds_and_spends_those_answered():
    resolved, results = execute(AVAILABILITY)
    always, often, seldom, never = results.trials[0].statements
    for said in (always, often, seldom, never):
        assert said.admitted.releases == ROUNDS
        assert 1.98 <= said.admitted.epsilon_guaranteed <= 2
        expected = cost.epsilon(
            resolved.trace.plan.census(said.rounds),
            said.admitted.terms.n,
            said.admitted.noise_multiplier,
            said.admitted.terms.delta,
        )
        assert said.epsilon_spent == pytest.approx(expected)
    assert always.epsilon_spent == always.admitted.epsilon_guaranteed
    assert ROUNDS > len(often.rounds) > len(seldom.rounds) > len(never.rounds) == 0
    assert always.epsilon_spent > often.epsilon_spent > seldom.epsilon_spent > 0
    assert never.epsilon_spent == 0


def test_a_schedule_known_before_admission_is_all_that_a_silo_calibrates_to():
    _, results = execute({"name": "random_size", "min_silos": 1, "max_silos": 3})
    statements = results.trials[0].statements
    assert len({len(said.rounds) for said in statements}) > 1
    for said in statements:
        assert said.admitted.releases == len(said.rounds) < ROUNDS
        assert said.epsilon_spent == said.admitted.epsilon_guaranteed >= 1.98


@pytest.mark.parametrize("known", [False, True])
def test_a_trace_is_followed_to_the_letter(known, tmp_path):
    path = tmp_path / "there.csv"
    path.write_text(TRACE)
    _, results = execute({"name": "trace", "path": str(path), "known_in_advance": known})
    statements = results.trials[0].statements
    assert [len(said.rounds) for said in statements] == [12, 6, 4, 0]  # odd rounds of the file have no silo
    assert statements[1].rounds == [0, 2, 4, 6, 8, 10]
    assert [said.admitted.releases for said in statements] == ([12, 6, 4, 0] if known else [12] * 4)
    assert statements[3].epsilon_spent == 0
    assert (statements[2].epsilon_spent > 1.98) == known


@pytest.mark.parametrize("repeat", [False, True])
def test_an_algorithm_that_holds_its_silos_runs_on_those_of_them_that_are_there(repeat, tmp_path):
    path = tmp_path / "there.csv"
    flags = ["1,1,0,0", "0,1,1,1", "1,0,1,1", "0,0,1,1", "1,1,1,1", "0,0,1,0"]
    path.write_text("\n".join(["silo-00,silo-01,silo-02,silo-03", *flags[: 4 if repeat else 6]]) + "\n")
    svrg = {
        "name": "prox_svrg",
        "epochs": 2,
        "inner_steps": 2,
        "step_size": 0.5,
        "clip_norm": 1.0,
        "difference_clip": 1.0,
    }
    trace = {"name": "trace", "path": str(path), "repeat": repeat}
    _, results = execute(trace, algorithm=svrg)
    # Epoch 1 holds silos 0 and 1: of the second row 1 answers, of the third 0. Epoch 2 holds 2 and 3:
    # where the file begins again, they miss its first row and come in the second and third.
    rounds = [said.rounds for said in results.trials[0].statements]
    assert rounds == [[0, 2], [0, 1], [3, 4, 5], [3, 4, 5] if repeat else [3, 4]]
    assert all(model.isfinite().all() for model in results.trials[0].models["private"])


def test_both_layouts_and_formats_of_a_trace_mean_the_same(tmp_path):
    flags = {
        f"silo-0{i}": [int(i < 3 and r % 2 == 0 and r // 2 % (i + 1) == 0) for r in range(24)]
        for i in range(4)
    }
    (tmp_path / "rows.csv").write_text(TRACE)
    pq.write_table(pa.table({"round": range(24)} | flags), tmp_path / "flags.parquet")
    found = [
        resolve(
            parse(GOOD | {"participation": {"name": "trace", "path": str(tmp_path / file)}})
        ).active.attendance
        for file in ("rows.csv", "flags.parquet")
    ]
    assert found[0] == found[1]
    assert found[0][:3] == ((0, 1, 2), (0,), (0, 1))


@pytest.mark.slow
def test_absence_is_the_same_on_ray():
    _, here = execute(AVAILABILITY, trials=2)
    _, there = execute(AVAILABILITY, "ray", trials=2)
    for number in (0, 1):
        assert there.trials[number].statements == here.trials[number].statements
    assert here.trials[0].statements != here.trials[1].statements


def test_the_summary_reports_effective_m_and_both_epsilons(tmp_path):
    often = AVAILABILITY | {"probability": [1, 1, 0.5, 0.5]}
    out = simulate(tmp_path, GOOD | {"participation": often, "trials": 3})
    summary = json.loads((out / "summary.json").read_text())
    found = summary["participation"]
    assert found["expected_inverse_m"] == pytest.approx(0.25 / 2 + 0.5 / 3 + 0.25 / 4)
    assert found["effective_m"] == pytest.approx(1 / found["expected_inverse_m"])
    assert found["plan_covers"] == "all rounds"
    assert found["empty_round_probability"] == 0
    ledger = load_run(out).ledger.to_pylist()
    assert found["observed_mean_m"] == pytest.approx(len(ledger) / (3 * ROUNDS))
    most = {row["silo"]: 0 for row in ledger}
    for trial in range(3):
        for name in most:
            most[name] = max(most[name], sum(r["silo"] == name and r["trial"] == trial for r in ledger))
    for silo in summary["privacy"]["silos"]:  # the trial that cost the silo most
        assert silo["rounds"] == most[silo["name"]]
        assert silo["epsilon_spent"] <= silo["epsilon_guaranteed"] <= 2


BAD_TRACES = {
    None: "scenario.participation.path | there.csv | no such file",
    "round,silo\n0,silo-00\n1,silo-7\n": "scenario.participation.path | 'silo-7' | row 2",
    "round,silo\n-1,silo-00\n": "scenario.participation.path | '-1' | whole number",
    "round,silo\n0,silo-00\n": "scenario.participation.path | 1 of the run's 12 | repeat: true",
    "silo-00,silo-01,silo-02,silo-03\n0,0,0,0\n": "has no round with a silo in it",
    "silo-00,silo-01,silo-02\n1,1,1\n": "'silo-03' | no such column",
    "silo-00,silo-01,silo-02,silo-03\n0,1,2,1\n": "'2' | row 1 | silo silo-02 | 0 or 1",
    "": "scenario.participation.path | there.csv",
}
BAD_CHANCES = {
    "{name: availability, probability: 1.5}": "participation.probability | 1.5",
    "{name: availability, probability: 0}": "participation.probability | greater than 0",
    "{name: availability, probability: [1]}": "participation.probability | 4, not 1",
    "{name: random_size, min_silos: 3, max_silos: 2}": "participation | at most max_silos",
    "{name: random_size, min_silos: 3, max_silos: 5}": "max_silos | 5 | at most 4",
}


@pytest.mark.parametrize(
    ("text", "participation", "expected"),
    [
        *((text, "{name: trace, path: there.csv}", words) for text, words in BAD_TRACES.items()),
        *((None, participation, words) for participation, words in BAD_CHANCES.items()),
    ],
)
def test_bad_participation_names_field_value_and_remedy(text, participation, expected, tmp_path):
    if text is not None:
        (tmp_path / "there.csv").write_text(text)
    tree = GOOD | {"participation": yaml.safe_load(participation)}
    line = refusal("simulate", write(tmp_path, tree), "--out", tmp_path / "run")
    assert lacking(line, expected) == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("participation", ["all", {"name": "uniform", "num_silos": 99}])
def test_a_full_run_is_one_to_the_theorems_too(participation):
    """1 / (1 / 99) is 98.99999999999999, and for M < N theorems have other bounds and more rounds."""
    many = {"data": {"name": "synthetic", "rows": 990, "features": 3}, "assumptions": {"L": 1.0, "D": 1.0}}
    tree = GOOD | many | {"participation": participation, "partition": {"name": "iid", "num_partitions": 99}}
    setting = resolve(parse(tree)).symbols
    assert setting.M == setting.N == 99
    assert setting.between == 0
