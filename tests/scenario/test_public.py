"""Public records are a part of f1: what they change, what they leave alone, and where they are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.scenarios import changed, once

import fedsim
from fedsim.algorithms.registry import shipped
from fedsim.common.errors import InputError
from fedsim.data.federation import load
from fedsim.problems.composite import SERVES, Composite
from fedsim.problems.glm import LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.public_records import PublicRecords
from fedsim.problems.regularisers import L2Ball
from fedsim.protocol.unit import RECORD, Person
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve

DATA = {"name": "synthetic", "link": "linear", "rows": 300, "features": 4, "noise": 0.5}
PUBLIC = {**DATA, "draw": 1, "rows": 60}
TREE = once(
    seed=3,
    data=DATA,
    public=PUBLIC,
    problem={"name": "linear_regression", "silo_weights": "size", "public": {"weight": 0}},
    algorithm={"num_rounds": 3, "step_size": 0.3, "last_iterate": True},
    privacy={"epsilon": 2},
    report={"evaluate_every": 3},
)


def resolved_with(**problem):
    return resolve(parse(TREE | {"problem": TREE["problem"] | problem}))


def run(tree=TREE, **changes):
    return fedsim.simulate(tree, changes, progress=False)


def records_for(problem, n=7, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.normal(size=(n, problem.num_features)))
    classes = getattr(problem, "num_outputs", 1)
    y = torch.tensor(rng.integers(0, max(2, classes), n)).double()
    return PublicRecords(x, y, weight=0.7)


PROBLEMS = [
    LinearRegression(3),
    LogisticRegression(3, composite=Composite(l2=0.3)),
    SoftmaxRegression(3, 4),
    NeuralNetwork(3, 3),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
def test_f1_has_kappa_times_the_gradient_of_the_public_mean_loss(problem):
    records = records_for(problem)
    public = replace(problem, composite=replace(problem.composite, records=records))
    w = torch.linspace(-1, 1, problem.dimension, dtype=torch.float64).requires_grad_()
    score = problem.slope_scores if isinstance(problem, NeuralNetwork) else problem.scores
    loss = problem.losses(score(records.features, w), records.target).mean()
    right = problem.public_gradient(w.detach()) + 0.7 * torch.autograd.grad(loss, w)[0]
    assert torch.allclose(public.public_gradient(w.detach()), right, rtol=0, atol=1e-12)
    both = torch.stack([w.detach(), w.detach() / 2])
    each = torch.stack([public.public_gradient(one) for one in both])
    assert torch.allclose(public.public_gradient(both), each, rtol=0, atol=1e-12)
    stepped = public.project(w.detach() - 0.1 * (1.0 + each[0]))
    assert torch.allclose(public.descend(w.detach(), torch.ones(len(w)).double(), 0.1), stepped)


def test_a_weight_of_zero_is_the_run_without_public_records_bit_for_bit():
    without = run({key: value for key, value in TREE.items() if key != "public"}, **{"problem.public": None})
    assert np.array_equal(run().model, without.model)
    assert not np.array_equal(run(**{"problem.public": {"weight": 0.1}}).model, without.model)


def test_runs_with_other_public_records_share_no_noise():
    from fedsim.simulation.run_digest import run_digest

    settings = [{"public": {"weight": 0.1}}, {"public": {"weight": 0.2}}, {}, {"start": "public"}]
    keys = [run_digest(resolved_with(**each), "data", "private") for each in settings]
    other = parse(TREE | {"public": PUBLIC | {"draw": 2}, "problem": TREE["problem"] | settings[0]})
    assert len({*keys, run_digest(resolve(other), "data", "private")}) == 5


def test_a_run_may_start_at_the_public_minimiser():
    problem = resolved_with(start="public").problem
    x, y = problem.composite.records.pair
    w = np.linalg.lstsq(x.numpy(), y.numpy(), rcond=None)[0]
    assert np.allclose(problem.start(0).numpy(), w, rtol=0, atol=1e-9)
    logistic = {**TREE, "data": DATA | {"link": "logistic"}, "public": PUBLIC | {"link": "logistic"}}
    problem = resolve(
        parse(logistic | {"problem": {"name": "logistic_regression", "start": "public"}})
    ).problem
    records = problem.composite.records
    assert problem.mean_gradient(records, problem.start(0)).norm() < 1e-8


def test_the_preconditioner_leaves_the_fixed_point_where_it_is():
    settings = {"weight": 0.5, "precondition": True}
    resolved = resolve(
        parse(
            TREE
            | {"problem": TREE["problem"] | {"public": settings}}
            | {"algorithm": TREE["algorithm"] | {"num_rounds": 200, "step_size": 0.5, "clip_norm": 1e6}}
            | {"privacy": {"mechanism": "none"}}
        )
    )
    model = fedsim.simulate(resolved.scenario, progress=False).model
    weightless = resolved.scenario.problem.public.model_copy(update={"weight": 0.0, "precondition": False})
    plain = resolved.scenario.model_copy(
        update={"problem": resolved.scenario.problem.model_copy(update={"public": weightless})}
    )
    assert not np.allclose(model, fedsim.simulate(plain, progress=False).model, atol=1e-3)
    same = fedsim.simulate(
        resolved.scenario,
        {"problem.public.precondition": False, "algorithm.num_rounds": 2000},
        progress=False,
    ).model
    assert np.allclose(model, same, rtol=0, atol=1e-6)


def test_the_preconditioner_is_the_damped_inverse_hessian():
    records = resolved_with(public={"precondition": True}).problem.composite.records
    x = records.features
    hessian = x.T @ x / len(x)
    damped = hessian + 0.05 * hessian.trace() / 5 * torch.eye(5, dtype=torch.float64)
    assert torch.allclose(records.inverse @ damped, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-10)


def test_the_optimal_weight_is_that_of_one_silo_by_the_thesis():
    tree = TREE | {"partition": {"name": "iid", "num_partitions": 1}}
    resolved = resolve(parse(tree | {"problem": TREE["problem"] | {"public": {"weight": "optimal"}}}))
    public = resolved.public([3.0])
    server, records = resolved.gate_algorithm, resolved.problem.composite.records
    k, k_pub, d = int(public.sizes), len(records), 5
    sigma = 3.0 * 2 * 1.0 / k
    alpha = 1 / (1 + k_pub / k + d * sigma**2 * k_pub / records.variance)
    assert server.weight(public, d) == pytest.approx((1 - alpha) / alpha, rel=1e-12)
    gradients = records.features * (records.features @ torch.zeros(5).double() - records.target)[:, None]
    spread = (gradients - gradients.mean(0)).square().sum(-1).mean()
    assert records.variance == pytest.approx(float(spread), rel=1e-9)


WEIGHED = {"problem.public": {"weight": "optimal"}}


@pytest.mark.parametrize("unit", [RECORD, Person(relation="add_remove")])
@pytest.mark.parametrize("batch", ["full", {"sampler": "subsample", "fraction": 0.1}])
def test_the_optimal_weight_has_the_noise_of_batch_and_unit(batch, unit):
    """By hand: a silo's noise is 2 z C / K, z C / K where a unit is added or removed."""
    resolved = resolve(parse(changed(TREE, {**WEIGHED, "algorithm.batch": batch})))
    public = replace(resolved.public([3.0, 2.0, 1.0]), unit=unit)
    K, p = np.array([resolved.algorithm.batch.size(n) for n in resolved.sizes]), np.array(resolved.weights)
    variance, k_pub = resolved.problem.composite.records.variance, 60
    moved = np.array([3.0, 2.0, 1.0]) * (2 if unit == RECORD else 1)
    error = variance * (p**2 / K).sum() + 5 * (p**2 * moved**2 / K**2).sum()
    assert resolved.gate_algorithm.weight(public, 5) == pytest.approx(error * k_pub / variance, rel=1e-9)


