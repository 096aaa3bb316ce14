"""An attack's unit is the claim's: persons, of many aligned records, of one, or nobody."""

from dataclasses import replace
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
import torch
from attacks.test_audit_of_statistics import CASES, AskOnce
from support.audit_settings import assert_sound, assert_sums_not_flagged
from support.scenarios import once

import fedsim
from fedsim.api.given import one_run, resolved_of
from fedsim.common.errors import InputError
from fedsim.privacy import gaussian
from fedsim.protocol.batch import FULL, Poisson, Subsample, WithReplacement
from fedsim.protocol.rows import Rows
from fedsim.protocol.unit import RECORD, Person
from fedsim.report.audit import audit_table
from fedsim.testing.attacks import cohorts, estimate, noise, sensitivity, servers
from fedsim.testing.attacks.audit import ALARM
from fedsim.testing.attacks.canaries import canaries, num_units, related, replaced
from fedsim.testing.attacks.likelihood import draws
from fedsim.testing.attacks.neighbours import neighbours
from fedsim.testing.attacks.search import search
from fedsim.testing.attacks.setting import prepare
from silos.vault.batches import Batches
from silos.vault.records import Records

EXPECTED = 25
BOUNDS = [Person("clip"), Person("mean"), Person("limit", 3), Person("smooth", 3)]
RELATIONS = ("replace_person", "replace_values", "add_remove")
SILO = 1


def people(persons=40, seed=0):
    """Records of two silos' persons, one to six each."""
    rng = np.random.default_rng(seed)
    code = np.repeat(np.arange(persons), np.minimum(1 + rng.poisson(1.5, persons), 6))
    x = rng.uniform(-1, 1, (len(code), 3))
    y = (x[:, 0] + 0.3 * rng.standard_normal(len(code)) > 0).astype(int)
    return fedsim.Arrays(x, y, code % 2, person=code)


def scenario(unit, epsilon=2.0, **algorithm):
    privacy = {"epsilon": epsilon, "delta": 1e-3, "unit": unit}
    if getattr(unit, "one_sided", False):
        privacy["expected_persons"] = EXPECTED
    numbers = {"num_rounds": 3, "step_size": 1.0} | algorithm
    return once(seed=1, partition="natural_id", algorithm=numbers, privacy=privacy)


@cache
def attacked(unit, sampler="full"):
    batch = "full" if sampler == "full" else {"sampler": sampler, "fraction": 0.3}
    rounds = 3 if sampler in ("full", "fresh") else 12  # enough that the last person is in some batch
    resolved = resolved_of(one_run(scenario(unit, batch=batch, num_rounds=rounds), {}), None, people())
    setting = prepare(resolved)
    return setting, search(setting, SILO)


def of(records, value=1.0):
    return Rows(
        np.full((records, 2), value),
        np.full(records, value),
        np.full(records, -1),
        np.zeros(records, dtype=int),
    )


def test_a_person_in_anothers_place_takes_that_ones_records_and_no_other():
    silo = Rows(np.arange(10.0).reshape(5, 2), np.arange(5.0), np.full(5, -1), np.array([0, 0, 1, 2, 2]))
    for records in (0, 1, 3):
        found = replaced(silo, of(records, -1.0), 1)
        assert found.owners.tolist() == [0, 0, *[1] * records, 2, 2]
        assert found.target.tolist() == [0, 1, *[-1] * records, 3, 4]
        assert found.features[:, 0].tolist() == [0, 2, *[-1] * records, 6, 8]
        assert num_units(found, Person()) == 3 - (records == 0)
        assert num_units(found, RECORD) == 4 + records
    assert silo.target.tolist() == [0, 1, 2, 3, 4]


