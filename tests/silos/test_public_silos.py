"""Silos whose records are public, beside private ones: neither clip nor noise, price nor guarantee."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsim
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.common.errors import InputError
from fedsim.privacy.registry import CLIP_ONLY, GAUSSIAN, NONE
from fedsim.problems.glm import LinearRegression, SoftmaxRegression
from fedsim.problems.network import NeuralNetwork
from fedsim.protocol.plan import Terms
from fedsim.report.sections.training import ClippedRound
from fedsim.report.texts import silo_table
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import MemoryLedger
from fedsim.simulation.trial import trial_of
from silos.front.served import Served
from silos.vault.admission import price
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out
from tests.support.helpers import DELTA, LIMITS, drive, plan_of, public_of, silos_of
from tests.support.scenarios import BASE, changed, run, write

SIZES = (12, 9, 15)
PUBLIC = (True, False, False)


def gate_of(problem: Any, data: Any, mechanism: Any, public: Any, epsilon: float, dtype: Any) -> Served:
    algorithm = NoisyMinibatchSGD(4, 0.5, 0.3)
    names, plan = ["a", "b", "c"], plan_of(algorithm, problem, SIZES, dtype)
    terms = [
        Terms(name, n, math.inf if own else epsilon, DELTA, range(4), public=own)
        for name, n, own in zip(names, SIZES, public, strict=True)
    ]
    return Served(
        Gate(
            lay_out(data, problem, dtype),
            problem,
            plan,
            terms,
            mechanism,
            SeededEntropy(0, 0, names, ["a test's run"] * 3),
            [MemoryLedger() for _ in names],
            LIMITS,
            dtype,
        ),
        algorithm,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["linear", "softmax", "network"])
def test_a_public_silo_answers_as_mechanism_none_and_private_ones_are_clipped(kind: str, dtype: Any) -> None:
    made: dict[str, Any] = {
        "linear": LinearRegression(3),
        "softmax": SoftmaxRegression(3, 3),
        "network": NeuralNetwork(3, 3),
    }
    problem = made[kind]
    rng = np.random.default_rng(0)
    data = [
        (rng.normal(size=(n, 3)) * 5, rng.integers(3, size=n) if kind != "linear" else rng.normal(size=n) * 9)
        for n in SIZES
    ]
    data[0][0][0] = 0.0  # a record of norm 0
    point = problem.start(0).to(dtype)
    mixed = gate_of(problem, data, GAUSSIAN, PUBLIC, math.inf, dtype).answer(0, {"w": point})
    (name,) = mixed
    none = gate_of(problem, data, NONE, (False,) * 3, math.inf, dtype).answer(0, {"w": point})
    clipped = gate_of(problem, data, CLIP_ONLY, (False,) * 3, math.inf, dtype).answer(0, {"w": point})
    close: dict[str, Any] = {"rtol": 3e-4 if dtype == torch.float32 else 1e-5, "atol": 1e-6}
    torch.testing.assert_close(mixed[name][0], none[name][0], **close)
    rounding: dict[str, Any] = (
        {"rtol": 1e-6, "atol": 1e-8} if kind == "network" else {"rtol": 0.0, "atol": 0.0}
    )
    torch.testing.assert_close(mixed[name][1:], clipped[name][1:], **rounding)
    assert not torch.allclose(none[name][0], clipped[name][0], rtol=1e-2)


def test_a_public_silo_changes_neither_noise_nor_price_of_the_others() -> None:
    problem, data = LinearRegression(3), silos_of(LinearRegression(3), SIZES)
    mixed = gate_of(problem, data, GAUSSIAN, PUBLIC, 1.0, torch.float64)
    alone = gate_of(problem, data, GAUSSIAN, (False,) * 3, 1.0, torch.float64)
    point = torch.ones(3, dtype=torch.float64)
    for _ in range(2):  # the stored reply too
        ours, theirs = mixed.answer(0, {"w": point}), alone.answer(0, {"w": point})
        (name,) = ours
        assert torch.equal(ours[name][1:], theirs[name][1:])
    for r in (1, 2, 3):
        mixed.answer(r, {"w": point}, [0, 2])
    own, *others = mixed.admitted
    assert (own.noise_multiplier, own.epsilon_guaranteed) == (0.0, math.inf)
    assert others == alone.admitted[1:]
    assert mixed.statements()[0].epsilon_spent == math.inf
    assert 0 < mixed.statements()[1].epsilon_spent < 1
    assert price(plan_of(NoisyMinibatchSGD(4, 0.5, 0.3), problem, SIZES), own, GAUSSIAN).whole.mu_sq == 0


NAMES = ["silo-00", "silo-01", "silo-02"]


def with_public(**changes: Any) -> dict[str, Any]:
    epsilon: dict[str, Any] = dict.fromkeys(NAMES, 1.0) | {NAMES[0]: "public"}
    return changed(BASE, {"trials": 1, "privacy.epsilon": epsilon, **changes})


def test_the_report_says_that_nothing_is_guaranteed_to_a_public_silo(tmp_path: Path) -> None:
    found = fedsim.simulate(with_public(), progress=False)
    before = fedsim.simulate(changed(BASE, {"trials": 1}), progress=False).summary.privacy
    own, *others = found.summary.privacy.silos
    assert own.guarantee == "no guarantee: public"
    assert (own.epsilon_guaranteed, own.epsilon_budget, own.noise_multiplier) == (None, None, 0.0)
    assert own.delta is None
    stated = found.summary.privacy
    assert stated.unit == "one private record of one silo"
    assert stated.guarantee.startswith("for each silo that is not public, the transcript")
    assert "replacing one of its private records" in stated.guarantee
    assert "public" not in before.guarantee + before.unit
    assert [each.tree() for each in others] == [each.tree() for each in before.silos[1:]]
    assert any(NAMES[0] in line for line in found.summary.privacy.notices)
    assert found.summary.privacy.persons is not None
    assert found.summary.privacy.persons.rows == before.persons.rows  # type: ignore[union-attr]
    assert "no guarantee: public" in str(silo_table(stated).rows[0])
    found.save(tmp_path / "run")
    assert "no guarantee: public" in (tmp_path / "run" / "report.html").read_text()
    assert '"guarantee": "no guarantee: public"' in (tmp_path / "run" / "summary.json").read_text()


def test_a_price_is_verified_and_converted_beside_a_public_silo(tmp_path: Path) -> None:
    path = write(tmp_path, with_public())
    found = json.loads(run("privacy", path, "--verify", "--conversions", "--json").stdout)
    own, other, _ = found["silos"]
    assert own["guarantee"] == "no guarantee: public"
    assert own["epsilon_dp_accounting"] is None
    assert other["epsilon_dp_accounting"] == pytest.approx(other["epsilon_guaranteed"], rel=1e-3)
    assert [each["name"] for each in found["conversions"]["silos"]] == NAMES[1:]


def test_terms_of_a_public_silo_are_not_counted_as_clipped() -> None:
    terms = []
    for tree in (changed(BASE, {"trials": 1}), with_public()):
        trial = trial_of(resolve(parse(tree)), 0)
        while not trial.finished:
            trial.advance(1.0)
        terms.append(next(row.terms for row in trial.result().rows if isinstance(row, ClippedRound)))
    sizes = resolve(parse(BASE)).sizes
    assert terms == [sum(sizes), sum(sizes[1:])]


@pytest.mark.parametrize(
    ("changes", "field", "hint"),
    [
        ({"privacy.epsilon": "public"}, "privacy.epsilon", "mechanism: none"),
        ({"privacy.epsilon": dict.fromkeys(NAMES, "public")}, "privacy.epsilon", "mechanism: none"),
        ({"privacy.epsilon": ["public"] * 3}, "privacy.epsilon", "mechanism: none"),
        ({"privacy.mechanism": "summed_gaussian", "privacy.honest_fraction": 1}, "privacy.epsilon", "a sum"),
        ({"privacy.calibration": "sigma", "privacy.sigma": 1}, "privacy.epsilon", "accountant"),
        ({"privacy.epsilon": {NAMES[0]: "publik"}}, f"privacy.epsilon.{NAMES[0]}", "number.*or 'public'"),
        ({"algorithm.num_rounds": "auto"}, "privacy.epsilon", "auto"),
    ],
)
def test_what_a_public_silo_cannot_have_is_named(changes: dict[str, Any], field: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint) as caught:
        fedsim.simulate(with_public(**changes), progress=False)
    assert caught.value.field == f"scenario.{field}"


def test_sweeps_fold_public_silos_too() -> None:
    tree = changed(with_public(), {"sweep": {"grid": {"algorithm.step_size": [0.1, 0.5]}}})
    found = fedsim.sweep(tree, progress=False).summary
    assert all(0 < (row.epsilon_guaranteed or 0) <= 1 for row in found.combinations if row.private)
    assert all(row.epsilon_budget == 1 for row in found.combinations if row.private)


def test_private_tuning_beside_a_public_silo_is_refused_by_name() -> None:
    sweep = {"tune": {"grid": {"algorithm.step_size": [0.1, 0.5]}, "private": {}}}
    with pytest.raises(InputError, match=r"scenario.privacy.epsilon.*not private tuning"):
        fedsim.sweep(changed(with_public(), {"sweep": sweep}), progress=False)


def test_drives_to_the_end_with_some_members() -> None:
    problem, data = LinearRegression(3), silos_of(LinearRegression(3), SIZES)
    gate = gate_of(problem, data, GAUSSIAN, PUBLIC, 1.0, torch.float64)
    algorithm = NoisyMinibatchSGD(4, 0.5, 0.3)
    *_, last = drive(gate, algorithm, problem, public_of(SIZES), [[0, 1], [1, 2], [0], [2]])
    assert bool(last.answer.isfinite().all())
