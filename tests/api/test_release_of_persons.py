"""`fedsim.release` with persons as units: what values are of, their errors, private numbers of persons."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedsim
from fedsim.api.asked import Asked, Known, Units
from fedsim.api.release import _columns
from fedsim.privacy.exponential import chosen, epsilon_of, rank_scores
from fedsim.protocol.moments import svec
from fedsim.protocol.unit import RECORD, Person
from fedsim.report.released import read_released

PERSONS = 900


def visits() -> pd.DataFrame:
    """Persons whose number of visits goes with their values."""
    rng = np.random.default_rng(3)
    counts = rng.choice([1, 1, 2, 5, 12], PERSONS)
    who = np.repeat(np.arange(PERSONS), counts)
    own, n = counts[who], len(who)
    return pd.DataFrame(
        {
            "person": [f"p{k}" for k in who],
            "cost": rng.lognormal(4 + own / 6, 0.7, n).clip(5, 5000).round(2),
            "pressure": rng.normal(110 + 3 * own, 15, n).clip(60, 200),
            "same": 75.0,
            "ward": np.where(rng.random(n) < own / 12, "surgery", rng.choice(["eye", "skin"], n)),
            "ill": np.where(rng.random(n) < 0.2 + own / 24, "yes", "no"),
            "silo": [f"s{k % 3}" for k in who],
        }
    )


TABLE = visits()
SCHEMA: dict[str, Any] = {
    "cost": {"kind": "number", "lower": 5, "upper": 5000, "scale": "log"},
    "pressure": {"kind": "number", "lower": 60, "upper": 200},
    "same": {"kind": "number", "lower": 0, "upper": 100},
    "ward": {"kind": "category", "categories": ["eye", "skin", "surgery"]},
    "ill": {"kind": "category", "categories": ["no", "yes"]},
}
DATA = fedsim.Frame(TABLE, target="ill", silo="silo", person="person", schema=SCHEMA)
BASE: dict[str, Any] = {
    "name": "visits",
    "data": {"name": "synthetic", "rows": 40},
    "problem": "logistic_regression",
    "partition": {"name": "iid", "num_partitions": 2},
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 1, "step_size": 0.5, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0, "delta": 1e-6},
}
ASKED: dict[str, Any] = {
    "cost": [fedsim.Mean(), fedsim.Sum(cap=900), fedsim.Quantiles(0.25, 0.5)],
    "pressure": [fedsim.Mean(), fedsim.Count(140), fedsim.Histogram(4), fedsim.Quantiles(0.5, 0.9)],
    "ward": [fedsim.Count("eye"), fedsim.Histogram()],
    "ill": [fedsim.Count("no"), fedsim.Histogram()],
    "moments": fedsim.Moments("same", "pressure", "ward"),
    "main": fedsim.Components(1, "pressure", "ward"),
}
ENDS = {"same": (0, 100), "pressure": (60, 200), "eye": (-1, 1), "skin": (-1, 1), "surgery": (-1, 1)}


def added(expected: int) -> dict[str, Any]:
    unit = {"name": "person", "relation": "add_remove", "bound": "clip"}
    return {"privacy.unit": unit, "privacy.expected_persons": expected}


def weights(persons: bool) -> np.ndarray:
    """What a record counts in a sum over units."""
    if not persons:
        return np.ones(len(TABLE))
    return np.asarray(1 / TABLE.groupby("person")["cost"].transform("size"))


@cache
def truth(persons: bool) -> dict[tuple[str, str], float]:
    """By definition, of all but quantiles."""
    w = weights(persons)
    n, pressure = w.sum(), TABLE["pressure"]
    columns = {"same": TABLE["same"], "pressure": pressure}
    columns |= {f"ward={k}": (TABLE["ward"] == k) * 1.0 for k in ("eye", "skin", "surgery")}
    x = np.stack([column.to_numpy() for column in columns.values()])
    mean = x @ w / n
    covariance = (x * w) @ x.T / n - np.outer(mean, mean)
    found: dict[tuple[str, str], float] = {
        ("cost", "mean"): TABLE["cost"] @ w / n,
        ("pressure", "mean"): pressure @ w / n,
        **{("moments", f"mean {a}"): m for a, m in zip(columns, mean, strict=True)},
    }
    names = list(columns)
    for i, a in enumerate(names):
        for j in range(i, len(names)):
            what = f"variance {a}" if i == j else f"covariance {a}, {names[j]}"
            found["moments", what] = covariance[i, j]
    mapped = (x[1:] - [[130], [0], [0], [0]]) / [[70], [1], [1], [1]]
    middle = mapped @ w / n
    found["main", "variance 1"] = np.linalg.eigvalsh((mapped * w) @ mapped.T / n - np.outer(middle, middle))[
        -1
    ]
    cells = np.histogram(pressure, 4, (60, 200), weights=w)[0]
    share, some = ("persons' shares", "persons with") if persons else ("count", "count")
    ends = ("60 to 95", "95 to 130", "130 to 165", "165 to 200")
    found |= {("pressure", f"{share} {end}"): cell for end, cell in zip(ends, cells, strict=True)}
    for name in ("ward", "ill"):
        found |= {(name, f"{share} {k}"): w[TABLE[name] == k].sum() for k in SCHEMA[name]["categories"]}
    each = TABLE["person"] if persons else pd.Series(np.arange(len(TABLE)))
    sums = TABLE["cost"].groupby(each.to_numpy()).sum().clip(upper=900).sum()
    found["cost", "sum, of a person at most 900" if persons else "sum"] = sums
    found["pressure", f"{some} from 140"] = each[pressure >= 140].nunique()
    found["ward", f"{some} eye"] = each[TABLE["ward"] == "eye"].nunique()
    found["ill", f"{some} no"] = each[TABLE["ill"] == "no"].nunique()
    return found


def off(value: Any, name: str, persons: bool) -> float:
    """How many of its errors a value is off; of a quantile the rank's, of the place that is nearest."""
    if not value.what.startswith("quantile"):
        return abs(value.value - truth(persons)[name, value.what]) / value.standard_error
    (x, below), q = ranks(name, persons), float(value.what.split()[1])
    half = value.half_step or 0.0
    low = below[np.searchsorted(x, value.value - half)]
    high = below[np.searchsorted(x, value.value + half, side="right")]
    return float(max(0.0, low - q, q - high) / value.rank_error)