def test_the_relation_says_which_persons_are_neighbours():
    found = [of(0), of(1), of(5), of(5)]
    every = related(Person(), found)
    alike = related(Person(relation="replace_values"), found)
    more = related(Person(relation="add_remove"), found)
    assert every.all()
    assert (alike == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]).all()
    assert (more == [[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]).all()


def test_candidates_have_many_records_and_one_and_nobody_where_the_claim_has():
    one = (np.ones(2), 1.0, -1)
    sizes = {
        unit: [len(each.target) for each in canaries(unit, [one], 10)]
        for unit in (RECORD, Person(), Person("limit", 25), Person(relation="add_remove"))
    }
    assert list(sizes.values()) == [[10], [10, 1], [25, 1], [0, 10, 1]]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("unit", BOUNDS, ids=lambda unit: unit.bound)
def test_a_right_gate_is_not_flagged_and_its_bound_is_attained(unit, relation):
    setting, chosen = attacked(replace(unit, relation=relation))
    assert chosen.ratios[0] == pytest.approx(1.0, abs=1e-6)
    assert_sound(setting, chosen)
    if relation == "add_remove":
        assert len(chosen.first.target) == 0 < len(chosen.second.target)
        assert setting.admitted[SILO].terms.n == EXPECTED != num_units(setting.data[SILO], setting.unit)
    if relation == "replace_values":
        assert len(chosen.first.target) == len(chosen.second.target)


@pytest.mark.parametrize("sampler", ["fresh", "subsample", "poisson", "with_replacement"])
@pytest.mark.parametrize("unit", [Person(), Person("limit", 2)], ids=lambda unit: unit.bound)
def test_a_right_gate_is_not_flagged_whatever_the_sampler(unit, sampler):
    setting, chosen = attacked(unit, sampler)
    assert_sound(setting, chosen, runs=100)


def test_poisson_batches_of_persons_who_are_added_are_not_flagged():
    for unit in (Person(relation="add_remove"), Person("limit", 2, "add_remove")):
        setting, chosen = attacked(unit, "poisson")
        assert_sound(setting, chosen, runs=200)


def _unbounded(records, terms, problem, block, points, clip, size):
    """Every record's term is clipped, their sum is not: what a plan for records does."""
    return records.clipped_sum(problem, block, points, clip)


def _by_records(batches, batch, members):
    units, sizes = batches._records.units, batches._records.sizes  # of persons; else each has one record
    orders = getattr(units, "_orders", None)
    rows = [[float(n)] for n in (sizes if orders is None else [len(own.rows) for own in orders])]
    return torch.tensor(rows, dtype=torch.float64)[list(members)]


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_sum_of_clipped_terms_without_a_bound_is_found(monkeypatch, relation):
    setting, _ = attacked(Person(relation=relation))
    monkeypatch.setattr(Records, "unit_sum", _unbounded)
    chosen = search(setting, SILO)
    found = sensitivity.search(setting, SILO, chosen, 3, 25)
    assert found.sensitivity == pytest.approx(setting.many, rel=0.01)
    samples = servers.malicious(setting, SILO, chosen, 300)
    assert estimate.violated([samples], estimate.claim_of(setting, SILO), ALARM) is not None


def test_a_divisor_that_counts_records_is_found(monkeypatch):
    """With others whose records pull one way the answer tells how many records a person has."""
    setting, chosen = attacked(Person())
    monkeypatch.setattr(Batches, "_divisor", _by_records)
    setting = setting.by_persons(100)
    found = sensitivity.search(setting, SILO, search(setting, SILO), 6, 40)
    assert found.sensitivity > 1.2
    assert noise.measure(setting, SILO, chosen, ALARM).ratio < 0.6


def _attained(setting):
    """The largest movement over the sensitivity, and the epsilon that 3,000 runs in each world bound."""
    chosen = search(setting, SILO)
    claim = estimate.claim_of(setting, SILO)
    found = sensitivity.search(setting, SILO, chosen, 3, 25)
    first, second = servers.malicious(setting, SILO, chosen, 3000)
    bounds = estimate.bounds(first, second, claim)
    assert bounds.estimator == "mean difference"
    assert estimate.violated([(first, second)], claim, ALARM) is None
    return found.sensitivity, bounds.attained / claim.epsilon


STATISTICS = [
    *((name, Person()) for name in CASES if name != "minimiser"),
    *((name, Person(relation="add_remove")) for name in CASES if name != "minimiser"),
    ("second_moment", Person("mean")),
    ("second_moment", Person("limit", 3)),
    ("minimiser", Person("smooth", 3)),  # not with add_remove: it divides by a number that is private then
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "unit"), STATISTICS)
def test_a_worst_pair_of_persons_attains_most_of_the_epsilon(name, unit):
    algorithm = AskOnce(name, *CASES[name])
    setting = prepare(resolved_of(one_run(scenario(unit, num_rounds=1), {}), algorithm, people()))
    moved, share = _attained(setting)
    assert 0.99 <= moved <= 1 + 1e-6
    assert 0.7 <= share <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("unit", BOUNDS, ids=lambda unit: unit.bound)
def test_training_on_persons_attains_most_of_the_epsilon_and_no_more(unit, relation):
    setting, _ = attacked(replace(unit, relation=relation))
    moved, share = _attained(setting.by_persons(100))
    assert moved == pytest.approx(1.0, abs=1e-6)
    assert 0.7 <= share <= 1.0


def test_daemons_are_audited_by_records():
    setting, _ = attacked(Person())
    with pytest.raises(InputError, match="leave --daemons out to audit persons"):
        neighbours(setting, SILO)