def test_falling_noise_weighs_public_records_as_equal_noise_at_its_cost_does():
    lines = []
    for decay in (1.0, 0.8):
        found = fedsim.price(changed(TREE, {**WEIGHED, "algorithm.noise_decay": decay})).statement.notices
        lines.append([line for line in found if "kappa is" in line])
    assert len(lines[0]) == 1
    assert lines[0] == lines[1]


def test_the_optimal_weight_is_reported_and_counted_in_the_step():
    data = {"data": DATA | {"link": "logistic"}, "public": PUBLIC | {"link": "logistic"}}
    tree = changed(TREE | data, {**WEIGHED, "problem.name": "logistic_regression", "privacy.epsilon": 0.05})
    with pytest.warns(UserWarning, match="2 / beta"):
        found = fedsim.simulate(tree, progress=False).summary
    assert sum("kappa is" in line for line in found.privacy.notices) == 1
    assert sum("2 / beta" in line for line in found.warnings) == 1
    found = fedsim.simulate(changed(tree, {"problem.public.weight": 0}), progress=False).summary
    assert not [
        line for line in (*found.privacy.notices, *found.warnings) if "kappa" in line or "beta" in line
    ]


@pytest.mark.parametrize("name", ["intercept", "scaling"])
def test_a_run_whose_public_records_say_nothing_of_preparation_can_be_repeated(name, tmp_path):
    value = {"intercept": False, "scaling": "none"}[name]
    tree = changed(TREE, {f"data.{name}": value, "problem.public": {"weight": 0.5}})
    first = fedsim.simulate(tree, progress=False)
    first.save(tmp_path / "run")
    again = fedsim.simulate(tmp_path / "run" / "scenario.yaml", progress=False)
    assert np.array_equal(first.model, again.model)
    swept = fedsim.sweep(tree | {"sweep": {"grid": {"problem.public.weight": [0.5]}}}, progress=False)
    assert swept.summary.runs.failed == 0
    with pytest.raises(InputError, match=r"scenario\.public\.scaling: 'none': declared"):
        fedsim.price(changed(TREE, {"public.scaling": "none"}))


