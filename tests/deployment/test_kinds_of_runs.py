"""`fedsim up` of every kind of run, over real processes: model, ledgers, receipts and page are right."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.daemons import short_folder
from support.scenarios import invoke
from support.ups import NAMES, Deployed, edited, finished, made, scenario_of, started, write_table

import fedsim
from fedsim.deployment.topology import Topology
from fedsim.isolated.confine import unavailable

pytestmark = pytest.mark.slow
SIMULATED = 12  # repetitions
FAR = 8  # of their standard deviations; Student's t of 11 degrees of freedom is beyond it once in 150,000
PLUG_IN = '''
from dataclasses import dataclass
from typing import ClassVar

from fedsim import Query, Round


@dataclass(frozen=True)
class Told:
    """First the sum of feature 0, then steps that begin where it says."""

    num_rounds: int
    clip_norm: float
    linear: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def server(self, w, problem, public, rng):
        told = yield Round({"first": w[..., :1]}, answer=w)
        w = w + told["s"]
        for _ in range(self.num_rounds):
            mean = yield Round({"w": w}, answer=w)
            w = problem.descend(w, mean["g"], 0.5)
        return w

    def silo(self, problem, broadcast, ask, memory):
        if "first" in broadcast:
            return {"s": ask(Query("sum", (), 1.0, options=(0.0, -1.0, 1.0)))}
        return {"g": ask(Query("gradient", (broadcast["w"],), self.clip_norm))}
'''


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return write_table(tmp_path_factory.mktemp("visits") / "visits.csv")


def _person(relation: str, bound: str = "limit", **more: Any) -> dict[str, Any]:
    return {"unit": {"name": "person", "relation": relation, "bound": bound, **more}, "delta": 1e-4}


@dataclass(frozen=True)
class Kind:
    """Sections over the scenario's; what its silos' operators edit; and what is to be seen besides."""

    sections: dict[str, Any]
    edit: Callable[[Topology], None] = lambda topology: None
    look: Callable[[Deployed, Path], None] = lambda deployed, table: None
    simulated: dict[str, Any] = field(default_factory=dict)  # overrides of the simulation that is its like


def _public_north(topology: Topology) -> None:
    edited(topology.config("north"), public_silo=True)


def _nothing_of_north(deployed: Deployed, table: Path) -> None:
    book = deployed.book("north")
    assert book.enrolment.public
    assert not any(book.account.charged.tree().values())
    assert "north" in (deployed.topology.run / "report.html").read_text()


def _clips(deployed: Deployed, table: Path) -> None:
    assert len(set(deployed.summary.chosen_clips)) > 1


def _estimated(*names: str) -> Callable[[Deployed, Path], None]:
    def look(deployed: Deployed, table: Path) -> None:
        found = {row.metric: row for row in deployed.summary.evaluation}
        assert set(names) <= set(found)
        for name in names:
            assert np.isfinite(found[name].value)
        for silo in NAMES:
            assert [run.records for run in deployed.book(silo).runs.values()] == ["training", "holdout"]

    return look


def _labels_alone(deployed: Deployed, table: Path) -> None:
    assert all(deployed.book(name).enrolment.label_dp for name in NAMES)
    assert "Labels alone are protected" in " ".join(deployed.summary.privacy.notices)


def _out_of_the_sampled_share(deployed: Deployed, table: Path) -> None:
    for name in NAMES:
        charged = deployed.book(name).account.charged
        assert charged.mu_sq == 0 < charged.epsilon <= 4


def _own(deployed: Deployed, table: Path) -> None:
    shared, models = deployed.run.model[0], []
    for name in NAMES:
        out = deployed.topology.directory / f"{name}-own"
        file = deployed.topology.config(name)
        invoke("silo", "--config", file, "model", deployed.topology.run, "--out", out)
        models.append(fedsim.load_run(out).predictor().parameters.numpy())
    assert all(np.linalg.norm(model - shared) > 1e-6 for model in models)
    assert len({model.tobytes() for model in models}) == 3


def _isolated(deployed: Deployed, table: Path) -> None:
    for name in NAMES:
        policy = yaml.safe_load(deployed.topology.config(name).read_text())["policy"]
        assert policy["plug_ins"] == ["own.py:Told"]


SUMS = {"mechanism": "summed_gaussian", "honest_fraction": 1.0}
MLP = {"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}}
QUANTILE = {"quantile": 0.6, "rounds": 2, "share": 0.25, "start": 0.1}
SGD = {"name": "noisy_minibatch_sgd", "num_rounds": 3, "step_size": 1.0, "clip_norm": 1.0}
PARTS = {"name": "localized_accelerated_sgd", "phases": 2, "phase_rounds": 2, "step_size": 0.5}
PARTS |= {"regularisation": 0.1, "growth": 1.0, "clip_norm": 1.0}
FAIR = {"notion": "demographic_parity", "weight": 0.1}
OWN = {"name": "mean_regularised", "num_rounds": 3, "step_size": 0.5, "clip_norm": 1.0}
OWN |= {"own_step_size": 0.3, "pull": 0.5}

WHITENED = {"name": "whitened_newton", "num_rounds": 6, "moment_clip": "auto", "steps": "auto"}
KINDS = {
    "whitened records, recalibrated": Kind({"algorithm": WHITENED | {"recalibration_share": 0.05}}),
    "sums of whitened persons": Kind(
        {"privacy": _person("replace_person", "mean") | SUMS, "algorithm": WHITENED | {"diagonal": True}}
    ),
    "persons replaced, a clip found, accuracy": Kind(
        {
            "privacy": _person("replace_person", h=2),
            "algorithm": SGD | {"clip_norm": QUANTILE},
            "evaluate": {"bins": 4},
        },
        look=lambda deployed, table: (
            _clips(deployed, table),
            _estimated("accuracy", "auc")(deployed, table),
        ),
    ),
    "persons' values replaced, parts": Kind(
        {"privacy": _person("replace_values", "mean"), "algorithm": PARTS}
    ),
    "persons added, a network": Kind(
        {"privacy": _person("add_remove", "smooth", h=2) | {"expected_persons": 120}, "problem": MLP}
    ),
    "sums of persons of two silos, accuracy": Kind(
        {"privacy": _person("replace_person", "clip", silos_per_person=2) | SUMS, "evaluate": {"bins": 4}},
        look=_estimated("accuracy"),
    ),
    "sums of messages of bits": Kind(
        {"privacy": {"mechanism": "shuffled_binomial", "honest_fraction": 1.0}, "algorithm": SGD}
    ),
    "noise by server and shuffler": Kind(
        {"privacy": {"mechanism": "summed_gaussian", "noise_by": "aggregators"}, "evaluate": {"bins": 4}},
        look=_estimated("brier"),
    ),
    "random batches of persons": Kind(
        {
            "privacy": _person("add_remove", "mean") | {"expected_persons": 120},
            "algorithm": SGD | {"batch": {"sampler": "poisson", "fraction": 0.3}},
        },
        look=_out_of_the_sampled_share,
    ),
    "labels alone": Kind(
        {
            "data": {"target": "cost"},
            "problem": "linear_regression",
            "algorithm": {"name": "label_regression"},
        },
        look=_labels_alone,
    ),
    "fair, gaps between groups": Kind(
        {
            "data": {"attribute": "sex"},
            "problem": {"name": "logistic_regression", "silo_weights": "size", "fairness": FAIR},
            "algorithm": SGD | {"name": "fair_minibatch_sgd"},
            "evaluate": {"by_group": True},
        },
        look=_estimated("parity_gap"),
    ),
    "a public silo": Kind(
        {"problem": {"name": "logistic_regression", "silo_weights": "precision"}},
        edit=_public_north,
        look=_nothing_of_north,
        simulated={"privacy.epsilon": {"east": 4.0, "north": "public", "west": 4.0}},
    ),
    "public records in steps of the silos": Kind(
        {
            "public": True,
            "problem": {"name": "logistic_regression", "public": {"weight": 0.5}},
            "algorithm": SGD | {"name": "local_sgd", "local_steps": 2},
        }
    ),
    "own models": Kind({"algorithm": OWN, "report": {"own_models": True}}, look=_own),
    "an isolated algorithm that asks for a sum": Kind(
        {"algorithm": {"name": "own.py:Told", "num_rounds": 3, "clip_norm": 1.0}}, look=_isolated
    ),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_run_is_what_its_scenario_says(
    kind: Kind, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(PLUG_IN)
    monkeypatch.chdir(tmp_path)
    tree = scenario_of(table, kind.sections)
    if "own.py" in str(tree["algorithm"]) and unavailable() is not None:
        pytest.skip(str(unavailable()))
    with short_folder() as folder:
        topology = made(tree, folder / "all", kind.edit)
        deployed = finished(started(topology), topology)
        _check_model(deployed, tree, kind.simulated)
        _check_costs(deployed, tree, kind.simulated)
        _check_receipts(deployed)
        kind.look(deployed, table)


def _check_model(deployed: Deployed, tree: dict[str, Any], changes: dict[str, Any]) -> None:
    """It is as far from the simulated ones' mean as these are."""
    assert deployed.summary.status == "finished"
    trials = fedsim.simulate(tree, {**changes, "trials": SIMULATED}, progress=False).model
    away = np.abs(deployed.run.model[0] - trials.mean(0)) / trials.std(0, ddof=1)
    assert np.max(away) < FAR, (deployed.run.model, trials)


