"""The audit calls kernels broken that round a record by its place, and batches that share records."""

from functools import cache

import numpy as np
import pytest
from attacks.test_audit_of_statistics import AskOnce
from support.audit_settings import setting_of
from support.old_kernels import put_back

import fedsim
from fedsim.api.given import one_run, resolved_of
from fedsim.protocol.unit import Person
from fedsim.testing.attacks import kinks, sensitivity
from fedsim.testing.attacks.search import search
from fedsim.testing.attacks.setting import prepare
from silos.vault.batches import Batches

FEATURES = 12  # with the constant one an odd number: every other row begins at 16 bytes
MLP = {"name": "neural_network", "model": {"name": "mlp", "hidden": [64]}}
RAISING = {
    "name": "neural_network",
    "model": {"name": "module", "path": "support.network_modules:Looked"},
}
ASKED = {"score_histogram": (10.0,), "mistakes": (), "longer": (), "joint": (2.0, 2.0, 1.0, 0.5)}
SETTINGS = {  # kernel, problem, unit, statistic
    "persons of a network": ("linear", MLP, Person(), None),
    "persons who are added": ("linear", MLP, Person(relation="add_remove"), None),
    "a record that raises": ("each", RAISING, "record", None),
    **{name: ("elementwise", "logistic_regression", Person(), name) for name in ("score_histogram", "joint")},
    "mistakes": ("scores", "logistic_regression", Person(), "mistakes"),
    "longer": ("elementwise", "logistic_regression", Person(), "longer"),
    "absolute error": ("scores", "absolute_error", Person(), None),
    "hinge loss": ("scores", "hinge_loss", Person(), None),
}


@cache
def people(persons, classes):
    """Two silos of as many persons with a record each, of whom four in five train."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2 * persons, FEATURES))
    score = x[:, 0] + 0.3 * rng.standard_normal(len(x))
    target = (score > 0).astype(int) if classes else score
    who = np.arange(len(x))
    group = np.where(rng.random(len(x)) < 0.5, "a", "b")
    return fedsim.Arrays(x, target, who // persons, person=who, group=group)


def scenario(problem, unit, seed=1):
    privacy = {"epsilon": 2.0, "delta": 1e-3, "unit": unit}
    if getattr(unit, "one_sided", False):
        privacy["expected_persons"] = 80
    algorithm = {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 1.0, "clip_norm": 1.0}
    runtime = {"name": "inprocess", "plug_ins": "in_process"}
    return {
        "name": "kinks",
        "seed": seed,
        "problem": problem,
        "algorithm": algorithm,
        "privacy": privacy,
        "runtime": runtime,
    }


def given(problem, unit, statistic=None, seed=1):
    """A scenario, its algorithm if it is one for tests, and its data."""
    number = problem in ("absolute_error", RAISING)
    persons = 397 if problem == RAISING else 101 if problem == MLP else 201
    data = people(persons, 0 if number else 2)
    algorithm = None if statistic is None else AskOnce(statistic, ASKED[statistic])
    return scenario(problem, unit, seed), algorithm, data


def broken_at(problem, unit, statistic=None, seed=1, silos=(0,), answers=600):
    """The first movement above the sensitivity among data sets at a kink; None if there is none. An audit of
    two silos at the default effort asks 600 times in each.
    """
    tree, algorithm, data = given(problem, unit, statistic, seed)
    setting = prepare(resolved_of(one_run(tree, {}), algorithm, data))
    for silo in silos:
        for kind in setting.kinds:
            every = kinks.search(setting, silo, kind, search(setting, silo), answers)
            if above := next((ratio for ratio, _ in every if ratio > 1 + sensitivity.TOLERANCE), None):
                return above
    return None


LONG = ("persons who are added", "a record that raises")


@pytest.mark.parametrize("name", [pytest.param(k, marks=[pytest.mark.slow] * (k in LONG)) for k in SETTINGS])
def test_a_kernel_that_rounds_by_place_is_found_at_a_kink(monkeypatch, name):
    kernel, *asked = SETTINGS[name]
    put_back(monkeypatch, kernel)
    assert broken_at(*asked) > 1.2


SOUND = [(MLP, "record"), (MLP, Person()), ("hinge_loss", Person()), ("absolute_error", Person())]


@pytest.mark.parametrize(
    ("problem", "unit"), SOUND, ids=["network", "persons of one", "hinge loss", "absolute error"]
)
def test_terms_of_their_own_units_are_not_flagged_at_a_kink(problem, unit):
    assert broken_at(problem, unit, answers=300) is None


def repeat_batches(monkeypatch):
    """Every ask of fresh batches takes the first one's records."""
    cut = Batches._cut
    monkeypatch.setattr(
        Batches, "_cut", lambda own, member, place: cut(own, member, min(own._bounds[member]))
    )


@pytest.mark.parametrize("repeated", [False, True], ids=["disjoint", "the same"])
def test_fresh_batches_that_are_the_same_records_are_found(monkeypatch, repeated):
    if repeated:
        repeat_batches(monkeypatch)
    setting = setting_of(algorithm={"batch": {"sampler": "fresh", "fraction": 0.25}, "num_rounds": 3})
    said = sensitivity.repeated(setting, 2, search(setting, 2), "exact/2")
    assert said == ("one record is in 3 batches that share none" if repeated else "")


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_an_audit_calls_such_a_kernel_broken(monkeypatch, name):
    kernel, *asked = SETTINGS[name]
    put_back(monkeypatch, kernel)
    tree, algorithm, data = given(*asked)
    audit = fedsim.audit(tree, algorithm=algorithm, data=data)
    assert audit.broken
    assert any("at a kink" in finding for silo in audit.silos for finding in silo["findings"])


@pytest.mark.slow
def test_an_audit_finds_fresh_batches_that_are_the_same_records(monkeypatch):
    repeat_batches(monkeypatch)
    tree, _, data = given("logistic_regression", "record")
    tree["algorithm"] |= {"batch": {"sampler": "fresh", "fraction": 0.2}, "num_rounds": 3}
    findings = [line for silo in fedsim.audit(tree, data=data, effort=0.5).silos for line in silo["findings"]]
    assert sum("in 3 batches that share none" in line for line in findings) == 2
