"""Persons as units: brute force over persons swapped, added and removed, for every statistic and bound."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support.statistic_records import FEATURES, OPTIONS, groups_of, hostile, points_of, problem_of, shape_of

from fedsim.common.errors import InputError, Refused
from fedsim.privacy.mechanism import check_unit
from fedsim.privacy.registry import GAUSSIAN, MECHANISMS
from fedsim.problems.glm import LinearRegression, SoftmaxRegression
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported, Mlp
from fedsim.protocol.batch import FULL, Fresh, Poisson, Subsample
from fedsim.protocol.contract import Query
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Ask, Plan, QueryShape, Terms
from fedsim.protocol.statistics import STATISTICS, statistic
from fedsim.protocol.unit import RECORD, Person, Rule
from fedsim.simulation.host import MemoryLedger
from silos.front.served import Served
from silos.vault.batches import Batches
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate
from silos.vault.owners import Owners
from silos.vault.persons import Order
from silos.vault.records import Records, clipped_sum
from silos.vault.selections import PER_ONE
from silos.vault.terms import summed

BOUNDS = [Person("clip"), Person("mean"), Person("limit", 2), Person("smooth", 3)]
BY_SUM = ("minimiser", "label_projection")


def sums(name, persons, unit, clip, common=1):
    """The sum of each of many silos: one person with these records [(x, y)], and `common` others."""
    problem, known = problem_of(name), statistic(name)
    ones = np.ones((1, FEATURES)), np.ones(1)
    silos, codes = [], []
    for i, (x, y) in enumerate(persons):
        group = groups_of(y) if i % 2 else np.full(len(y), i // 2 % 3 - 1)
        together = np.vstack([x, *[ones[0]] * common]), np.append(y, np.ones(common))
        silos.append((*together, np.append(group, np.zeros(common, int))))
        codes.append(np.append(np.full(len(y), 7), np.arange(100, 100 + common)))
    streams = [np.random.default_rng(3) for _ in silos]
    records = Records(silos, problem, torch.float64, Owners(unit, codes, streams))
    points = points_of(name)
    total = None
    for block in records.full(range(len(silos))):
        own = records.clipped_sum
        if not statistic(name).gradient:
            own = partial(summed, own, shape_of(name))
        if known.clipped and not known.drawn and records.units.summed:
            own = partial(records.unit_sum, None if statistic(name).gradient else own, size=_size(name))
        if name == "costed_gradient":
            own = partial(summed, own, shape_of(name))
        found = own(problem, block, points, clip)
        if total is None:
            total = torch.zeros(len(silos), found.shape[1], dtype=found.dtype)
        total[torch.tensor(block.members)] = found
    return total


def _size(name):
    from fedsim.protocol.statistics import size_of

    return size_of(shape_of(name), problem_of(name).dimension, FEATURES)


def hostile_persons(name):
    """Persons of one to five of `hostile`'s records, alike and mixed."""
    rows, targets = hostile(name)
    rng = np.random.default_rng(2)
    alike = [
        (np.repeat(x, s, 0), np.repeat(y, s)) for s in (1, 2, 5) for x, y in zip(rows, targets, strict=True)
    ]
    mixed = [rng.choice(len(rows), s) for s in (2, 3, 5) for _ in range(20)]
    return alike + [(rows[own, 0], targets[own, 0]) for own in mixed]


@pytest.mark.parametrize(
    ("name", "unit"), [(name, unit) for name in STATISTICS for unit in BOUNDS[2 * (name in BY_SUM) :]]
)
def test_swapping_a_person_moves_a_sum_by_the_spread_times_the_clip_at_most(name, unit):
    known, clip = statistic(name), 0.25 if statistic(name).clipped else 1.0
    persons = hostile_persons(name)
    if name == "label_projection":  # features are the same in both worlds
        persons = [(x[:3], y[:3]) for x, y in persons if len(y) > 2]
    moved = sums(name, persons, unit, clip).double()
    allowed = PER_ONE if known.drawn else known.spread_of(OPTIONS.get(name, ())) * clip
    if known.drawn:
        apart = max((column.max() - column.min()).item() for column in moved.T)
    else:
        apart = torch.cdist(moved, moved, compute_mode="donot_use_mm_for_euclid_dist").max().item()
    assert apart <= allowed * (1 + 1e-9)
    least = 0.9 if name == "minimiser" else 1 - 1e-6
    assert apart >= allowed * least


