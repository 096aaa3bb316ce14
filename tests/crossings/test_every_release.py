"""What is asked x unit x mechanism x silos: values are what labels say, within their standard errors."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsim
from crossings.features import Crossing, covering, every, names, overrides, scenario
from crossings.oracle import weights
from crossings.walk import judge, state
from fedsim.api.given import objects, one_run
from fedsim.api.release import _planned
from fedsim.report import run_directory
from fedsim.simulation.host import preview

M, DRAWS = 120, 400  # persons; releases, of which each has its own noise
ENDS = {"level": (-1.0, 1.0), "share": (0.0, 1.0), "flat": (0.0, 100.0), "cost": (1.0, 1000.0)}
NUMBERS = ("level", "share", "flat")
WARDS = ("a", "b", "c")
ASKED: dict[str, tuple[str, Any, int]] = {  # of which column, what, and how many values that is
    "mean": ("level", fedsim.Mean(), 1),
    "sum": ("share", fedsim.Sum(cap=2.0), 1),
    "count": ("level", fedsim.Count(0.5), 1),
    "histogram": ("level", fedsim.Histogram(4), 4),
    "histogram of a category": ("ward", fedsim.Histogram(), 3),
    "count of a target": ("target", fedsim.Count("yes"), 1),
    "quantile": ("share", fedsim.Quantiles(0.3), 1),
    "quantile, log": ("cost", fedsim.Quantiles(0.3), 1),
    "moments": ("m", fedsim.Moments("level", "cost", "flat", "ward"), 27),
    "components": ("m", fedsim.Components(1, *NUMBERS), 5),
}
DIMS = {
    "asked": list(ASKED),
    "unit": ["record", "limit/replace_person", "clip/add_remove", "limit/h:quantile"],
    "mechanism": ["gaussian", "summed/silos"],
    "silos": ["3", "1"],
    "expected": ["1", "0.8"],  # of the true number of persons, where that is private
    "wrapper": ["plain", "start_public"],
}


@pytest.fixture(autouse=True)
def scenarios_are_not_written(monkeypatch):
    monkeypatch.setattr(run_directory, "without_seed", lambda *given: "")


@cache
def people() -> dict[str, np.ndarray]:
    """Persons whose number of records goes with their values, so that it shows who weighs what."""
    rng = np.random.default_rng(3)
    count = rng.choice([1, 1, 2, 5, 12], M)
    who = np.repeat(np.arange(M), count)
    level = np.clip(rng.uniform(-0.3, 0.3, len(who)) + count[who] / 12 - 0.4, -1, 1).round(3)
    share = np.clip(rng.beta(2, 5, len(who)) + count[who] / 30, 0, 1).round(3)
    ward = np.where(rng.random(len(who)) < count[who] / 15, "b", rng.choice(["a", "c"], len(who)))
    found = {"level": level, "share": share, "flat": np.full(len(who), 75.0), "cost": 1000**share, "who": who}
    found |= {"ward": ward, "target": np.where(level > 0, "yes", "no")}
    return found | {f"ward={each}": 1.0 * (ward == each) for each in WARDS}


@cache
def table(silos: int) -> fedsim.Frame:
    data, schema = (
        people(),
        {name: {"kind": "number", "lower": a, "upper": b} for name, (a, b) in ENDS.items()},
    )
    schema["cost"]["scale"], schema["target"] = "log", {"kind": "category", "categories": ["no", "yes"]}
    schema["ward"] = {"kind": "category", "categories": list(WARDS)}
    names = (*ENDS, "ward", "target")
    frame = pd.DataFrame({name: data[name] for name in names} | {"id": data["who"].astype(str)})
    if silos > 1:
        frame["silo"] = [f"s{i % silos}" for i in data["who"]]
    return fedsim.Frame(frame, "target", "silo" if silos > 1 else None, schema, person="id")


def truth(of: str, what: str, persons: bool) -> float | None:
    """By the value's label and what weighs the same; None where it is of noise."""
    data, (kind, _, rest) = people(), what.partition(" ")
    who, w = data["who"], weights(data["who"] if persons else None, len(data["who"]))

    def among(*columns: str) -> float:
        return float(w @ np.prod([data[name] - w @ data[name] for name in columns], axis=0))

    if kind == "mean":
        return float(w @ data[rest or of])
    if kind == "quantile":
        order = np.argsort(data[of])
        return float(data[of][order][np.searchsorted(np.cumsum(w[order]), float(rest))])
    if kind == "covariance" or (kind == "variance" and not rest.isdigit()):
        return among(*(rest.split(", ") if kind == "covariance" else [rest] * 2))
    if kind == "variance":  # of columns mapped to [-1, 1]
        half = np.array([(ENDS[name][1] - ENDS[name][0]) / 2 for name in NUMBERS])
        table = np.array([[among(a, b) for a in NUMBERS] for b in NUMBERS])
        return float(np.linalg.eigvalsh(table / np.outer(half, half))[-int(rest)])
    if kind == "sum,":  # of a person at most ..
        return float(np.minimum(np.bincount(who, data[of]), float(what.split()[-1])).sum())
    if kind == "sum":
        return float(data[of].sum())
    *_, low, _, last = ("", "", *what.split())
    if of in ("ward", "target"):
        there = data[of] == last
    elif " from " in what:
        there = data[of] >= float(last)
    elif " to " in what:
        there = (data[of] >= float(low)) & ((data[of] < float(last)) | (float(last) == ENDS[of][1]))
    else:
        return None
    counts = {"persons'": M * (w @ there), "persons": len(np.unique(who[there]))}
    return float(counts.get(kind, there.sum()))


