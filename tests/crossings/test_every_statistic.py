"""Statistic x unit x sampler x problem at the gate, without noise: value, movement, and others' terms."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from support.helpers import LIMITS, Scripted, Switch, problems
from support.statistic_records import OPTIONS

from crossings.features import DIMENSIONS, Crossing, covering, every
from crossings.oracle import OF_UNITS, TERMS, Asked, term_of_unit
from crossings.walk import judge, state
from fedsim.privacy.registry import CLIP_ONLY
from fedsim.problems.composite import Composite
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Mlp
from fedsim.protocol.batch import FULL, Fresh, Part, Poisson, Subsample, WithReplacement
from fedsim.protocol.contract import Query
from fedsim.protocol.groups import Cells
from fedsim.protocol.plan import Ask, Plan, QueryShape, Terms
from fedsim.protocol.statistics import STATISTICS, size_of, statistic
from fedsim.protocol.unit import RECORD, Unit
from fedsim.simulation.host import MemoryLedger
from silos.front.served import Served
from silos.vault import selections
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out
from silos.vault.owners import Owners

F = 3
_NETS = {
    name: NeuralNetwork(F, k, Composite(), Mlp(hidden=(4,))) for name, k in (("mlp", 2), ("mlp_number", 1))
}
PROBLEMS = {name: own for name, own in problems(F).items() if "smoothed" not in name} | _NETS
CLASSES = {"softmax": 3, "linear": 0, "absolute": 0, "mlp_number": 0}  # else 2
BATCHES = (FULL, Subsample(0.5), WithReplacement(0.5), Poisson(0.5), Fresh(0.34), Part(0.0, 0.5))
UNITS = {
    name: TypeAdapter(Unit).validate_python(value.get("privacy.unit", "record"))
    for name, value in DIMENSIONS["unit"].items()
    if "h:" not in name and "silos" not in name
}
ATTAINED = {"minimiser": 0.94}  # of the price, by some change; else all of it
OF_SUMS = ("minimiser", "label_projection")  # a unit's part in them depends on the others
_LINEAR = {"unit": "smooth/replace_values", "problem": "linear"}
HOMES = {"contributions": {"unit": "clip/replace_person"}, **dict.fromkeys(OF_SUMS, _LINEAR)}
BY_SAMPLER = {batch.sampler: batch for batch in BATCHES}
DIMS = {"statistic": STATISTICS, "unit": UNITS, "batch": BY_SAMPLER, "problem": PROBLEMS}
World = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # features, targets, whose, groups


def answers(crossing: Crossing, silos: list[World], query: Query) -> tuple[torch.Tensor, float]:
    """Sums without noise, (silos, size), of silos that all draw alike; how far one unit may move them."""
    problem, unit, caught = PROBLEMS[crossing["problem"]], UNITS[crossing["unit"]], []

    def half(w, ask, memory):
        caught.append(ask(query))
        return {"g": caught[0]}

    def drawn(scores, *more):  # in place of a choice by noisy scores
        caught.append(scores.double() / selections.PER_ONE)
        return torch.zeros(len(scores), 1, dtype=torch.float64)

    shape = QueryShape(query.statistic, len(query.points), 1.0, query.options)
    plan, names = Plan(((Ask(query.batch, (shape,)),),), unit), ["s"] * len(silos)
    persons = Owners.of(unit, [own[2] for own in silos], None if unit == RECORD else (0, 0, names))
    records = lay_out([(x, y, groups) for x, y, _, groups in silos], problem, torch.float64, persons)
    sizes = [9 if unit.one_sided else own for own in records.sizes]
    terms = [Terms(f"s{i}", own, inf, 1e-5, range(1)) for i, own in enumerate(sizes)]
    entropy, ledgers = SeededEntropy(0, 0, names, ["r"] * len(names)), [MemoryLedger() for _ in names]
    asked = (
        problem,
        plan,
        terms,
        CLIP_ONLY,
        entropy,
        ledgers,
        LIMITS,
        torch.float64,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selections, "drawn", drawn)
        Served(Gate(records, *asked), Scripted(Switch(half), 1)).answer(
            0, {"w": torch.zeros(problem.dimension, dtype=torch.float64)}
        )
    assert caught[-1].shape == (len(silos), size_of(shape, problem.dimension, F))
    chosen = statistic(query.statistic).drawn
    scale = [[1.0 if chosen else query.batch.size(own)] for own in sizes]
    return caught[0].double() * torch.tensor(scale), plan.spread(shape) * float(query.clip)


def query_of(crossing: Crossing) -> Query:
    name, rng, problem = crossing["statistic"], np.random.default_rng(7), PROBLEMS[crossing["problem"]]
    known, options = statistic(name), OPTIONS.get(name, ())
    points = rng.normal(size=(max(2, known.points), problem.dimension))
    points[:, F - 1 : 4 * F : F] = 0.0  # no score depends on a record's last feature: terms can be opposite
    second = {"longer": np.array([0.7]), "costed_gradient": rng.uniform(-0.5, 0.5, 8)}.get(name)
    chosen = [*points[: known.points]] if second is None else [points[0], second]
    assert name != "costed_gradient" or len(second) == Cells.of(options).size
    return Query(name, tuple(map(torch.from_numpy, chosen)), 1.0, BY_SAMPLER[crossing["batch"]], 1.0, options)


def world(crossing: Crossing) -> World:
    """Eight units; with bound `limit` none has records that do not count."""
    rng, classes, unit = np.random.default_rng(5), CLASSES.get(crossing["problem"], 2), crossing["unit"]
    most = 2 if unit.startswith("limit") else 5
    codes = np.arange(8) if unit == "record" else np.repeat(np.arange(8), rng.integers(1, most, 8))
    x = rng.normal(size=(len(codes), F)) * 10 ** rng.uniform(-1, 0.7, (len(codes), 1))
    x[:, -1] = 1
    y = rng.integers(0, classes, len(codes)).astype(float) if classes else rng.normal(size=len(codes))
    return x / (10 if crossing["statistic"] in OF_SUMS else 1), y, codes, rng.integers(-1, 2, len(codes))


def changes(crossing: Crossing, query: Query) -> list[World]:
    """Units that are far apart for one statistic or another."""
    unit, classes = UNITS[crossing["unit"]], CLASSES.get(crossing["problem"], 2)
    sizes = [1] if unit == RECORD else [3] if unit.relation == "replace_values" else [1, 3]
    w, v = (query.points[0][:F].numpy(), query.points[-1][:F].numpy()) if query.points else (np.ones(F),) * 2
    along = np.eye(F)[-1] + 1e-3 * (w - v if len(v) == F and query.statistic != "gradient" else w)
    lines = [
        sign * 1e4 * x for x in (*np.eye(F)[[0, -1]], w, along, along - 2 * np.eye(F)[-1]) for sign in (1, -1)
    ]
    lines.append(lines[-1] / 1e4)
    if statistic(query.statistic).unit == "label":  # its features are known
        lines, sizes = [np.full(F, 0.5)], sizes[-1:]
    each = [(x, y, k) for x in lines for y in (range(classes) or (-1e6, 1e6)) for k in sizes]
    whose = [(np.full(k, 99), np.zeros(k, int)) for _, _, k in each]
    return [
        (np.tile(x, (k, 1)), np.full(k, float(y)), *own) for (x, y, k), own in zip(each, whose, strict=True)
    ]


def expected(crossing: Crossing, data: World, query: Query) -> np.ndarray:
    """The sum over units, by brute force."""
    problem, unit, total = PROBLEMS[crossing["problem"]], UNITS[crossing["unit"]], 0.0
    points = [each.numpy() for each in query.points]
    bound = (None, None) if unit == RECORD else (unit.bound, unit.h)

    def asked(x, y, _, group):
        def scores(w):
            return problem.scores(torch.from_numpy(x)[None], torch.from_numpy(w))

        def loss(w):
            return float(problem.losses(scores(w), torch.tensor([y])).sum())

        return Asked(x, y, int(group), loss, lambda w: scores(w).flatten().tolist(), points, query.options)

    for who in np.unique(data[2]):
        own = [asked(*record) for record in zip(*(each[data[2] == who] for each in data), strict=True)]
        clip = 1.0 if statistic(query.statistic).clipped else None
        total = total + term_of_unit(query.statistic, own, *bound, clip)
    return total


def walked(crossing: Crossing) -> tuple[list[str], float]:
    """Faults; how far some unit moves the sum, over its price."""
    crossing = (
        {name: next(iter(own)) for name, own in DIMS.items()}
        | HOMES.get(crossing["statistic"], {})
        | crossing
    )
    query, base, unit, faults = query_of(crossing), world(crossing), UNITS[crossing["unit"]], []
    name = query.statistic
    alone, price = answers(crossing, [base], query)
    if query.batch == FULL and name in {**TERMS, **OF_UNITS}:
        truth = expected(crossing, base, query)
        if np.abs(alone[0].numpy() - truth).max() > 1e-5 * max(1.0, np.abs(truth).max()):
            faults.append(f"the value is {alone[0].tolist()[:3]}, by definition {truth.tolist()[:3]}")
    silos = [tuple(map(np.concatenate, zip(base, own, strict=True))) for own in changes(crossing, query)]
    sums, _ = answers(crossing, silos, query)
    if not torch.allclose(answers(crossing, silos[:1], query)[0], sums[:1], 1e-12, 1e-12):
        faults.append("a silo's answer depends on the silos beside it")
    others = alone if unit.one_sided else sums
    apart = (sums[:, None] - others).abs().amax(-1) if statistic(name).drawn else None
    moved = float((torch.cdist(sums, others) if apart is None else apart).max()) / price
    if isinstance(query.batch, WithReplacement):  # a unit that is drawn twice is priced as two
        moved = 0.0
    if not moved <= 1 + 1e-9:
        faults.append(f"one {unit.name} moves it by {moved:.6f} of its price")
    if not (crossing["unit"].startswith("limit") or unit.relation == "replace_values" or name in OF_SUMS):
        mean = unit != RECORD and name not in (
            "contributions",
            "quantile",
            "choice",
            "capped_sum",
            "presence",
        )
        front = [
            (np.full((k, F), np.nan), np.zeros(k), np.full(k, -1), np.full(k, -1)) for k in (1, 1 + mean)
        ]
        worlds = [tuple(map(np.concatenate, zip(own, base, strict=True))) for own in front]
        one, two = answers(crossing, worlds, query)[0]
        if not torch.allclose(one, two, 1e-14, 1e-14):  # but for the rounding of a sum
            faults.append("others' terms depend on what stands in front of them")
    return faults, moved


def faults_of(crossing: Crossing) -> list[str]:
    its, said = state(lambda: walked(crossing))
    return [] if its == "refused" else [said] if its == "fails" else said[0]


def _goes(pair: Crossing) -> bool:
    own = {"statistic": "gradient", "unit": "record", "batch": "full", "problem": "logistic"}
    own |= HOMES.get(pair.get("statistic", ""), {}) | pair
    return state(lambda: answers(own, [world(own)], query_of(own)))[0] == "works"


def test_statistics_in_a_covering_array():
    judge("statistic", faults_of, covering({name: list(own) for name, own in DIMS.items()}, _goes))


@pytest.mark.parametrize("name", STATISTICS)
def test_some_change_moves_a_statistic_by_all_of_its_price(name):
    faults, moved = walked({"statistic": name})
    assert not faults
    assert moved > ATTAINED.get(name, 0.9999)


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_statistic(problem):
    judge(
        "statistic",
        faults_of,
        every({name: list(own) for name, own in DIMS.items()} | {"problem": [problem]}),
    )