@cache
def ranks(name: str, persons: bool) -> tuple[np.ndarray, np.ndarray]:
    """A column's values in order, and the share of units below each and below infinity."""
    w, order = weights(persons), np.argsort(TABLE[name])
    return TABLE[name].to_numpy()[order], np.append(0, w[order].cumsum()) / w.sum()


PERSON = {"name": "person"}
UNITS: dict[str, dict[str, Any]] = {
    "record": {},
    **{
        f"{bound} {relation}": {"privacy.unit": PERSON | {"bound": bound, "relation": relation} | h}
        for bound, h in {"clip": {}, "mean": {}, "limit": {"h": 2}, "smooth": {"h": 20}}.items()
        for relation in ("replace_person", "replace_values")
    },
    "in two silos": {"privacy.unit": PERSON | {"silos_per_person": 2}},
    "profile": {
        "privacy.unit": PERSON
        | {"bound": "limit", "h": {"choose": "sweet_spot", "profile": {1: 0.5, 5: 0.5}}}
    },
    "added": added(300),
    "too many expected": added(400),
    "too few expected": added(100),
}


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("unit", UNITS)
def test_every_value_is_what_its_label_says_for_every_unit(unit: str, sums: bool) -> None:
    """Beyond 5 errors is one of 1.7 million values by noise alone."""
    changes = UNITS[unit] | (
        {"privacy.mechanism": "summed_gaussian", "privacy.honest_fraction": 1.0} if sums else {}
    )
    if sums and "replace_values" in unit:
        return  # refused: sums hide numbers of records
    found = fedsim.release(BASE, ASKED, 50.0, data=DATA, overrides=changes, seed=5)
    persons = unit != "record"
    number = found.found.pop("persons", None)
    assert (number is None) == ("expected" not in unit and unit != "added")
    if number is not None:
        assert abs(number[0].value - PERSONS) < 5 * number[0].standard_error
        assert len(found.notices) == ("expected" in unit)
    for name, own in found.found.items():
        for value in own:
            if "direction" not in value.what and "largest" not in value.what:
                assert off(value, name, persons) < 5, (name, value)
    known = {(name, value.what) for name, own in found.found.items() for value in own}
    assert set(truth(persons)) <= known
    assert found.values["moments"]["mean same"] == pytest.approx(75, abs=1)
    assert found.values["moments"]["variance same"] == pytest.approx(0, abs=60)
    assert found.tree["weighing"] == ("persons, each weighs the same" if persons else "records")


