"""A deployed run's gaps between groups: a second run, of the records that silos hold out."""

import numpy as np
import pytest
from support.channels import Enrolled, enrolled_federation
from support.deployed import POLICY, SCENARIO, resolved_of

from fedsim.api.run import load_run
from fedsim.common.errors import InputError
from fedsim.deployment.run import deploy
from fedsim.measure.groups import ByGroup
from fedsim.report.texts import remarks
from fedsim.scenario.load import parse
from silos.front.own_records import read_records
from silos.vault.book import read

LARGE = {"lifetime": {**POLICY["lifetime"], "epsilon": 20.0}}
ASKED = {"evaluate": {"by_group": True}, "privacy": {"epsilon": 4.0, "delta": 1e-6}}


def made(folder, holdout: float | None = 0.5) -> tuple[Enrolled, dict[str, object]]:
    """Three silos of 800 records, a tenth of which have no group; and their scenario."""
    rng, n = np.random.default_rng(0), 3000
    group = rng.choice(["a", "b", ""], n, p=[0.6, 0.3, 0.1])
    x = rng.uniform(-1, 1, (n, 4))
    x[:, 0] += np.where(group == "a", 0.5, -0.5)
    y = (2 * x[:, 0] + x[:, 1] + rng.logistic(0, 1, n) > 0).astype(int)
    np.savez(folder / "own.npz", features=x, target=y, group=group)
    data = {"name": "npz", "path": str(folder / "own.npz"), "groups": ["b", "a"], "scaling": "none"}
    silos = enrolled_federation(folder, resolved_of(data=data), False, LARGE, holdout=holdout)
    return silos, SCENARIO | ASKED | {"data": data}


def test_gaps_are_estimated_on_records_that_silos_hold_out(tmp_path) -> None:
    silos, tree = made(tmp_path)
    with silos.opened(seeded=False) as channel:
        outcome = deploy(parse(tree), silos.federation, channel, tmp_path / "run")
    summary, model = load_run(tmp_path / "run").summary, outcome.results.trials[0].models["private"].numpy()
    table = np.zeros((2, 2, 2))
    for name, config in silos.configs.items():
        records = read_records(config)
        _, held_out = records.divided(0.5, silos.identity(name))
        assert records.groups == ("b", "a")
        chosen = (held_out.features @ model > 0).astype(int)
        known = held_out.groups >= 0
        np.add.at(table, tuple(c[known] for c in (held_out.groups, held_out.target, chosen)), 1)
    assert {row.metric for row in summary.evaluation} == {"parity_gap", "odds_gap", "opportunity_gap"}
    for row in summary.evaluation:
        assert row.exact is None
        assert abs(row.value - getattr(ByGroup(table, None), row.metric)) <= 4 * row.standard_error < 0.4
    assert "parity gap among those held out" in "".join(remarks(summary))
    for row in summary.privacy.silos:
        assert row.epsilon_guaranteed == max(row.epsilon_training, row.epsilon_evaluation) <= 4.0
        runs = read(silos.configs[row.name].ledger).runs.values()
        assert [(run.records, len(run.rounds)) for run in runs] == [("training", 6), ("holdout", 1)]


def test_silos_that_hold_none_out_are_named(tmp_path) -> None:
    silos, tree = made(tmp_path, holdout=None)
    with (
        silos.opened(seeded=False) as channel,
        pytest.raises(InputError, match=r"evaluate.*needs 2 held-out records.*holdout"),
    ):
        deploy(parse(tree), silos.federation, channel, tmp_path / "run")
