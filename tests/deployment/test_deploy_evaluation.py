"""A deployed run's evaluation: a second run, of held-out records, and what the page says of both."""

import numpy as np
import pytest
import yaml
from support.channels import Enrolled, Fault
from support.deployed import POLICY, SCENARIO, enrolled, federation_of, resolved_of, write_silos
from support.pooled import pooled_federation, pooled_scenario

from fedsim.api.run import load_run
from fedsim.common.errors import InputError
from fedsim.deployment.federation_file import parse_federation
from fedsim.deployment.run import deploy
from fedsim.protocol.receipts import verified_receipt
from fedsim.report.resume import state_of
from fedsim.report.texts import remarks
from fedsim.scenario.load import parse
from fedsim.wire.frames import decode, opened
from fedsim.wire.messages import named
from silos.front.own_records import read_records
from silos.vault.book import read
from silos.vault.records import Records

HOLDOUT = 0.25
ROWS = {"data": {"name": "synthetic", "rows": 600, "features": 4}}
EVALUATED = SCENARIO | ROWS | {"evaluate": {"bins": 4}, "privacy": {"epsilon": 4.0, "delta": 1e-6}}
LARGE = {"lifetime": {**POLICY["lifetime"], "epsilon": 20.0}}


@pytest.fixture
def silos(tmp_path):
    """Three silos that hold records out, or as many of them as `holding` says."""

    def made(holding: int = 3, policy: dict[str, object] = LARGE) -> Enrolled:
        resolved = resolved_of(**ROWS)
        files = write_silos(tmp_path, resolved, policy=policy)
        for file in files[:holding]:
            file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"holdout": HOLDOUT}))
        configs = {config.name: config for config in enrolled(files)}
        places = {
            name: {"identity": str(config.state / "identity.pub"), "socket": str(tmp_path / name / "s")}
            for name, config in configs.items()
        }
        federation = parse_federation({"silos": places, "deadline": 20})
        return Enrolled(tmp_path, resolved, configs, federation)

    return made


def test_the_model_is_evaluated_on_records_that_silos_hold_out(silos, tmp_path, monkeypatch):
    laid_out: list[tuple[int, set[float]]] = []
    kept = Records.__init__

    def noted(self, pairs, *rest):
        laid_out.append((len(pairs[0][1]), set(np.asarray(pairs[0][0])[:, 0].tolist())))
        kept(self, pairs, *rest)

    monkeypatch.setattr(Records, "__init__", noted)
    made = silos()
    with made.opened(seeded=False) as channel:
        deploy(parse(EVALUATED), made.federation, channel, tmp_path / "run")
    run = load_run(tmp_path / "run")
    estimates = {row.metric: row for row in run.summary.evaluation}
    means = {"mean_predicted_probability", "observed_share"}
    assert set(estimates) == {"accuracy", "auc", "brier", "calibration_error"} | means
    assert 0 < estimates["accuracy"].standard_error < 0.1
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "There is one model, and so no band" in page
    assert remarks(run.summary)[0].startswith("evaluation, accuracy: 0.")
    for row in run.summary.privacy.silos:
        own = read_records(made.configs[row.name])
        assert (row.n + row.held_out, row.held_out) == (own.rows.n, round(HOLDOUT * own.rows.n))
        assert row.epsilon_guaranteed == max(row.epsilon_training, row.epsilon_evaluation) <= 4.0
        key = (tmp_path / "run" / "receipts" / f"{row.name}.pub").read_text().strip()
        text = (tmp_path / "run" / "receipts" / "evaluation" / f"{row.name}.json").read_text()
        receipt = verified_receipt(text, key)
        offer = (tmp_path / "run" / "offers" / "evaluation" / f"{row.name}.json").read_text()
        assert receipt["offer"] == named(offer)
        assert (receipt["part"], receipt["rounds"]) == ("holdout", [0])
    for silo in federation_of(made.resolved).silos:
        first = set(silo.train.features[:, 0].tolist())
        sizes, parts = zip(*(each for each in laid_out if each[1] <= first), strict=True)
        assert len(parts) == 2
        assert not parts[0] & parts[1]
        assert sum(sizes) == len(first)