def exact(item: Any, persons: bool) -> np.ndarray:
    """An item's sum over units, by definition."""
    w, each = weights(persons), TABLE["person" if persons else "ill"]
    target = (TABLE["ill"] == "yes").to_numpy() * 1.0
    rows = [TABLE[k].to_numpy() for k in ("cost", "pressure", "same")]
    rows += [(TABLE["ward"] == k).to_numpy() * 1.0 for k in ("eye", "skin", "surgery")]
    features = np.stack([*rows, np.ones(len(TABLE)), target], 1)  # the target is column -1
    if item.statistic == "second_moment":
        query = item.query(7, torch.float64)
        v = features[:, :-1] @ query.transform.numpy().T
        assert (v**2).sum(1).max() <= item.clip + 1e-9  # nothing is clipped
        return svec(torch.from_numpy((v * w[:, None]).T @ v)).numpy()
    column, *options = item.options
    if item.statistic == "histogram":
        places = np.array(options[: int(column)], int)
        value = features[:, places] @ np.arange(1, len(places) + 1)
        edges = np.array(options[int(column) :])
        cell = np.clip(np.searchsorted(edges, value, side="right") - 1, 0, len(edges) - 2)
        return np.bincount(cell, w, len(edges) - 1)
    x, (low, high, *cap) = features[:, int(column)], options
    if item.statistic == "sum":
        return np.array([np.clip((x - low) / (high - low), 0, 1) @ w])
    own = (x >= low) & (x <= high) if item.statistic == "presence" else np.clip(x, low, high) / cap[0]
    if not persons:
        return np.array([np.minimum(own, 1).sum()])
    return np.array([pd.Series(own * 1.0).groupby(each.to_numpy()).sum().clip(upper=1).sum()])


DRAWS = 400


@pytest.mark.parametrize("noise", [pytest.param(0.003, marks=pytest.mark.slow), 0.01])
@pytest.mark.parametrize(("persons", "expected"), [(False, None), (True, None), (True, 900), (True, 1200)])
def test_twice_its_errors_cover_a_value_in_nine_of_ten_draws_and_not_in_all(
    persons: bool, expected: int | None, noise: float
) -> None:
    units = PERSONS if persons else len(TABLE)
    n, rng = expected or units, np.random.default_rng(17)
    unit = Person(relation="add_remove" if expected else "replace_person") if persons else RECORD
    known = Known(_columns(DATA), n, False, unit)
    spreads = {"sum": 1.0, "presence": 1.0, "capped_sum": 1.0} if expected is None else {}
    inside = dict[tuple[str, str], list[bool]]()
    for name, own in ASKED.items():
        for each in own if isinstance(own, list) else [own]:
            assert isinstance(each, Asked)
            items, read = each.ask(name, known)
            means = [exact(item, persons) / n for item in items]
            plain = math.sqrt(2) if expected is None else 1.0
            errors = [noise * item.clip * spreads.get(item.statistic, plain) for item in items]
            for _ in range(DRAWS):
                drawn = [m + e * rng.standard_normal(len(m)) for m, e in zip(means, errors, strict=True)]
                there = (
                    Units() if expected is None else Units(units / n + noise * rng.standard_normal(), noise)
                )
                for value in read(drawn, errors, there):
                    if "direction" not in value.what and "largest" not in value.what:
                        inside.setdefault((name, value.what), []).append(off(value, name, persons) <= 2)
    shares = {key: float(np.mean(each)) for key, each in inside.items()}
    assert min(shares.values()) >= 0.9, min(shares.items(), key=lambda each: each[1])
    narrow = {
        key: share for key, share in shares.items() if "quantile" not in key[1]
    }  # theirs has a bin in it
    assert max(narrow.values()) <= 0.9925, max(narrow.items(), key=lambda each: each[1])


