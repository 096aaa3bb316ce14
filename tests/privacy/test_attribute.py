"""What a change of a record's group costs, and the mechanism that protects nothing else."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.refusals import refused
from support.scenarios import FAIR, changed

import fedsim
import silos.vault.group_terms
from fedsim.algorithms.fair_minibatch_sgd import FairMinibatchSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.privacy import attribute, gaussian
from fedsim.privacy.registry import GAUSSIAN, MECHANISMS
from fedsim.problems.composite import Composite
from fedsim.problems.fairness import Fairness
from fedsim.problems.glm import LogisticRegression
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.testing.federations import open_gate, plan_of

D, N = 4, 40  # as many features as a table has cells
GROUP = MECHANISMS["attribute_gaussian"]


def problem_of(weight):
    fair = Fairness("demographic_parity", weight, (0.5, 0.5), 2)
    return LogisticRegression(D, 1, Composite(fairness=fair))


def records(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D))
    return x / np.linalg.norm(x, axis=1, keepdims=True), rng.integers(0, 2, N), rng.integers(-1, 2, N)


@pytest.mark.parametrize("weight", [0.0, 0.01, 5.0])
def test_the_group_alone_costs_the_distance_that_it_can_make(weight):
    problem, algorithm = problem_of(weight), FairMinibatchSGD(7, 0.5, 1.5, joint_noise_ratio=2.0)
    plan, z = plan_of(algorithm, problem, [N]), 9.0
    census = attribute.census(plan, range(7), 1.5, 1.0, 1)
    share = min(1.0, problem.composite.fairness.reach / 4 / 3.0)  # of 2 clip
    mu = math.sqrt(7 * (share**2 + 1 / 2.0**2)) / z
    assert GAUSSIAN.epsilons(census, [(N, z, 1e-6)])[0] == pytest.approx(gaussian.epsilon(mu, 1e-6))
    whole = GAUSSIAN.epsilons(plan.census(), [(N, z, 1e-6)])[0]
    assert GAUSSIAN.epsilons(census, [(N, z, 1e-6)])[0] <= whole * (1 + 1e-12)
    capped = attribute.census(plan, range(7), 1.5, math.inf, 1)
    if weight == 5.0:
        assert share == 1.0
        assert GAUSSIAN.epsilons(capped, [(N, z, 1e-6)])[0] == whole


def test_gradients_alone_cost_a_group_nothing():
    plan = plan_of(NoisyMinibatchSGD(5, 0.5, 1.0), LogisticRegression(D), [N])
    assert GAUSSIAN.epsilons(attribute.census(plan, range(5), 1.0, 1.0, 1), [(N, 3.0, 1e-6)]) == [0.0]


class _Once(FairMinibatchSGD):
    """One round at a given table."""

    def server(self, w, problem, public, rng):
        from fedsim.protocol.contract import Round

        sums = yield Round({"w": w + 0.3, "table": self.table}, answer=w)
        return sums["g"]


@pytest.mark.parametrize(
    ("table", "clip", "moved"),
    [((0.0, 0.0, 0.0, 0.0), 1.0, 0.0), ((0.0, 0.8, 0.0, 0.0), 1.0, 0.2), ((0.0, 1e2, 0.0, 0.0), 0.25, 0.5)],
    ids=["no costs", "costs", "the clip's bound"],
)
def test_noise_for_the_group_covers_what_it_moves_and_no_more(table, clip, moved):
    fair = replace(problem_of(1.0).composite.fairness, weight=50.0)
    problem = LogisticRegression(D, 1, Composite(fairness=fair))
    algorithm = _Once(1, 0.5, clip, joint_noise_ratio=2.0)
    object.__setattr__(algorithm, "table", torch.tensor(table, dtype=torch.float64))
    silos = [records()] * 400
    plan = plan_of(algorithm, problem, [N])
    gate = open_gate(silos, problem, algorithm, mechanism=GROUP, epsilon=1.0, plan=plan)
    exact = open_gate(silos[:1], problem, algorithm, mechanism="none", epsilon=math.inf, plan=plan)
    broadcast = {"w": torch.full((D,), 0.3).double(), "table": algorithm.table}
    noisy, z = gate.answer(0, broadcast), gate.admitted[0].noise_multiplier
    assert z == pytest.approx(math.sqrt(1 + 1 / 4) / gaussian.mu(1.0, 1e-5), rel=1e-4)
    spread = (noisy["g"] - noisy["g"].mean(0)) * N
    assert float(spread.std()) == pytest.approx(z * moved, rel=0.07)
    joint = (noisy["joint"] - exact.answer(0, broadcast)["joint"]) * N
    assert float(joint.std()) == pytest.approx(2 * z * math.sqrt(2), rel=0.07)


def test_no_other_module_of_the_gate_reads_a_group():
    files = Path(silos.vault.group_terms.__file__).parent.glob("*.py")
    users = [file.name for file in files if re.search(r"\bblock\.group\b", file.read_text())]
    assert sorted(users) == ["group_terms.py", "records.py"]  # the latter, whether there are any


def stated(**changes):
    """Of the silos, epsilon for the group alone."""
    tree = changed(FAIR, {name.replace("__", "."): value for name, value in changes.items()})
    return {silo.get("epsilon_attribute") for silo in fedsim.price(tree).silos}


def test_epsilon_of_the_group_is_stated_where_it_is_known_and_bounds_every_case():
    (own,) = stated()
    assert 0 < own < 1.0
    (most,) = stated(problem__fairness=FAIR["problem"]["fairness"] | {"weight": 50})
    assert most == pytest.approx(1.0, rel=1e-6)  # the clip's bound
    # Of a sampled batch a record's absence tells as well: features and labels are in it, the group is not.
    assert stated(algorithm__batch={"sampler": "subsample", "fraction": 0.1}) == {None}


def test_the_mechanism_for_groups_needs_groups_that_are_no_feature():
    tree = {"privacy.mechanism": "attribute_gaussian", "data.groups": False, "problem.fairness": None}
    with refused("scenario.privacy.mechanism", "attribute_gaussian", "name data.attribute"):
        resolve(parse(changed(FAIR, tree)))