# Persons attack a plan that protects a record: a group of records is swapped at once.


def _laws(group, n, size):
    """How many of the first `group` of n are in a batch, by counting all batches that there are."""
    subsets = [sum(i < group for i in own) for own in combinations(range(n), size)]
    lists = [sum(i < group for i in own) for own in product(range(n), repeat=size)]
    coins = [(sum(own[:group]), 0.5**n) for own in product((0, 1), repeat=n)]
    yield Subsample(size / n), [(j, 1 / len(subsets)) for j in subsets]
    yield WithReplacement(size / n), [(j, 1 / len(lists)) for j in lists]
    yield Poisson(0.5), coins


@pytest.mark.parametrize("group", [1, 2, 4])
def test_how_many_of_a_group_are_in_a_batch(group):
    for batch, every in _laws(group, 6, 3):
        j, log_chance = draws(batch, 6, group)
        expected = [sum(p for k, p in every if k == own) for own in j.tolist()]
        assert log_chance.exp().tolist() == pytest.approx(expected, rel=1e-9)
        assert sum(expected) == pytest.approx(1.0)
    assert draws(FULL, 6, group)[0].tolist() == [group]


def test_what_a_person_of_many_records_loses_of_a_records_guarantee():
    """Aligned records lose what group privacy says, mu times s, and no more: the plan is one Gaussian."""
    found = fedsim.audit(scenario("record", 1.0), data=people(200), person=100, effort=0.05)
    assert not found.broken
    assert found.tree["unit"] == "record"
    for row in found.tree["silos"]:
        assert row["swapped"] == 100 < row["n"]
        worth = row["worst_server"]["claimed"]
        mu = float(gaussian.mu(row["claimed"], row["delta"]))
        assert worth == pytest.approx(float(gaussian.epsilon(100 * mu, row["delta"])))
        assert 5 * row["claimed"] < 0.7 * worth <= row["attained"] <= worth
        assert row["sensitivity_ratio"] == pytest.approx(1.0, abs=1e-6)
    assert found.verdict[-1].startswith(
        "what is attained is what a person of 100 records loses: no violation"
    )
    cells = audit_table(found.part).rows[0]
    assert cells[2].endswith(" (100)")
    assert float(cells[3].split("(")[1].removesuffix(" x)")) > 5  # times the claim of a record


@pytest.mark.slow
def test_of_a_sampled_plan_no_claim_for_a_person_is_known_at_the_same_delta():
    tree = scenario("record", 1.0, batch={"sampler": "subsample", "fraction": 0.3})
    found = fedsim.audit(tree, data=people(200), person=100, effort=0.05)
    assert not found.broken
    for row in found.tree["silos"]:
        assert row["worst_server"]["claimed"] is None
        assert row["worst_server"]["estimator"] == "no assumption"
        assert row["attained"] > 2 * row["claimed"]
    assert audit_table(found.part).rows[0][2] == "not known (100)"


def test_half_of_the_noise_is_proven_by_persons_too(monkeypatch):
    setting = prepare(resolved_of(one_run(scenario("record", 0.02), {}), None, people())).by_persons(20)
    claim = estimate.worth(estimate.claim_of(setting, SILO), 20)
    chosen = search(setting, SILO)
    assert estimate.violated([servers.malicious(setting, SILO, chosen, 500)], claim, ALARM) is None
    real = cohorts.cohort
    monkeypatch.setattr(
        "fedsim.testing.attacks.setting.cohort",
        lambda *given, **named: real(*given[:4], [z / 4 for z in given[4]], *given[5:], **named),
    )
    assert estimate.violated([servers.malicious(setting, SILO, chosen, 500)], claim, ALARM) is not None


def test_a_person_has_two_records_at_least():
    with pytest.raises(InputError, match="of at least 2"):
        fedsim.audit(scenario("record"), data=people(), person=1)


@pytest.mark.parametrize("unit", [Person(), Person("limit", 2), Person(relation="add_remove")], ids=str)
def test_sums_of_persons_are_not_flagged(unit):
    assert_sums_not_flagged(scenario(unit), people())


@pytest.mark.slow
@pytest.mark.parametrize("unit", [Person(), Person("smooth", 3)], ids=str)
def test_a_network_on_persons_attains_most_of_the_epsilon(unit):
    tree = scenario(unit) | {"problem": {"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}}}
    moved, share = _attained(prepare(resolved_of(one_run(tree, {}), None, people())))
    assert 0.999 <= moved <= 1 + 1e-6
    assert 0.7 <= share <= 1.0
