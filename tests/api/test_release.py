"""`fedsim.release`: values, standard errors, what silos pay, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.scenarios import invoke

import fedsim
from fedsim.algorithms.release import Item, Release
from fedsim.protocol.statistics import statistic
from fedsim.report.released import read_released

SILOS, N = 4, 2000


def records() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    age = rng.normal(50, 15, N).clip(10, 95)  # beyond the declared range in places
    return pd.DataFrame(
        {
            "age": age,
            "visits": rng.poisson(6, N).astype(float),
            "charges": rng.lognormal(8, 1, N).clip(100, 1e5),
            "sex": rng.choice(["f", "m", "other"], N, p=[0.5, 0.4, 0.1]),
            "ill": np.where(rng.random(N) < 0.3, "yes", "no"),
            "silo": [f"s{k}" for k in rng.integers(SILOS, size=N)],
        }
    )


TABLE = records()
SCHEMA: dict[str, Any] = {
    "age": {"kind": "number", "lower": 20, "upper": 80},
    "visits": {"kind": "number", "lower": 0, "upper": 30},
    "charges": {"kind": "number", "lower": 100, "upper": 1e5, "scale": "log"},
    "sex": {"kind": "category", "categories": ["f", "m", "other"]},
    "ill": {"kind": "category", "categories": ["no", "yes"]},
}
BASE: dict[str, Any] = {
    "name": "ward",
    "data": {"name": "synthetic", "rows": 40},
    "problem": "logistic_regression",
    "partition": {"name": "iid", "num_partitions": 2},
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 1, "step_size": 0.5, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0},
}


def released(request: dict[str, Any], epsilon: float = 1.0, **more: Any) -> Any:
    data = fedsim.Frame(TABLE, target="ill", silo="silo", schema=SCHEMA, test_fraction=0.2)
    return fedsim.release(BASE, request, epsilon, data=data, **more)


SUMS = {"privacy.mechanism": "summed_gaussian", "privacy.honest_fraction": 1.0}
AGE, VISITS = TABLE["age"].clip(20, 80), TABLE["visits"]
EVERYTHING: dict[str, Any] = {
    "age": [fedsim.Mean(), fedsim.Count(60), fedsim.Histogram(6), fedsim.Quantiles(0.05, 0.5, 0.95)],
    "visits": fedsim.Sum(cap=8),
    "charges": [fedsim.Mean(), fedsim.Quantiles(0.5)],
    "sex": [fedsim.Histogram(), fedsim.Count("m")],
    "ill": [fedsim.Histogram(), fedsim.Count("yes")],
    "m": fedsim.Moments("visits", "charges", "sex"),
}


@pytest.mark.slow
def test_one_silo_chooses_its_quantiles_and_states_the_error_of_their_ranks() -> None:
    levels = (0.25, 0.5, 0.333333)
    alone = {"partition": {"name": "iid", "num_partitions": 1}}
    ranks: dict[float, list[float]] = {q: [] for q in levels}
    for seed in range(200):
        found = released(
            {"visits": fedsim.Mean(), "age": fedsim.Quantiles(*levels)}, overrides=alone, seed=seed
        )
        for q, value in zip(levels, found.found["age"], strict=True):
            assert value.standard_error is None
            ends = (float((value.value + side * value.half_step > AGE).mean()) - q for side in (-1, 1))
            low, high = ends
            ranks[q].append(max(0.0, low, -high) / value.rank_error)
    for own_ranks in ranks.values():
        assert np.mean(np.array(own_ranks) <= 2) >= 0.9
        assert 0.2 < np.std(own_ranks) < 1  # a rank error of another scale would be outside
    statistics = [item.statistic for item in planned(found)]
    assert statistics == ["sum", "quantile", "quantile", "quantile"]


def planned(found: Any) -> tuple[Item, ...]:
    algorithm = found.run.source.resolved.algorithm
    assert isinstance(algorithm, Release)
    return algorithm.items


def test_every_silo_pays_once_what_the_plan_costs_and_all_that_is_asked_costs_the_same() -> None:
    found = released(EVERYTHING | {"p": fedsim.Components(2)}, epsilon=0.7)
    resolved, summary = found.run.source.resolved, found.run.summary
    assert {silo.name for silo in summary.privacy.silos} == {f"s{k}" for k in range(SILOS)}
    for silo, before in zip(summary.privacy.silos, found.run.source.admitted, strict=True):
        assert silo.epsilon_spent == silo.epsilon_guaranteed == before.epsilon_guaranteed
        assert 0.699 < silo.epsilon_guaranteed <= 0.7
        assert silo.n == (TABLE["silo"] == silo.name).sum()  # all records
    rounds = found.run.ledger.to_pylist()
    assert (
        len({(row["silo"], row["round"]) for row in rounds})
        == len(rounds)
        == SILOS * len(resolved.trace.plan.rounds)
    )
    entries = sum(len(own) if isinstance(own, list) else 1 for own in EVERYTHING.values()) + 1
    assert [item.noise_ratio for item in planned(found)] == [math.sqrt(entries)] * entries


def test_the_noise_of_an_item_is_what_its_error_says() -> None:
    """sqrt(sum z_i^2) / N x spread x clip x ratio, by hand."""
    found = released({"age": fedsim.Mean(), "sex": fedsim.Histogram(), "p": fedsim.Components(1, "age")})
    z = [silo.noise_multiplier for silo in found.run.summary.privacy.silos]
    unit = math.sqrt(sum(each**2 for each in z)) / N * math.sqrt(3)
    assert found.errors["age"]["mean"] == pytest.approx(60 * unit)
    assert found.errors["sex"]["count f"] == pytest.approx(N * unit * math.sqrt(2) * math.sqrt(2 / 3))
    largest = found.values["p"]["largest variance of noise"]
    assert largest == pytest.approx(unit * math.sqrt(2) * 2 * math.sqrt(2))  # |(x, 1)|^2 is at most 2
    assert statistic("second_moment").spread_of((0.0,)) == math.sqrt(2)


def test_components_are_those_of_the_mapped_columns() -> None:
    found = released({"p": fedsim.Components(2, "visits", "charges", "sex")}, epsilon=1e5).values["p"]
    ends = {"visits": (0, 30), "charges": (100, 1e5)}
    columns = [2 * (TABLE[name] - low) / (high - low) - 1 for name, (low, high) in ends.items()]
    columns += [(TABLE["sex"] == k) * 1.0 for k in ("f", "m", "other")]
    variances, directions = np.linalg.eigh(np.cov(np.stack(columns), bias=True))
    names = ["visits", "charges", "sex=f", "sex=m", "sex=other"]
    for k in (1, 2):
        assert found[f"variance {k}"] == pytest.approx(variances[-k], rel=0.01)
        v = [found[f"direction {k}: {name}"] for name in names]
        assert abs(np.dot(v, directions[:, -k])) > 0.999
        assert max(v, key=abs) > 0


BAD: list[tuple[dict[str, Any], str]] = [
    ({"age": fedsim.Quantiles(0.5, 1.0)}, "release.age: 1.0: a quantile between 0 and 1"),
    ({"age": fedsim.Quantiles()}, "release.age: 0.0: a quantile between 0 and 1"),
    ({"age": fedsim.Quantiles(0.1234567)}, "of at most six digits"),
    ({"age": fedsim.Quantiles(0.5, bins=1)}, "release.age: 1: from 2 to 4096 bins"),
    ({"age": fedsim.Histogram(1)}, "release.age: 1: from 2 to 4096 bins"),
    ({"aeg": fedsim.Mean()}, "release.aeg: 'aeg': no such column; did you mean 'age'?"),
    ({"sex": fedsim.Mean()}, "release.sex: 'sex': has categories"),
    ({"sex": fedsim.Count("F")}, "release.sex: 'F': no such category; did you mean 'f'?"),
    ({"age": fedsim.Count("f")}, "release.age: 'f': a number above 20, at most 80"),
    ({"age": fedsim.Count(20)}, "release.age: 20: a number above 20, at most 80"),
    ({"age": fedsim.Sum(20)}, "release.age: 20: a cap above 20"),
    ({"p": fedsim.Components(5, "age", "sex")}, "release.p: 5: from 1 to 4 components"),
    ({"p": fedsim.Components(7)}, "release.p: 7: from 1 to 6 components"),
    ({"p": fedsim.Components(1, "ill")}, "release.p: 'ill': is the target"),
    ({"m": fedsim.Moments("agee")}, "release.agee: 'agee': no such column; did you mean 'age'?"),
    ({"age": fedsim.Sum("x")}, "release.age: {'cap': 'x'}: has options that it cannot have"),  # type: ignore
    ({"age": fedsim.Histogram(6.5)}, "release.age: 6.5: from 2 to"),  # type: ignore
    ({"p": fedsim.Components(1.5)}, "release.p: 1.5: from 1 to"),  # type: ignore
    ({"p": fedsim.Components(2.0, "age", "visits", "sex")}, "from 1 to"),  # type: ignore
    ({}, "release: []: ask for something"),
    ({"age": "mean"}, "release: ['m', 'e', 'a', 'n']: ask for something"),
]


@pytest.mark.parametrize(("request_", "said"), BAD)
def test_bad_requests_are_refused_by_name_before_a_record_is_read(
    request_: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsim.api.release.load", None)
    with pytest.raises(fedsim.InputError) as caught:
        released(request_)
    assert said in str(caught.value)


def test_one_silo_alone_chooses_its_quantiles() -> None:
    alone = {"partition": {"name": "iid", "num_partitions": 1}}
    found = released({"age": fedsim.Quantiles(0.25, 0.5)}, epsilon=50, overrides=alone)
    assert [item.statistic for item in planned(found)] == ["quantile", "quantile"]
    for each, q in zip(found.found["age"], (0.25, 0.5), strict=True):
        assert each.value == pytest.approx(AGE.quantile(q), abs=0.5)
        assert each.standard_error is None
        assert 0 < each.rank_error < 0.01
        assert each.half_step == pytest.approx(30 / (N // 16))  # of 60 years
    assert "% of ranks" in found._repr_html_()
    assert " +- 0.24" in found._repr_html_()


def test_a_release_without_data_is_refused() -> None:
    with pytest.raises(fedsim.InputError, match=r"scenario\.data"):
        fedsim.release(
            {key: value for key, value in BASE.items() if key not in ("data", "partition")},
            {"x": fedsim.Mean()},
        )


def test_a_column_without_a_declared_range_has_no_bins() -> None:
    data = fedsim.Arrays(np.zeros((40, 2)), np.arange(40) % 2, np.arange(40) % 4)
    for asked in (fedsim.Histogram(), fedsim.Mean(), fedsim.Quantiles(0.5), fedsim.Sum(3)):
        with pytest.raises(fedsim.InputError, match=r"release.x0: 'x0': has no declared range: declare one"):
            fedsim.release(BASE, {"x0": asked}, 1.0, data=data)


def test_a_release_without_noise_or_as_a_training_run_is_refused() -> None:
    with pytest.raises(fedsim.InputError, match=r"scenario.privacy.mechanism: 'none': one with noise"):
        released({"age": fedsim.Mean()}, overrides={"privacy.mechanism": "none"})
    item = ["sum", [0, -1, 1]]
    tree = BASE | {"algorithm": {"name": "release", "items": [item]}}
    with pytest.raises(fedsim.InputError, match=r"scenario.algorithm.name: 'release': trains no model"):
        fedsim.simulate(tree)
    chosen = Release((Item("quantile", (0.0, 0.5, -1.0, 1.0, 9.0)),))
    with pytest.raises(fedsim.InputError, match=r"'quantile': a histogram: one silo's choice"):
        fedsim.price(BASE, algorithm=chosen)


def test_values_of_arrays_and_of_log_ranges_are_in_their_own_units() -> None:
    rng = np.random.default_rng(0)
    features = rng.uniform(100, 300, (4000, 2))
    data = fedsim.Arrays(features, features[:, 0], np.arange(4000) % 4, ranges=(100.0, 300.0))
    found = fedsim.release(BASE, {"x1": fedsim.Mean(), "m": fedsim.Moments()}, 1e5, data=data)
    assert found.values["x1"]["mean"] == pytest.approx(features[:, 1].mean(), abs=0.1)
    assert found.values["m"]["variance x0"] == pytest.approx(features[:, 0].var(), rel=0.01)
    with pytest.raises(fedsim.InputError, match=r"release.target: 'target': has no declared range"):
        fedsim.release(BASE, {"target": fedsim.Mean()}, 1.0, data=data)
    logs = fedsim.release("breast_cancer", {"mean area": [fedsim.Mean(), fedsim.Histogram(4)]}, 1e4)
    assert 600 < logs.values["mean area"]["mean"] < 700
    edges = [float(what.split()[1]) for what in list(logs.values["mean area"])[1:]]
    assert edges[2] / edges[1] == pytest.approx(edges[3] / edges[2], rel=1e-3)


def test_the_command_writes_a_run_directory_with_values_and_a_page(tmp_path: Path) -> None:
    out = tmp_path / "run"
    request = ["age=mean", "age=quantiles:0.05,0.5", "sex=count:Male", "age=count:60"]
    request += ["all=components:1,age,chol"]
    printed = invoke("release", "quickstart", *request, "--epsilon", 0.5, "--out", out)
    assert "quantile 0.05" in printed
    assert "guaranteed" in printed
    written = json.loads((out / "release.json").read_text())
    what = [row["what"] for row in written["values"]]
    assert what[:4] == ["mean", "quantile 0.05", "quantile 0.5", "count from 60"]
    assert (written["unit"], written["weighing"]) == ("record", "records")
    assert {row["weighing"] for row in written["values"]} == {"records"}
    asked = ["age mean", "age quantiles", "sex count", "age count", "all components"]
    assert written["spent"] == dict.fromkeys(asked, 0.2)
    page = (out / "report.html").read_text()
    stated = "Values are of records (unit record). Shares of mu^2 that were spent: age mean 0.2, "
    assert stated in page
    assert stated in " ".join(printed.split())
    assert "Released values" in page
    assert "not measured" not in page
    assert "from test records" not in page
    assert "direction 1: chol" in page
    assert "fedsim simulate scenario.yaml" not in page
    assert fedsim.load_run(out).summary.algorithm == "release"
    again = json.loads(invoke("release", "quickstart", "age=mean", "--json", "--out", tmp_path / "json"))
    assert again["values"][0]["what"] == "mean"
    assert len(again["silos"]) == 16
    for wrong, said in (
        ("age=man", "no such kind; did you mean 'mean'?"),
        ("age=mean:3", "too few or too many options"),
        ("age", "no such kind"),
    ):
        assert said in invoke("release", "quickstart", wrong, "--out", tmp_path / "none", code=2)
    assert not (tmp_path / "none").exists()


def data() -> fedsim.Frame:
    return fedsim.Frame(TABLE, target="ill", silo="silo", schema=SCHEMA)


UNEQUAL = {**SUMS, "privacy.epsilon": {"s0": 2.0, **{f"s{k}": 500.0 for k in range(1, SILOS)}}}


def test_in_sums_every_silo_counts_in_full_within_the_smallest_budget() -> None:
    found = fedsim.release(BASE, {"age": fedsim.Mean()}, data=data(), overrides=UNEQUAL)
    assert {silo.epsilon_budget for silo in found.run.summary.privacy.silos} == {2.0}
    assert abs(found.values["age"]["mean"] - AGE.mean()) < 5 * found.errors["age"]["mean"]


def test_a_silo_whose_clip_is_smaller_in_sums_counts_less_though_nothing_is_clipped() -> None:
    """Else a record of it would move the sum by more than the silo has priced."""
    from fedsim.api.given import objects, one_run
    from fedsim.api.release import _planned, _released
    from fedsim.simulation.host import agreed_terms

    given = one_run(BASE, UNEQUAL)
    given = given.model_copy(update=objects(None, data(), ()))
    resolved, readers = _planned(given, {"age": fedsim.Mean(), "sex": fedsim.Histogram()})
    first, *others = (replace(budget, epsilon=500.0) for budget in resolved.budgets)
    resolved = replace(resolved, budgets=(replace(first, epsilon=2.0), *others))
    shares = {terms.name: terms.share.clip for terms in agreed_terms(resolved, 0) if terms.share}
    assert shares["s0"] < 0.5
    weight = TABLE["silo"].map(shares)
    found = _released(resolved, readers)
    expected = 20 + ((AGE - 20) * weight).mean()
    assert abs(found.values["age"]["mean"] - expected) < 6 * found.errors["age"]["mean"]
    assert abs(expected - AGE.mean()) > 20 * found.errors["age"]["mean"]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"privacy.honest_fraction": 0.5}, {"privacy.noise_by": "aggregators"}])
def test_errors_in_sums_count_all_noise_that_is_added(changes: dict[str, Any]) -> None:
    sums = {**SUMS, **changes}
    if "privacy.noise_by" in changes:
        del sums["privacy.honest_fraction"]
    off = []
    for seed in range(200):
        found = released({"age": fedsim.Mean()}, overrides=sums, seed=seed)
        off.append((found.values["age"]["mean"] - AGE.mean()) / found.errors["age"]["mean"])
    assert np.std(off) == pytest.approx(1, abs=0.15)


def test_a_directory_that_is_taken_is_refused_before_anything_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("fedsim.api.release.load", None)
    with pytest.raises(fedsim.InputError, match=str(tmp_path)):
        released({"age": fedsim.Mean()}, out=tmp_path)


def test_bins_of_close_edges_keep_their_own_names_and_a_long_table_is_cut() -> None:
    features = np.linspace(1e6, 1e6 + 1, 400)[:, None]
    data = fedsim.Arrays(features, np.arange(400) % 2, np.arange(400) % 4, ranges=(1e6, 1e6 + 1))
    found = fedsim.release(BASE, {"x0": fedsim.Histogram(300)}, 1e4, data=data)
    assert len(found.values["x0"]) == 300
    assert "100 more in release.json" in found._repr_html_()
    assert repr(fedsim.Sum(20)) == "Sum(cap=20)"


def test_all_records_are_released_but_a_model_is_tested_on_some() -> None:
    with pytest.raises(fedsim.InputError, match=r"test_fraction: 0\.0: leaves no silo a record to test with"):
        fedsim.simulate(BASE, test_fraction=0.0, runtime="inprocess")


def test_what_a_scenario_says_of_its_model_plays_no_part() -> None:
    changes = {
        "prepare": [{"name": "standardise", "share": 0.1}],
        "evaluate": {"bins": 10},
        "report.metric": "auc",
    }
    plain, other = (released({"age": fedsim.Mean()}, overrides=each, seed=1).values for each in ({}, changes))
    assert plain == other


def test_the_same_seed_gives_the_same_values() -> None:
    first, again, other = (released({"age": fedsim.Mean()}, seed=seed).values for seed in (1, 1, 2))
    assert first == again != other
    more = released({"age": fedsim.Mean(), "visits": fedsim.Mean()}, seed=1)
    alone = released({"age": fedsim.Mean()}, seed=1)
    noise = [(each.values["age"]["mean"] - AGE.mean()) / each.errors["age"]["mean"] for each in (alone, more)]
    assert abs(noise[0] - noise[1]) > 1e-6  # other requests have other noise, though the seed is one


def test_moments_hold_records_to_their_declared_ranges_as_means_do() -> None:
    """Ages lie beyond the range in places: the moment is of what a mean counts."""
    found = released({"age": fedsim.Mean(), "m": fedsim.Moments("age")}, 1000.0).values
    assert found["m"]["mean age"] == pytest.approx(found["age"]["mean"], abs=0.05)
    assert found["m"]["mean age"] == pytest.approx(AGE.mean(), abs=0.05)
    assert found["m"]["variance age"] == pytest.approx(AGE.var(ddof=0), rel=0.01)


# Of persons. What each value is of, `tests/crossings/test_every_release.py` tells for every unit.

PEOPLE = TABLE.assign(person=TABLE["silo"] + (TABLE.groupby("silo").cumcount() // 3).astype(str))
ADDED = {"privacy.unit": {"name": "person", "relation": "add_remove"}, "privacy.expected_persons": 100}


def of_persons(request: dict[str, Any], schema: dict[str, Any] = SCHEMA, **more: Any) -> Any:
    frame = fedsim.Frame(PEOPLE, target="ill", silo="silo", person="person", schema=schema)
    return fedsim.release(BASE, request, data=frame, **more)


BELOW = SCHEMA | {"age": {"kind": "number", "lower": -60, "upper": 200}}


@pytest.mark.parametrize(
    ("schema", "asked", "said"),
    [
        (SCHEMA, {"visits": fedsim.Sum()}, r"release\.visits: inf: the most that a person's sum counts as"),
        (SCHEMA, {"visits": fedsim.Sum(0)}, r"release\.visits: 0: the most that .* such as Sum\(cap=100\)"),
        (
            BELOW,
            {"age": fedsim.Sum(9)},
            r"-60.*: a range from 0 on, to add up a person's values; or ask for Mean",
        ),
    ],
)
def test_what_has_no_sense_of_persons_is_refused_by_name(
    schema: dict[str, Any], asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(fedsim.InputError, match=said):
        of_persons(asked, schema, overrides={"privacy.unit": "person"})


def test_public_records_play_no_part_in_a_release() -> None:
    public = fedsim.Frame(TABLE.head(40).drop(columns="silo"), target="ill", schema=SCHEMA)
    changes = {"public": public, "problem": {"name": "logistic_regression", "public": {"weight": 0.5}}}
    plain, other = (
        of_persons({"age": fedsim.Mean()}, overrides=each, seed=1).values for each in ({}, changes)
    )
    assert plain == other


def test_a_run_directory_says_what_its_values_are_of_and_one_of_before_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = of_persons(EVERYTHING, overrides=ADDED, out=run)
    written = json.loads((run / "release.json").read_text())
    assert (written["unit"], written["weighing"]) == ("person", "persons, each weighs the same")
    assert written["values"] == found.tree["values"]
    assert {row["weighing"] for row in written["values"]} == {written["weighing"]}
    assert math.isclose(sum(written["spent"].values()), 1)
    assert written["spent"]["persons number"] == 1 / 13
    page = (run / "report.html").read_text()
    for text in (page, found._repr_html_()):
        assert "Values are of persons, each weighs the same (unit person)." in text
        assert "persons number 0.0769" in text
        assert "; expected_persons add up to 400: declare about as many as there are. Values" in text
    (run / "release.json").write_text(json.dumps(written["values"]))
    old = r"run/release\.json.*: of an earlier version, .* release them again"
    with pytest.raises(fedsim.InputError, match=old):
        read_released(run)