@pytest.mark.parametrize("unit", BOUNDS, ids=lambda unit: unit.bound)
@pytest.mark.parametrize("name", sorted(set(STATISTICS) - {*BY_SUM}))
def test_a_person_more_moves_a_sum_by_the_clip_at_most(name, unit):
    unit = replace(unit, relation="add_remove")
    known, clip = statistic(name), 0.25 if statistic(name).clipped else 1.0
    plan = Plan(((Ask(FULL, (shape_of(name),)),),), unit)
    check_unit(plan, GAUSSIAN)
    assert plan.spread(shape_of(name)) == 1.0
    moved = sums(name, hostile_persons(name), unit, clip).double()
    without = sums(name, [(np.zeros((0, FEATURES)), np.zeros(0))], unit, clip).double()
    if known.drawn:
        assert (moved - without).abs().max() <= PER_ONE
        return
    apart = (moved - without).norm(dim=1).max().item()
    assert clip * (1 - 1e-6) <= apart <= clip * (1 + 1e-9)


def test_clipped_terms_of_a_person_added_up_are_no_bound():
    x, y = max(hostile_persons("gradient"), key=lambda own: len(own[1]))
    records, origin = Records([(x, y)], LinearRegression(FEATURES), torch.float64), torch.zeros(FEATURES)
    (block,) = records.full([0])
    assert clipped_sum(LinearRegression(FEATURES), block, [origin.double()], 0.25).norm() > 4 * 0.25


def some_silos(seed=0, silos=3, persons=7, classes=False):
    rng = np.random.default_rng(seed)
    counts = [1 + rng.poisson(1.5, persons) for _ in range(silos)]
    data, codes = [], []
    for own in counts:
        code = rng.permutation(np.repeat(np.arange(len(own)), own))
        x = rng.standard_normal((len(code), FEATURES))
        y = rng.integers(0, 3, len(code)) if classes else rng.standard_normal(len(code))
        data.append((x, y))
        codes.append(code)
    return data, codes


def terms_by_hand(problem, x, y, w):
    """(records, d): each record's gradient, by a record at a time."""
    found = []
    for own, label in zip(x, y, strict=True):
        records = Records([(own[None], np.array([label]))], problem, torch.float64)
        (block,) = records.full([0])
        found.append(clipped_sum(problem, block, [w], None)[0])
    return torch.stack(found)


def bounded(term, clip):
    return term * min(1.0, clip / max(float(term.norm()), 1e-300))


PROBLEMS = [
    LinearRegression(FEATURES),
    SoftmaxRegression(FEATURES, 3),
    NeuralNetwork(FEATURES, 3, model=Mlp((4,))),
    NeuralNetwork(FEATURES, 3, model=Imported("support.network_modules:Shared")),
]


