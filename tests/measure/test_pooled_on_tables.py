"""On tables as they come, the pooled baseline is what scikit-learn fits to the same training records."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from support.distribution import ROOT

from fedsim.data.federation import load
from fedsim.measure.baselines import fit
from fedsim.scenario.load import load as load_scenario
from fedsim.scenario.resolve import resolve


@pytest.mark.parametrize("name", ["heart", "census", "homes"])
def test_the_pooled_optimum_equals_scikit_learns(name):
    """Of classes its default: indicators of categories and the constant have no optimum of their own."""
    scenario = load_scenario(ROOT / "examples" / "tables" / f"{name}.yaml")
    problem = resolve(scenario).problem
    silos = load(scenario.data, scenario.partition, scenario.seed, 0).silos
    features = np.concatenate([silo.train.features for silo in silos])
    target = np.concatenate([silo.train.target for silo in silos])
    tested = np.concatenate([silo.test.features for silo in silos])
    records = torch.tensor(features), torch.tensor(target.astype(float))
    found = fit(problem, [records], [1.0], intercept=True)
    assert found.w is not None
    scores = problem.scores(torch.tensor(tested), found.w).numpy().ravel()
    model = LinearRegression() if name == "homes" else LogisticRegression(max_iter=1000, tol=1e-8)
    model.fit(features[:, :-1], target)  # which has a constant of its own
    theirs = model.predict if name == "homes" else model.decision_function
    assert scores == pytest.approx(theirs(tested[:, :-1]), abs=1e-3)