def given(crossing: Crossing) -> tuple[dict[str, Any], fedsim.Frame]:
    # All draws share one of the number of persons where that is private: this seed's is a usual one.
    over = {"privacy.epsilon": 50_000.0, "privacy.delta": 1e-5, "seed": 11}
    if (silos := int(crossing.get("silos", 3))) == 1:
        over["partition"] = {"name": "iid", "num_partitions": 1}
    if crossing.get("unit", "").endswith("add_remove"):
        over["privacy.expected_persons"] = round(M / silos * float(crossing.get("expected", 1)))
    own = {name: crossing[name] for name in ("unit", "mechanism", "wrapper") if name in crossing}
    return scenario(overrides(own) | over)[0], table(silos)


def request(crossing: Crossing, draws: int) -> dict[str, list[Any]]:
    name, asked, _ = ASKED[crossing.get("asked", "mean")]
    return {name: [asked] * draws}


def released(crossing: Crossing, draws: int) -> tuple[str, Any]:
    tree, data = given(crossing)
    return state(lambda: fedsim.release(tree, request(crossing, draws), data=data))


def faults_of(crossing: Crossing) -> list[str]:
    its, found = released(crossing, DRAWS)
    if its == "refused" and "wrapper" in crossing:
        plain = released({name: own for name, own in crossing.items() if name != "wrapper"}, 1)
        its, found = "fails" if plain[0] == "works" else its, f"refused beside public records: {found}"
    if its != "works":
        return [found] if its == "fails" else []
    persons, of, by_label = crossing.get("unit", "record") != "record", next(iter(found.found)), {}
    word = found.tree["weighing"]
    faults = (
        [] if word == ("persons, each weighs the same" if persons else "records") else [f"weighing: {word!r}"]
    )
    for each in found.found[of]:
        by_label.setdefault(each.what, []).append(each)
    if len(by_label) != (number := ASKED[crossing.get("asked", "mean")][2]):
        faults.append(f"{number} values were asked for, there are {', '.join(by_label)}")
    for what, values in by_label.items():
        if (true := truth(of, what, persons)) is None:
            continue
        inside = np.mean([_within(each, true, of, persons) for each in values])
        if not 0.9 <= inside <= (1.0 if what.startswith("quantile") else 0.9925):  # which has half a bin more
            mean = np.mean([each.value for each in values])
            faults.append(
                f"{what}: {inside:.1%} of {DRAWS} within two errors, mean {mean:.4g}, truth {true:.4g}"
            )
    return faults


def _within(each: Any, true: float, of: str, persons: bool) -> bool:
    """Whether it is within two standard errors; where ranks alone have one, some value within half a step."""
    if each.standard_error is not None:
        return abs(each.value - true) <= 2 * each.standard_error
    data, step, q = people(), each.half_step or 0.0, float(each.what.split()[1])
    w = weights(data["who"] if persons else None, len(data["who"]))
    below, upto = w @ (data[of] < each.value - step), w @ (data[of] <= each.value + step)
    return below - 2 * each.rank_error <= q <= upto + 2 * each.rank_error


def _sensible(crossing: Crossing) -> bool:
    own = {"expected": "1", "unit": "clip/add_remove", "silos": "3", "mechanism": "gaussian"} | crossing
    stated = own["expected"] == "1" or own["unit"].endswith("add_remove")
    return stated and (own["silos"] == "3" or own["mechanism"] == "gaussian")  # sums are of several


def _goes(crossing: Crossing) -> bool:
    tree, data = given(crossing)
    read = one_run(tree).model_copy(update=objects(None, data, {}))
    admitted = state(lambda: preview(_planned(read, request(crossing, 1))[0]))
    return _sensible(crossing) and admitted[0] == "works"


def test_releases_in_a_covering_array():
    judge("release", faults_of, filter(_sensible, covering(DIMS, _goes)))


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_every_release(asked):
    more = {"unit": names("unit", gate=False), "mechanism": names("mechanism", gate=False)}
    whole = every(DIMS | more | {"asked": [asked], "wrapper": ["plain"]})
    judge("release", faults_of, filter(_sensible, whole))