def test_public_test_records_are_measured_beside_it(silos, tmp_path):
    made = silos()
    np.savez(tmp_path / "test.npz", features=np.ones((4, 5)), target=[0, 1, 1, 0])
    with made.opened(seeded=False) as channel:
        deploy(parse(EVALUATED), made.again(test=str(tmp_path / "test.npz")), channel, tmp_path / "run")
    summary = load_run(tmp_path / "run").summary
    assert summary.metrics.error == 0.5
    assert summary.evaluation[0].exact is None


def test_its_estimates_are_about_those_of_all_records(silos, tmp_path):
    made = silos()
    with made.opened(seeded=False) as channel:
        outcome = deploy(parse(EVALUATED), made.federation, channel, tmp_path / "run")
    model = outcome.results.trials[0].models["private"].numpy()
    own = [read_records(config) for config in made.configs.values()]
    x, y = (np.concatenate([getattr(each.rows, part) for each in own]) for part in ("features", "target"))
    (accuracy,) = [row for row in load_run(tmp_path / "run").summary.evaluation if row.metric == "accuracy"]
    few = np.sqrt(0.25 / 150)
    assert accuracy.value == pytest.approx(
        np.mean((x @ model > 0) == y), abs=4 * (accuracy.standard_error + few)
    )


def test_a_silo_without_held_out_records_is_named_before_anything_is_released(silos, tmp_path):
    made = silos(holding=2)
    with (
        made.opened(seeded=False) as channel,
        pytest.raises(InputError, match=r"evaluate.*'silo-02' has 0.*holdout"),
    ):
        deploy(parse(EVALUATED), made.federation, channel, tmp_path / "run")


def test_an_evaluation_that_silos_refuse_leaves_the_run(silos, tmp_path):
    """A release of held-out records has less noise than one of six rounds, and this policy asks for more."""
    made = silos(policy=LARGE | {"min_noise_multiplier": 2.0})
    with made.opened(seeded=False) as channel:
        deploy(parse(EVALUATED), made.federation, channel, tmp_path / "run")
    summary = load_run(tmp_path / "run").summary
    assert (summary.status, summary.evaluation) == ("finished", [])
    assert any("there is no evaluation: 0 of 3 silos" in line for line in summary.deployment.remarks)
    for row in summary.privacy.silos:
        assert row.epsilon_evaluation is None
        assert row.epsilon_guaranteed > 0


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_server_that_was_killed_goes_on_with_the_same_evaluation(silos, tmp_path, monkeypatch, place):
    made, name = silos(), "run" if place == "before" else "estimates"
    with made.opened(seeded=False) as channel:
        with monkeypatch.context() as patched:
            patched.setattr(f"fedsim.deployment.evaluation.{name}", interrupted)
            with pytest.raises(KeyboardInterrupt):
                deploy(parse(EVALUATED), made.federation, channel, tmp_path / "run")
        deploy(parse(EVALUATED), made.federation, channel, tmp_path / "run", resume=True)
    assert load_run(tmp_path / "run").summary.evaluation
    for config in made.configs.values():
        runs = read(config.ledger).runs.values()
        assert [(run.records, len(run.rounds)) for run in runs] == [("training", 6), ("holdout", 1)]


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_evaluation_that_too_few_answer_is_asked_for_later(silos, tmp_path):
    """Two of three have paid: the result that is there says so, and what is asked again is not paid twice."""
    made, out, said = silos(), tmp_path / "run", list[str]()
    federation = made.again(deadline=0.5, patience=0.5)
    with made.opened(seeded=False) as channel:
        channel.faults = {"silo-02": _lost("ask", evaluation=True)}
        deploy(parse(EVALUATED), federation, channel, out, say=said.append)
        assert "there is no evaluation yet: round 0: 2 of 3 silos" in said[-1]
        assert (state_of(out), load_run(out).summary.evaluation) == ("outstanding", [])
        assert all(row.epsilon_evaluation > 0 for row in load_run(out).summary.privacy.silos)
        model = load_run(out).model
        channel.faults = {"silo-02": _lost("ask", "offer")}
        deploy(parse(EVALUATED), federation, channel, out, resume=True)
        assert state_of(out) == "outstanding"
        other = EVALUATED | {"evaluate": {"bins": 8}}
        with pytest.raises(InputError, match="another scenario"):
            deploy(parse(other), federation, channel, out, resume=True)
        channel.faults = {}
        deploy(parse(EVALUATED), federation, channel, out, resume=True)
        with pytest.raises(InputError, match="holds no run that can go on"):
            deploy(parse(EVALUATED), federation, channel, out, resume=True)
    assert np.array_equal(load_run(out).model, model)
    assert load_run(out).summary.evaluation
    for row in load_run(out).summary.privacy.silos:
        assert row.epsilon_evaluation > 0
        runs = read(made.configs[row.name].ledger).runs.values()
        assert [(run.records, len(run.rounds)) for run in runs] == [("training", 6), ("holdout", 1)]
        assert not any(run.open for run in runs)