def noticed(tree):
    return " ".join(fedsim.price(tree).statement.notices)


def test_a_start_that_public_records_do_not_determine_is_noticed():
    start = {"problem.start": "public"}
    assert "alone determine none" not in noticed(changed(TREE, start))
    assert "alone determine none" in noticed(changed(TREE, {**start, "public.rows": 3}))


def test_private_records_that_are_the_public_ones_are_noticed(tmp_path):
    rng, own = np.random.default_rng(0), {"name": "npz", "intercept": False, "scaling": "none"}
    for name in ("one", "other", "copy"):
        x = rng.normal(size=(60, 2))
        np.savez(tmp_path / f"{name}.npz", features=x, target=x[:, 0])
    (tmp_path / "copy.npz").write_bytes((tmp_path / "one.npz").read_bytes())
    for public, noted in (("one", True), ("copy", True), ("other", False)):
        sets = {"data": "one", "public": public}
        tree = TREE | {key: {**own, "path": str(tmp_path / f"{name}.npz")} for key, name in sets.items()}
        assert ("the public records are the private ones" in noticed(tree)) == noted
    assert "the public records are the private ones" in noticed(TREE | {"public": DATA})


def test_public_records_beside_private_ones_of_unlimited_budget_are_a_silo_more():
    """Without noise and with a clip that no gradient reaches: the objective's own minimiser."""
    settings = {"algorithm.num_rounds": 1500, "algorithm.clip_norm": 1e6, "privacy": {"mechanism": "none"}}
    model = run(**{"problem.public": {"weight": 0.25}, **settings}).model[0]
    resolved = resolved_with(public={"weight": 0.25})
    silos = load(resolved.scenario.data, resolved.scenario.partition, 3, 0).silos
    parts = [(silo.train.features, silo.train.target) for silo in silos]
    parts.append(tuple(each.numpy() for each in resolved.problem.composite.records.pair))
    shares = [weight / len(y) for weight, (_, y) in zip((*resolved.weights, 0.25), parts, strict=True)]
    hessian = sum(share * x.T @ x for share, (x, _) in zip(shares, parts, strict=True))
    vector = sum(share * x.T @ y for share, (x, y) in zip(shares, parts, strict=True))
    assert np.allclose(model, np.linalg.solve(hessian, vector), rtol=0, atol=1e-6)


def test_statements_say_private_and_name_the_public_records():
    found = run(**{"problem.public": {"weight": 0.1}})
    stated = found.summary.privacy
    assert stated.unit == "one private record of one silo"
    assert "one of its private records" in stated.guarantee
    sha256 = resolved_with(public={"weight": 0.1}).problem.composite.records.digest
    assert any(f"60 public records (synthetic, SHA-256 {sha256})" in line for line in stated.notices)
    price = fedsim.price(TREE).statement
    assert price.unit == "one private record of one silo"
    assert any(sha256 in line for line in price.notices)


def test_the_public_model_is_a_baseline_with_its_loss_on_public_records():
    (alone,) = (one for one in run().summary.baselines if one.name == "throw_away")
    assert alone.train_records == (60, 60)
    assert "mean loss" in alone.methods[0]


def test_algorithms_that_take_proximal_steps_are_refused():
    for name in ("prox_sgd", "spider_alternate"):
        algorithm = {"name": name, "num_rounds": 2, "step_size": 0.1, "clip_norm": 1.0}
        tree = TREE | {"algorithm": algorithm, "problem": TREE["problem"] | {"public": {"weight": 0.5}}}
        with pytest.raises(InputError, match="no closed form of them: use noisy_minibatch_sgd"):
            resolve(parse(tree))
        tree["problem"] = TREE["problem"] | {"public": {"weight": "optimal"}}
        with pytest.raises(InputError, match=r"scenario\.problem\.public\.weight: 'optimal': the algorithm"):
            resolve(parse(tree))


def test_the_algorithms_that_serve_are_those_that_take_gradients_of_f1():
    named = SERVES.replace(" or ", ", ").split(", ")
    assert set(named) <= set(shipped())
    problem = LinearRegression(2, composite=Composite(records=records_for(LinearRegression(2))))
    with pytest.raises(InputError):
        problem.prox(torch.zeros(2), 1.0)