@pytest.mark.parametrize("unit", [Person("clip"), Person("mean"), Person("smooth", 2)], ids=lambda u: u.bound)
@pytest.mark.parametrize("problem", PROBLEMS, ids=["linear", "softmax", "layers", "whole module"])
@pytest.mark.parametrize("each", [False, True], ids=["common point", "a point a silo"])
def test_a_persons_term_is_what_its_bound_says(problem, unit, each):
    data, codes = some_silos(classes=not isinstance(problem, LinearRegression))
    w = torch.randn(3, problem.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    clip, expected = 0.7, []
    for m, ((x, y), code) in enumerate(zip(data, codes, strict=True)):
        terms, total = (
            terms_by_hand(problem, x, y, w[m if each else 0]),
            torch.zeros(problem.dimension).double(),
        )
        for person in set(code.tolist()):
            own = terms[torch.from_numpy(code == person)]
            s = len(own)
            if unit.bound == "clip":
                total += bounded(own.sum(0), clip)
            elif unit.bound == "mean":
                total += bounded(own.mean(0), clip)
            else:
                total += min(unit.h, s) / (unit.h * s) * sum(bounded(term, clip) for term in own)
        expected.append(total)
    records = Records(data, problem, torch.float64, Owners(unit, codes))
    found = full_sum(records, problem, w if each else w[0], clip)
    kept = 1e-5 if isinstance(problem, NeuralNetwork) else 1e-12  # of the clip, by `silos.vault.network`
    assert torch.allclose(found, torch.stack(expected), rtol=0, atol=kept)


def full_sum(records, problem, point, clip):
    return added(records, records.full(range(len(records.sizes))), problem, point, clip)


def added(records, blocks, problem, point, clip):
    total = torch.zeros(len(records.sizes), problem.dimension, dtype=torch.float64)
    for block in blocks:
        own = point if point.dim() == 1 else point[torch.tensor(block.members)]
        if records.units.summed:
            found = records.unit_sum(None, problem, block, [own], clip, size=problem.dimension)
        else:
            found = records.clipped_sum(problem, block, [own], clip)
        total[torch.tensor(block.members)] = found
    return total


def test_limit_is_smooth_on_average():
    data, codes = some_silos(1)
    problem, w = LinearRegression(FEATURES), torch.ones(FEATURES, dtype=torch.float64)
    smooth = full_sum(
        Records(data, problem, torch.float64, Owners(Person("smooth", 2), codes)), problem, w, 0.5
    )
    drawn = []
    for seed in range(4_000):
        streams = [np.random.default_rng((seed, m)) for m in range(3)]
        persons = Owners(Person("limit", 2), codes, streams)
        drawn.append(full_sum(Records(data, problem, torch.float64, persons), problem, w, 0.5))
    found = torch.stack(drawn)
    error = found.std(0) / len(drawn) ** 0.5
    assert ((found.mean(0) - smooth).abs() <= 5 * error + 1e-12).all()
    assert found.std(0).max() > 0.01


@pytest.mark.parametrize("unit", [Person("limit", 1), Person("limit", 3), Person("smooth", 1)])
def test_labels_of_persons_are_projected_by_the_rows_that_count(unit):
    """Labels that are linear in the features give the coefficients at any h; a person moves them
    by 2 C / n at most.
    """
    rng, true, clip = np.random.default_rng(1), np.array([0.3, -0.2, 0.1]), 8.0
    codes = np.repeat(np.arange(40), rng.integers(1, 9, 40))
    x = rng.uniform(-1, 1, (len(codes), 3))

    def mean(y, clip):
        records = Records(
            [(x, y)], LinearRegression(3), torch.float64, Owners(unit, [codes], [np.random.default_rng(5)])
        )
        (block,) = records.full([0])
        shape = QueryShape("label_projection", 0, 1.0)
        found = summed(records.clipped_sum, shape, LinearRegression(3), block, (), clip)
        return found[0].numpy() / 40

    assert mean(x @ true, None) == pytest.approx(true, abs=1e-12)
    assert mean(x @ true, clip) == pytest.approx(true, abs=0.1)
    signs = np.sign(rng.normal(size=len(codes)))
    moved = [
        np.linalg.norm(
            mean(np.where(codes == own, 1.0, signs), clip) - mean(np.where(codes == own, -1.0, signs), clip)
        )
        for own in range(40)
    ]
    assert max(moved) <= 2 * clip / 40 * (1 + 1e-9)
    assert max(moved) >= 0.6 * clip / 40


def test_limit_takes_h_records_of_each_and_no_more():
    codes = np.array([5, 5, 5, 5, 9, 5, 2, 2])
    order, data = Order.of(codes), [(np.ones((8, FEATURES)), np.ones(8))]
    persons = Owners(Person("limit", 2), [codes], [np.random.default_rng(0)])
    (block,) = Records(data, LinearRegression(FEATURES), torch.float64, persons).full([0])
    shares = block.share[0].numpy()
    assert order.counts.tolist() == [5, 1, 2]
    by_hand = [shares[order.numbers == person].tolist() for person in range(3)]
    assert [sorted(own) for own in by_hand] == [[0, 0, 0, 0.5, 0.5], [0.5], [0.5, 0.5]]


@pytest.mark.parametrize("unit", [Person("clip"), Person("mean"), Person("limit", 1), Person("smooth", 1)])
@pytest.mark.parametrize("batch", [None, Subsample(0.5), Fresh(0.3), Poisson(0.4)], ids=str)
def test_with_one_record_a_person_the_bits_are_those_of_records(unit, batch):
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((n, FEATURES)), rng.standard_normal(n)) for n in (40, 31, 47)]
    codes = [rng.permutation(len(y)) for _, y in data]
    problem, w = LinearRegression(FEATURES), torch.ones(FEATURES, dtype=torch.float64)

    def answer(persons):
        records = Records(data, problem, torch.float64, persons)
        plan = Plan(((Ask(batch or FULL, (QueryShape("gradient", 1, 1.0),)),),), records.unit)
        entropy = SeededEntropy(0, 0, ["a", "b", "c"], ["key"] * 3)
        batches = Batches(records, plan, [[0]] * 3, ["a", "b", "c"], entropy, records.sizes)
        drawn, divisor = batches.round([0, 1, 2], 0).next(plan.rounds[0][0].batch)
        return added(records, drawn, problem, w, 0.5), divisor

    own, divisor = answer(Owners(unit, codes))
    other, divisors = answer(Owners(RECORD))
    assert torch.equal(own, other)
    assert torch.equal(divisor, divisors)