def _check_costs(deployed: Deployed, tree: dict[str, Any], changes: dict[str, Any]) -> None:
    """Each silo is charged for all rounds, once, and what it costs is the price within its budget."""
    priced = {row.name: row for row in fedsim.price(tree, changes).statement.silos}
    for row in deployed.summary.privacy.silos:
        book = deployed.book(row.name)
        assert all(run.charged is not None for run in book.runs.values())
        training = next(run for run in book.runs.values() if run.records == "training")
        assert sorted(training.rounds) == list(range(len(training.rounds)))
        assert all(each.reply for each in training.rounds.values())
        if row.epsilon_guaranteed is None or book.enrolment.public:
            continue
        assert row.epsilon_guaranteed <= row.epsilon_budget == 4.0
        assert row.epsilon_guaranteed == pytest.approx(priced[row.name].epsilon_guaranteed, rel=0.02)
        assert row.n + (row.held_out or 0) == priced[row.name].n


def _check_receipts(deployed: Deployed) -> None:
    page = (deployed.topology.run / "report.html").read_text()
    for name in NAMES:
        assert name in page
        key = deployed.topology.silo(name) / "state" / "identity.pub"
        receipts = sorted(deployed.topology.run.glob(f"receipts/**/{name}.json"))
        assert len(receipts) == len(deployed.book(name).runs)
        for receipt in receipts:
            said = " ".join(invoke("ledger", "verify", receipt, "--key", key).split())
            assert re.search(
                rf"Verified: the silo of this key signed this receipt as it stands, {name}", said
            )
            assert "to try it" in said
