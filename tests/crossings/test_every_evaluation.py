"""Private evaluation x unit x mechanism: what it estimates, by its label, and how far off its noise is."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import fedsim
from crossings.features import Crossing, covering, every, names, overrides, scenario
from crossings.oracle import one_hot, weights
from crossings.walk import judge, state
from fedsim.api.given import resolved_of, scenario_of
from fedsim.measure import estimates as measured
from fedsim.scenario.evaluation import cell_noise, evaluation_of
from fedsim.simulation.host import preview, preview_evaluation
from fedsim.simulation.trial import read

DRAWS, BINS = 400, 10
ASKED = {"bins": {"bins": BINS}, "groups": {"by_group": True}, "both": {"bins": BINS, "by_group": True}}
DIMS = {"asked": list(ASKED), "unit": names("unit"), "mechanism": names("mechanism")}


@cache
def table() -> fedsim.Arrays:
    """Two silos in which one person in ten has forty records, of which a model knows less."""
    rng = np.random.default_rng(1)
    count = np.where(np.arange(600) % 10 == 0, 40, 1)
    who = np.repeat(np.arange(600), count)
    x = rng.uniform(-1, 1, (len(who), 2))
    group = np.where(rng.random(len(who)) < 0.5, "a", "b")
    known = x[:, 0] + 0.3 * (group == "a") > 0
    y = np.where(count[who] > 1, rng.random(len(who)) < 0.5, known).astype(int)
    more = {"ranges": (-1.0, 1.0), "person": who, "test_fraction": 0.5, "group": group}
    return fedsim.Arrays(x, y, np.array(["A", "B"])[who % 2], **more)


def given(crossing: Crossing) -> dict[str, Any]:
    own = {name: crossing[name] for name in ("unit", "mechanism") if name in crossing}
    over = overrides(own) | {"evaluate": ASKED[crossing.get("asked", "bins")]}
    trained = over.get("algorithm", {"name": "noisy_minibatch_sgd", "clip_norm": 1.0})
    over["algorithm"] = trained | {"num_rounds": 10, "step_size": 4.0}
    if own.get("unit", "").endswith("add_remove"):
        over["privacy.expected_persons"] = 150
    if own.get("mechanism") != "none":
        over["privacy.epsilon"] = 100.0
    return scenario(over)[0]


def truth(w: np.ndarray, cells: np.ndarray) -> dict[str, float]:
    """From the weights (n,) of records by [group, label, predicted class], (n, 2, 2, 2) of zeros and ones."""
    share = np.einsum("n,ngyc->gyc", w, cells)
    rates = {"parity": share[:, :, 1].sum(1) / share.sum((1, 2))}
    rates |= {name: share[:, y, 1] / share[:, y].sum(1) for y, name in enumerate(("alarms", "hits"))}
    gap = {name: abs(float(two[0] - two[1])) for name, two in rates.items()}
    found = {"parity_gap": gap["parity"], "opportunity_gap": gap["hits"]}
    right = float(share[:, 0, 0].sum() + share[:, 1, 1].sum())
    return found | {"odds_gap": max(gap["hits"], gap["alarms"]), "accuracy": right}


def faults_of(crossing: Crossing) -> list[str]:
    tree = given(crossing)
    its, run = state(lambda: fedsim.simulate(tree, data=table(), progress=False))
    if its != "works":
        return [run] if its == "fails" else []
    persons, faults = crossing.get("unit", "record") != "record", []
    resolved = resolved_of(scenario_of(tree, {}), None, table())
    silos = read(resolved, 0).silos.test
    test, home = silos.rows, np.searchsorted(silos.bounds, np.arange(silos.rows.n), "right")
    whose = None if test.owners is None or not persons else test.owners + 10_000 * home
    w, scores = weights(whose, test.n), test.features @ run.model[0]
    rows = zip(test.groups, test.target.astype(int), scores > 0, strict=True)
    cells = np.array([one_hot(g * 4 + y * 2 + c, 8) for g, y, c in rows]).reshape(-1, 2, 2, 2)
    true, p = truth(w, cells), 1 / (1 + np.exp(-scores))
    true |= {"auc": roc_auc_score(test.target, p, sample_weight=w), "brier": w @ (p - test.target) ** 2}
    for each in run.summary.evaluation:
        if each.weighing != ("persons, each weighs the same" if persons else "records"):
            faults.append(f"weighing of {each.metric}: {each.weighing!r}")
        if (exact := true.get(each.metric, each.exact)) is None:
            continue
        if each.exact is not None and abs(each.exact - exact) > 1e-6:
            faults.append(f"exact {each.metric} is {each.exact:.4f}, truth {exact:.4f}")
        if each.value is not None and abs(each.value - exact) > each.binning + 6 * each.standard_error + 1e-9:
            faults.append(
                f"{each.metric} is {each.value:.4f}, truth {exact:.4f}, error {each.standard_error:.4f}"
            )
    return faults + _covered(resolved, w, cells, scores, test.target)


def _covered(
    resolved: Any, w: np.ndarray, cells: np.ndarray, scores: np.ndarray, target: np.ndarray
) -> list[str]:
    """Estimates of noisy cells, beside those of the cells."""
    evaluation, admitted = evaluation_of(resolved), preview(evaluation_of(resolved))
    asked, n, parts = evaluation.algorithm, sum(evaluation.sizes), []
    if asked.bins:
        place = np.clip(np.ceil(asked.bins / (1 + np.exp(-scores))) - 1, 0, asked.bins - 1)
        parts.append(np.bincount((place + asked.bins * (target == 1)).astype(int), w, 2 * asked.bins))
    if asked.groups:
        parts.append(np.einsum("n,ngyc->gyc", w, cells).flatten())
    shares, noise = np.concatenate(parts), cell_noise(evaluation, admitted) / n
    if not noise:
        return []
    draws, faults = shares + noise * np.random.default_rng(2).standard_normal((DRAWS, len(shares))), []
    others = [measured.estimates(evaluation, admitted, torch.from_numpy(each), n) for each in draws]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "cell_noise", lambda *given: 0.0)
        first = measured.estimates(evaluation, admitted, torch.from_numpy(shares), n)
    for name, exact in first.items():
        known = [each[name] for each in others if each[name].reason is None]
        inside = np.mean(
            [abs(each.value - exact.value) <= 2 * each.standard_error for each in known] or [1.0]
        )
        most = 0.9925 if name in ("accuracy", "auc", "brier") else 1.0  # the others' errors are upper bounds
        if not 0.9 <= inside <= most:
            faults.append(f"{name}: {inside:.1%} of {len(known)} draws within two errors")
    return faults


def _goes(crossing: Crossing) -> bool:
    def admitted() -> Any:
        resolved = resolved_of(scenario_of(given(crossing), {}), None, table())
        return preview(resolved), preview_evaluation(resolved)

    return state(admitted)[0] == "works"


def test_evaluations_in_a_covering_array():
    judge("evaluation", faults_of, covering(DIMS, _goes))


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_every_evaluation(asked):
    judge("evaluation", faults_of, every(DIMS | {"unit": names("unit", gate=False), "asked": [asked]}))