@pytest.mark.parametrize("column", ["pressure", "cost"])
@pytest.mark.parametrize("mu", [0.05, 0.3, 2.0])
def test_twice_the_rank_error_of_one_silos_quantile_covers_it(column: str, mu: float) -> None:
    known = Known(_columns(DATA), PERSONS, True, Person())
    who = TABLE["person"].astype("category").cat.codes.to_numpy()
    q = (0.1, 0.333333, 0.5, 0.9)
    items, read = fedsim.Quantiles(*q).ask(column, known)
    scores = [rank_scores(TABLE[column].to_numpy(), item.options[2:], item.options[1], who) for item in items]
    rng, epsilon = np.random.default_rng(8), float(epsilon_of(mu))
    inside = {f"quantile {each:g}": list[float]() for each in q}
    for _ in range(DRAWS):
        answers = [np.array([chosen(own, epsilon, rng.random())]) for own in scores]
        for value in read(answers, [1 / (mu * PERSONS)] * len(q), Units()):
            inside[value.what].append(off(value, column, True))
    shares = [np.mean(np.array(own) <= 2) for own in inside.values()]
    assert min(shares) >= 0.9, shares
    ratios = {b / a for a, b in zip(items[0].options[2:], items[0].options[3:], strict=False)}
    assert (max(ratios) - min(ratios) < 1e-9) == (column == "cost")  # geometric where the column is


PERSON_ONLY = {"privacy.unit": "person"}
BELOW = SCHEMA | {"pressure": {"kind": "number", "lower": -60, "upper": 200}}
BAD: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    (
        PERSON_ONLY,
        SCHEMA,
        {"cost": fedsim.Sum()},
        r"release\.cost: inf: the most that a person's sum counts as",
    ),
    (
        PERSON_ONLY,
        SCHEMA,
        {"cost": fedsim.Sum(0)},
        r"release\.cost: 0: the most that .* such as Sum\(cap=100\)",
    ),
    (
        PERSON_ONLY,
        BELOW,
        {"pressure": fedsim.Sum(9)},
        r"-60.*: a range from 0 on, to add up a person's values; or ask for Mean",
    ),
    *(
        (
            {"privacy.unit": PERSON | {"bound": bound, "h": {"choose": rule, "share": 0.1}}},
            SCHEMA,
            {"cost": fedsim.Mean()},
            rf"scenario\.privacy\.unit\.h: .*{rule}.*a number, or bound mean: a release takes means",
        )
        for bound, rule in (("limit", "quantile"), ("smooth", "private_root"))
    ),
]


@pytest.mark.parametrize(("changes", "schema", "asked", "said"), BAD)
def test_what_has_no_sense_of_persons_is_refused_by_name(
    changes: dict[str, Any], schema: dict[str, Any], asked: dict[str, Any], said: str
) -> None:
    data = fedsim.Frame(TABLE, target="ill", silo="silo", person="person", schema=schema)
    with pytest.raises(fedsim.InputError, match=said):
        fedsim.release(BASE, asked, data=data, overrides=changes)


def test_public_records_play_no_part_in_a_release() -> None:
    public = fedsim.Frame(TABLE.head(40).drop(columns=["silo", "person"]), target="ill", schema=SCHEMA)
    problem = {"name": "logistic_regression", "public": {"weight": 0.5}}
    given = [BASE, BASE | {"public": public, "problem": problem}]
    plain, other = (fedsim.release(each, {"cost": fedsim.Mean()}, data=DATA, seed=1).values for each in given)
    assert plain == other


def test_a_run_directory_says_what_its_values_are_of_and_one_of_before_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = fedsim.release(BASE, ASKED, data=DATA, overrides=added(200), out=run)
    written = json.loads((run / "release.json").read_text())
    assert (written["unit"], written["weighing"]) == ("person", "persons, each weighs the same")
    assert written["values"] == found.tree["values"]
    assert {row["weighing"] for row in written["values"]} == {written["weighing"]}
    assert math.isclose(sum(written["spent"].values()), 1)
    assert written["spent"]["persons number"] == 1 / 14
    page = (run / "report.html").read_text()
    for text in (page, found._repr_html_()):
        assert "Values are of persons, each weighs the same (unit person)." in text
        assert "persons number 0.0714" in text
        assert "; expected_persons add up to 600: declare about as many as there are. Values" in text
    (run / "release.json").write_text(json.dumps(written["values"]))
    with pytest.raises(
        fedsim.InputError, match=r"run/release\.json.*: of an earlier version, .* release them again"
    ):
        read_released(run)