REFUSED = [
    ({"problem.public": {"weight": -1}}, "problem.public.weight"),
    ({"public": None, "problem.public": {"weight": 1}}, "scenario.problem.public"),
    ({"public": None, "problem.public": None, "problem.start": "public"}, "scenario.problem.start"),
    ({"problem.public": None}, "scenario.problem.public: None: a weight"),
    ({"public.features": 3}, "the schema of the private records"),
    ({"public.link": "logistic"}, "the schema of the private records"),
    ({"public.record_norm": 2}, "scenario.public.record_norm: 2.*None"),
    ({"public.rows": 3, "problem.public": {"precondition": True}}, "leave the Hessian of 5"),
    (
        {"problem.public": {"precondition": True}, "problem.constraint": {"name": "l2_ball", "radius": 1}},
        "or c",
    ),
    ({"problem.public": {"weight": 1, "sha256": "0" * 64}}, "scenario.problem.public.sha256"),
    ({"problem.public": {"weight": "optimal"}, "algorithm": {"name": "label_regression"}}, "clip_norm"),
    ({"problem.public": {"weight": 1}, "algorithm": {"name": "label_regression"}}, "takes no gradient of f1"),
    (
        {
            "problem.public": {"precondition": True},
            "algorithm": {
                "name": "local_sgd",
                "num_rounds": 2,
                "local_steps": 2,
                "step_size": 0.1,
                "clip_norm": 1,
            },
        },
        "problem.public.precondition",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_public_records_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        fedsim.price(TREE, changes)


def test_an_empty_public_file_is_refused(tmp_path):
    x, y = np.zeros((0, 5)), np.zeros(0)
    np.savez(tmp_path / "none.npz", features=x, target=y)
    with pytest.raises(InputError, match=r"scenario\.public"):
        fedsim.price(TREE, {"public": {"name": "npz", "path": str(tmp_path / "none.npz")}})


def test_a_projection_is_kept(tmp_path):
    problem = resolved_with(constraint={"name": "l2_ball", "radius": 0.1}, start="public").problem
    assert isinstance(problem.composite.constraint, L2Ball)
    assert problem.start(0).norm() <= 0.1 + 1e-12


@pytest.mark.parametrize("n", [200, 400])
def test_public_records_alone_have_the_error_that_normal_features_give(n):
    """0.25 (1 + d / (n - d - 1)) for noise of standard deviation 0.5 (thesis, section 2.4)."""
    own = {"name": "synthetic", "link": "linear", "normal": True, "scaling": "none", "intercept": False}
    own |= {"features": 100, "noise": 0.5}
    errors = []
    for seed in range(12):
        sets = [own | {"seed": seed, "rows": rows, "draw": draw} for rows, draw in ((1000, 0), (n, 1))]
        tree = TREE | {"data": sets[0], "public": sets[1]}
        problem = resolve(parse(tree | {"problem": TREE["problem"] | {"start": "public"}})).problem
        optimum = parse(tree).data.open().optimum
        errors.append(0.25 + ((problem.start(0).numpy() - optimum) ** 2).sum())
    assert np.mean(errors) == pytest.approx(0.25 * (1 + 100 / (n - 101)), rel=0.05)


def test_another_draw_has_other_records_of_the_same_parameters():
    one, other = (parse(TREE | {"data": DATA | {"draw": draw}}).data.open() for draw in (0, 1))
    assert np.array_equal(one.optimum, other.optimum)
    assert not np.intersect1d(one.features, other.features).size


def test_normal_features_have_no_range_to_be_mapped_from():
    with pytest.raises(InputError, match=r"scenario\.data\.scaling: 'declared': none"):
        fedsim.price(TREE, {"data.normal": True})


def test_an_automatic_step_counts_public_records_too():
    auto = {**TREE["algorithm"], "step_size": "auto"}
    logistic = {"name": "logistic_regression", "silo_weights": "size"}
    data = {"data": DATA | {"link": "logistic"}, "public": PUBLIC | {"link": "logistic"}}
    steps = []
    for weight in (0.0, 1.0):
        tree = TREE | data | {"algorithm": auto, "problem": logistic | {"public": {"weight": weight}}}
        steps.append(resolve(parse(tree | {"privacy": {"mechanism": "none"}})).algorithm.step_size)
    assert steps[0] == pytest.approx(2 * steps[1], rel=0.05)
    tree["problem"]["public"]["precondition"] = True
    with pytest.raises(InputError, match="no rule covers a preconditioner"):
        resolve(parse(tree))


def test_short_names_are_those_of_the_private_records():
    assert parse(TREE).data.rows == 300
    assert fedsim.price(TREE, test_fraction=0.5).statement.silos[0].n == 50
