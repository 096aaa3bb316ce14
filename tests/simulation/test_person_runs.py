"""Runs whose unit is the person: the records of a run, its parts and its hosts."""

from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.data.arrays import Arrays
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import SiloHost
from fedsim.simulation.trial import read

VISITS: dict[str, Any] = {
    "name": "visits",
    "data": {"name": "visits", "num_silos": 3, "persons_per_silo": 30},
    "partition": "natural_id",
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 3, "step_size": 1.0, "clip_norm": 1.0},
    "privacy": {"unit": "person", "epsilon": 1.0},
    "runtime": "inprocess",
    "trials": 1,
    "seed": 0,
}


def privacy(**more: Any) -> dict[str, Any]:
    return VISITS | {"privacy": VISITS["privacy"] | more}


def shown(tree: dict[str, Any], data: Any = None) -> list[str]:
    """What text, page and JSON of price and simulation say first."""
    run = fedsim.simulate(tree, data=data, progress=False)
    notices = run.summary.privacy.notices
    assert fedsim.price(tree, data=data).statement.notices == notices
    assert all(line in str(run.summary.tree()) for line in notices)
    return notices


@pytest.mark.parametrize("choose", ["quantile", "private_root"])
def test_an_h_that_was_chosen_is_shown_with_its_rule_and_its_share(choose: str, tmp_path: Any) -> None:
    unit = {"name": "person", "bound": "limit", "h": {"choose": choose, "share": 0.2, "largest": 20}}
    run = fedsim.simulate(privacy(unit=unit), trials=2, out=tmp_path / "run", progress=False)
    (line,) = shown(privacy(unit=unit))
    assert line.startswith(f"h, at most 20, is chosen by {choose}")
    assert line.endswith("for 0.2 of mu^2")
    assert len(run.summary.chosen_h) == 2
    assert all(1 <= h <= 20 for h in run.summary.chosen_h)
    said = f"Chosen privately, by trial: h = {', '.join(map(str, run.summary.chosen_h))}"
    assert said in (tmp_path / "run" / "report.html").read_text()
    assert fedsim.simulate(privacy(), progress=False).summary.chosen_h == []


def test_the_h_that_is_shown_is_the_one_that_silos_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = {"name": "person", "bound": "limit", "h": {"choose": "quantile", "share": 0.2}}
    sent, answer = set[float](), SiloHost.answer

    def heard(self: SiloHost, variant: Any, r: int, broadcast: Any, members: Any) -> Any:
        if variant == "private" and "records of a person" in broadcast:
            sent.add(float(broadcast["records of a person"]))
        return answer(self, variant, r, broadcast, members)

    monkeypatch.setattr(SiloHost, "answer", heard)
    (h,) = fedsim.simulate(privacy(unit=unit), progress=False).summary.chosen_h
    assert sent == {h}


def test_an_h_of_a_declared_profile_is_shown_with_its_rule() -> None:
    rule = {"choose": "tradeoff", "profile": {1: 0.5, 4: 0.5}}
    tree = privacy(unit={"name": "person", "bound": "smooth", "h": rule})
    (line,) = shown(tree)
    unit = resolve(parse(tree)).scenario.privacy.unit
    assert (
        line
        == f"h = {getattr(unit, 'h', 0)}, by tradeoff of the declared profile: the smallest of the silos'"
    )


def test_ids_that_hardly_differ_are_counted_and_not_shown() -> None:
    spellings = np.array(["A{}", "a{} ", "A{} "])[np.arange(180) // 60]
    who = [text.format(i % 60) for i, text in enumerate(spellings)]
    features = np.random.default_rng(0).uniform(-1, 1, (180, 2))
    target, silo = (features[:, 0] > 0).astype(int), np.array(["a", "b"])[np.arange(180) % 2]
    tree = {key: value for key, value in VISITS.items() if key != "data"}
    (line,) = shown(tree, Arrays(features, target, silo, person=who))
    assert line.startswith("not private: in column person 120 ids differ from others in spaces, case")
    assert "a1" not in line.lower()
    clean = [f"A{i % 60}" for i in range(180)]
    assert shown(tree, Arrays(features, target, silo, person=clean)) == []


def test_an_expected_number_of_persons_that_is_far_off_is_told_by_silo() -> None:
    added = {"name": "person", "relation": "add_remove"}
    near = privacy(unit=added, expected_persons=[20, 24, 28], delta=1e-4)
    assert shown(near) == []
    (line,) = shown(privacy(unit=added, expected_persons=[24, 12, 30], delta=1e-4))
    assert line.endswith("more than 20 % off the persons who train in silo silo-01, silo-02")


def test_everything_public_counts_persons() -> None:
    resolved = resolve(parse(VISITS))
    assert resolved.sizes == (24, 24, 24)
    assert resolved.deltas == (1 / 24**2,) * 3
    records = read(resolved, 0)
    assert any(len(silo.train.target) > 24 for silo in records.silos)
    host = SiloHost(resolved, 0, records)
    host.open("private", [range(3)] * 3)  # a gate refuses records of another number of units


@pytest.mark.parametrize("bound", ["clip", "mean", {"name": "person", "bound": "limit", "h": 2}])
def test_a_run_is_repeatable(bound: Any) -> None:
    unit = bound if isinstance(bound, dict) else {"name": "person", "bound": bound}
    one, other = (fedsim.simulate(privacy(unit=unit)) for _ in range(2))
    assert one.summary.metrics == other.summary.metrics


def test_one_record_a_person_is_the_record_run() -> None:
    """But for the noise, whose keys differ: so compared without it."""
    rng = np.random.default_rng(0)
    features, silo = rng.uniform(-1, 1, (90, 3)), np.repeat(["a", "b", "c"], 30)
    target = (features.sum(axis=1) > 0).astype(int)
    data = Arrays(features, target, silo, person=[f"p{k}" for k in range(90)])
    tree = {key: value for key, value in VISITS.items() if key != "data"}
    for unit in (
        "person",
        {"name": "person", "bound": "mean"},
        {"name": "person", "bound": "smooth", "h": 1},
    ):
        one, other = (
            fedsim.simulate(tree | {"privacy": {"unit": each, "mechanism": "none"}}, data=data).summary
            for each in ("record", unit)
        )
        assert one.metrics == other.metrics
        assert one.participation == other.participation


@pytest.mark.parametrize("bound", ["limit", "smooth"])
def test_a_run_that_asks_for_h_is_the_one_that_is_given_it(bound: str) -> None:
    """Without noise: three quarters of the 72 persons have up to two records, and h is 2."""
    silos = read(resolve(parse(VISITS)), 0).silos
    counts = np.concatenate([np.unique(silo.train.owners, return_counts=True)[1] for silo in silos])
    assert (counts <= 2).mean() == 0.75
    rule = {"choose": "quantile", "share": 0.1, "q": 0.75, "largest": 8}
    asked, given, other = (
        fedsim.simulate(privacy(mechanism="none", unit={"name": "person", "bound": bound, "h": h})).model
        for h in (rule, 2, 3)
    )
    np.testing.assert_allclose(asked, given, rtol=0, atol=1e-12)
    assert np.abs(asked - other).max() > 1e-3