@pytest.mark.parametrize("unit", BOUNDS, ids=lambda unit: unit.bound)
def test_fresh_batches_of_persons_add_up_to_all_of_them(unit):
    data, codes = some_silos(2, persons=12)
    problem, w = LinearRegression(FEATURES), torch.ones(FEATURES, dtype=torch.float64)
    records = Records(data, problem, torch.float64, Owners(unit, codes, [np.random.default_rng(0)] * 3))
    asks = tuple((Ask(Fresh(0.25), (QueryShape("gradient", 1, 1.0),)),) for _ in range(4))
    plan = Plan(asks, unit)
    entropy = SeededEntropy(0, 0, ["a", "b", "c"], ["key"] * 3)
    batches = Batches(records, plan, [range(4)] * 3, ["a", "b", "c"], entropy, records.sizes)
    total, parts = torch.zeros(3, FEATURES, dtype=torch.float64), []
    for r in range(4):
        drawn, divisor = batches.round([0, 1, 2], r).next(Fresh(0.25))
        assert divisor.flatten().tolist() == [3.0] * 3  # persons, whatever their records are
        total += (part := added(records, drawn, problem, w, 0.5))
        parts.append(part.norm(dim=1).max())
    assert torch.allclose(total, full_sum(records, problem, w, 0.5), rtol=0, atol=1e-12)
    assert max(parts) <= 3 * 0.5


@pytest.mark.parametrize("unit", BOUNDS[2:], ids=lambda unit: unit.bound)
def test_padding_of_drawn_persons_adds_nothing_to_a_second_moment(unit):
    rng, problem, shape = np.random.default_rng(0), LinearRegression(FEATURES), shape_of("second_moment")
    data = [(rng.standard_normal((6, FEATURES)), np.zeros(6)) for _ in range(2)]
    codes = [np.array([0, 0, 0, 0, 0, 1]), np.arange(6)]
    streams = [np.random.default_rng(0) for _ in data]
    records = Records(data, problem, torch.float64, Owners(unit, codes, streams))
    (block,) = records.batch([0, 1], [np.array([0]), np.array([3])])  # five rows, and one with padding
    moments = summed(records.clipped_sum, shape, problem, block, (), 1e6)
    assert moments[1].norm().item() == pytest.approx(data[1][0][3] @ data[1][0][3] / unit.h)


ASKED = Rule("quantile", share=0.1, largest=9)


@pytest.mark.parametrize("bound", ["limit", "smooth"])
@pytest.mark.parametrize("batch", [FULL, Fresh(0.25)], ids=str)
@pytest.mark.parametrize("h", [1, 3, 9])
def test_terms_at_an_h_that_a_query_names_are_those_of_a_unit_that_has_it(bound, batch, h):
    data, codes = some_silos(4, persons=12)
    problem, w = LinearRegression(FEATURES), torch.ones(FEATURES, dtype=torch.float64)
    plan = Plan(((Ask(batch, (QueryShape("gradient", 1, 1.0),)),),))
    found = []
    for unit in (Person(bound, h), Person(bound, ASKED)):
        streams = [np.random.default_rng(m) for m in range(3)]
        records = Records(data, problem, torch.float64, Owners(unit, codes, streams))
        entropy = SeededEntropy(0, 0, ["a", "b", "c"], ["key"] * 3)
        batches = Batches(records, plan, [[0]] * 3, ["a", "b", "c"], entropy, records.sizes)
        blocks, _ = batches.round([0, 1, 2], 0).next(batch)
        blocks = blocks if unit.h == h else [records.units.weighted(block, h) for block in blocks]
        sums = [added(records, blocks, problem, w, 0.5)]
        sums += [summed(None, shape_of("second_moment"), problem, block, (), 1.0) for block in blocks]
        found.append(sums)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("unit", "h", "fits"),
    [
        (Person("limit", ASKED), 9.0, True),
        (Person("limit", ASKED), 9.5, False),
        (Person("limit", ASKED), 10.0, False),
        (Person("limit", ASKED), 0.0, False),
        (Person("limit", ASKED), float("nan"), False),
        (Person("limit", ASKED), None, False),
        (Person("limit", 3), 2.0, False),
        (Person("clip"), 2.0, False),
        (RECORD, 2.0, False),
    ],
)
def test_a_gate_answers_at_an_h_only_where_the_unit_asks_for_it(unit, h, fits):
    data, codes = some_silos()
    problem, origin = LinearRegression(FEATURES), torch.zeros(FEATURES, dtype=torch.float64)
    records = Records(data, problem, torch.float64, Owners(unit, codes))
    counts = [] if unit == RECORD else [Query("contributions", (), 1.0, options=(1.0, 4.0))]

    class Asking:
        def silo(self, problem, broadcast, ask, memory):
            *_, answer = ask(*counts, Query("gradient", (broadcast["w"],), 1.0, h=h), *counts)
            return {"g": answer}

    gradient = QueryShape("gradient", 1, 1.0)
    shapes = [QueryShape("contributions", 0, 1.0, (1.0, 4.0))] * len(counts)
    plan = Plan(((Ask(FULL, (*shapes, gradient, *shapes)),),), unit)
    terms = [Terms(name, n, 1.0, 1e-5, [0]) for name, n in zip("abc", records.sizes, strict=True)]
    entropy, ledgers = SeededEntropy(0, 0, ["a", "b", "c"], ["key"] * 3), [MemoryLedger() for _ in terms]
    run = plan, terms, MECHANISMS["gaussian"], entropy, ledgers, LIMITS, torch.float64
    gate = Served(Gate(records, problem, *run), Asking())
    if fits:
        assert gate.answer(0, {"w": origin})["g"].shape == (3, 2)
        return
    with pytest.raises(Refused, match=rf"^h is {h}; it is from 1 to"):
        gate.answer(0, {"w": origin})