def test_a_statement_that_is_missing_is_said(silos, tmp_path):
    made = silos()
    with made.opened(seeded=False) as channel:
        channel.faults = {"silo-01": _lost("close", evaluation=True)}
        deploy(parse(EVALUATED), made.again(deadline=0.5), channel, tmp_path / "run")
    summary = load_run(tmp_path / "run").summary
    assert any("silo-01 gave no statement of the evaluation: " in line for line in summary.deployment.remarks)
    assert all(row.epsilon_evaluation > 0 for row in summary.privacy.silos)


def _lost(*kinds: str, evaluation: bool = False) -> Fault:
    """A silo whose replies to frames of these kinds get lost; with `evaluation` only after its training."""
    trained = []

    def fault(frame, silo):
        kind = decode(opened(frame)[0]).kind
        lost = kind in kinds and (trained or not evaluation)
        if kind == "close":
            trained.append(kind)
        return None if lost else silo(frame)

    return fault


def test_a_silo_that_is_absent_from_it_is_left_out_of_counts_and_noise(silos, tmp_path):
    made, runs = silos(), []

    def absent_later(frame, silo):
        head = decode(opened(frame)[0]).head
        if decode(opened(frame)[0]).kind != "ask":
            return silo(frame)
        runs.append(head["run"])
        return silo(frame) if head["run"] == runs[0] else None

    federation = made.again(min_silos=2, deadline=0.5, patience=0.5)
    with made.opened(seeded=False) as channel:
        channel.faults = {"silo-02": absent_later}
        deploy(parse(EVALUATED), federation, channel, tmp_path / "run")
    run = load_run(tmp_path / "run")
    accuracy = next(row for row in run.summary.evaluation if row.metric == "accuracy")
    z = [row.noise_multiplier for row in run.summary.privacy.silos]
    assert 0.4 < accuracy.value < 1
    assert len(z) == 3


def test_sums_of_held_out_records_are_evaluated(tmp_path):
    scenario = pooled_scenario(**ROWS, evaluate={"bins": 4}, privacy={"epsilon": 4.0})
    made = pooled_federation(
        tmp_path, scenario, seeded=False, policy=LARGE | {"per_run": None}, holdout=HOLDOUT
    )
    with made.silos(seeded=False) as silos, made.channel() as shuffler:
        deploy(scenario, made.federation, silos, tmp_path / "run", shuffler=shuffler)
    summary = load_run(tmp_path / "run").summary
    assert summary.evaluation, summary.deployment.remarks
    assert summary.evaluation[0].value == pytest.approx(0.75, abs=0.25)
    for row in summary.privacy.silos:
        assert row.epsilon_evaluation <= row.epsilon_guaranteed <= 4.0 < row.epsilon_colluding