def test_contributions_are_counted_by_person_in_batches_too():
    codes = [np.repeat(np.arange(5), [1, 1, 2, 3, 9])]
    data = [(np.ones((16, FEATURES)), np.full(16, np.nan))]  # of no use, and records all the same
    problem, shape = LinearRegression(FEATURES), QueryShape("contributions", 0, 1.0, (1.0, 2.0, 4.0))
    for unit in BOUNDS:
        records = Records(data, problem, torch.float64, Owners(unit, codes))
        drawn = records.batch([0], [np.array([0, 4])])
        for blocks, counts in ((records.full([0]), [2, 1, 2]), (drawn, [1, 0, 1])):
            found = summed(None, shape, problem, blocks[0], (), 1.0)
            assert torch.allclose(found, torch.tensor([counts]).double(), rtol=0, atol=1e-12)


def test_bounds_of_contributions_ascend_from_one():
    for wrong in ((2.0, 1.0), (0.0, 1.0), (1.0, 1.0)):
        with pytest.raises(Refused, match="ascending"):
            LIMITS.check_ask(Ask(FULL, (QueryShape("contributions", 0, 1.0, wrong),)), 3, 3)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_person_with_a_term_that_is_no_number_counts_as_zero_all_of_it(poison):
    problem = LinearRegression(FEATURES)
    rows, y = np.ones((5, FEATURES)), np.zeros(5)
    w = torch.full((FEATURES,), 1e6, dtype=torch.float64)
    codes = [np.array([0, 0, 0, 1, 1])]
    rows = rows.copy()
    rows[1] = 1e12  # its coefficient overflows no float, its term does not either
    y = y.copy()

    class Broken(LinearRegression):
        def coefficient(self, scores, target, inverse_norm):
            slope = super().coefficient(scores, target, inverse_norm)
            return torch.where(target > 0.5, torch.full_like(slope, poison), slope)

    y[2] = 1.0
    records = Records([(rows, y)], problem, torch.float64, Owners(Person("clip"), codes))
    good = full_sum(records, problem, w, 1.0)
    assert good.norm() > 1.9
    records = Records([(rows, y)], Broken(FEATURES), torch.float64, Owners(Person("clip"), codes))
    import fedsim.problems.glm as glm

    glm.OWN = (*glm.OWN, Broken)
    try:
        bad = full_sum(records, Broken(FEATURES), w, 1.0)
    finally:
        glm.OWN = glm.OWN[:-1]
    assert torch.isfinite(bad).all()
    assert bad.norm().item() == pytest.approx(1.0)  # the other person's


def test_a_gate_refuses_records_that_are_laid_out_for_another_unit():
    from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
    from fedsim.testing.federations import open_gate, plan_of

    data, _ = some_silos()
    problem, algorithm = (
        LinearRegression(FEATURES),
        NoisyMinibatchSGD(num_rounds=2, step_size=0.1, clip_norm=1.0),
    )
    plan = plan_of(algorithm, problem, [len(y) for _, y in data])
    with pytest.raises(Refused, match="of unit person, the records are laid out for another"):
        open_gate(data, problem, algorithm, plan=replace(plan, unit=Person()))


def test_h_belongs_to_limit_and_smooth():
    for wrong in (("clip", 3), ("limit", None)):
        with pytest.raises(InputError, match=r"^h: "):
            Person(*wrong)
    assert Plan((), RECORD).digest != Plan((), Person()).digest != Plan((), Person("mean")).digest
