"""Sums over deployed silos: the simulation's model, both guarantees, and who was left out."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.channels import Answer, Fault, absent, in_round, lying, read
from support.deployed import SVRG, assert_statements, simulated
from support.pooled import PooledFederation, pooled_federation, pooled_scenario

from fedsim.api.run import load_run
from fedsim.common.chain import RUN
from fedsim.common.errors import InputError, Lost, Refused
from fedsim.common.files import RECORD
from fedsim.common.store import Store
from fedsim.deployment.federation_file import parse_federation
from fedsim.deployment.run import deploy, give_up
from fedsim.privacy.discrete_noise import with_noise
from fedsim.report.outcome import Outcome
from fedsim.report.resume import state_of
from fedsim.report.summarise import answered
from fedsim.scenario.resolve import resolve
from fedsim.secagg import reports
from fedsim.secagg.envelopes import EnvelopeKey
from fedsim.secagg.reports import aggregators_noise
from fedsim.wire.frames import decode, head_of, opened
from silos.vault.book import read as read_ledger

GENEROUS: dict[str, Any] = {
    "lifetime": {"epsilon": 20.0, "delta": 0.1, "expires": "2999-12-31"}
    | {"sampled": {"epsilon": 5.0, "delta": 0.05}},
    "per_run": {"epsilon": 10.0, "delta": 0.01},
}


def run(made: PooledFederation, out: Path, seeded: bool = True, **changes: Any) -> Outcome:
    with made.silos(seeded) as silos, made.channel() as shuffler:
        return deploy(pooled_scenario(**changes), made.federation, silos, out, shuffler=shuffler)


PARITY: dict[str, dict[str, Any]] = {
    "as it is": {},
    "held silos, unequal budgets": {
        "algorithm": SVRG,
        "participation": {"name": "uniform", "num_silos": 2},
        "privacy": {"epsilon": [2.0, 1.0, 2.0]},
    },
    "whole messages, permuted": {
        "privacy": {"mechanism": "shuffled_gaussian", "honest_fraction": None, "epsilon": 2.0}
    },
    "binomial": {"privacy": {"mechanism": "shuffled_binomial", "steps": 64}},
    "float32": {"runtime": {"name": "inprocess", "dtype": "float32"}},
}


MOST = "held silos, unequal budgets"


@pytest.fixture
def _unwritten(monkeypatch):
    """The run's directory is not what the test looks at."""
    monkeypatch.setattr("fedsim.deployment.run.save", lambda outcome, place: None)


@pytest.mark.usefixtures("_unwritten")
@pytest.mark.parametrize(
    "case", [case if case == MOST else pytest.param(case, marks=pytest.mark.slow) for case in PARITY]
)
def test_the_model_is_that_of_the_simulation(tmp_path, case):
    resolved = resolve(pooled_scenario(**PARITY[case]))
    expected = simulated(resolved)
    terms = {"min_silos": 2} if "participation" in PARITY[case] else {}
    made = pooled_federation(tmp_path, pooled_scenario(**PARITY[case]), policy=GENEROUS, terms=terms)
    found = run(made, tmp_path / "run", **PARITY[case]).results.trials[0]
    tolerance = 1e-9 if case != "float32" else 1e-5
    torch.testing.assert_close(
        found.models["private"], expected.models["private"], rtol=tolerance, atol=tolerance * 1e-3
    )
    assert_statements(found, expected)


FIRST, SECOND, THIRD = "silo-00", "silo-01", "silo-02"
SOON = {"deadline": 0.1, "patience": 0.1}


@pytest.fixture
def made(tmp_path):
    """Silos with real noise, two of three of which make a sum."""
    scenario = pooled_scenario(privacy={"min_silos": 2})
    return pooled_federation(tmp_path, scenario, seeded=False, policy=GENEROUS, min_silos=2, **SOON)


TWO = {"privacy": {"min_silos": 2}}


def test_a_run_directory_says_both_guarantees_and_who_made_the_sums(made, tmp_path):
    run(made, tmp_path / "run", seeded=False, **TWO)
    summary = load_run(tmp_path / "run").summary
    assert "two aggregators do not collude" in summary.privacy.guarantee
    for row in summary.privacy.silos:
        assert row.epsilon_guaranteed is not None
        assert row.epsilon_colluding is not None
        assert row.epsilon_guaranteed <= 2.0 < row.epsilon_colluding
        receipt = json.loads((tmp_path / "run" / "receipts" / f"{row.name}.json").read_text())
        assert receipt["terms"]["epsilon_colluding"] == row.epsilon_colluding
    assert summary.deployment is not None
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    for text in (page, " ".join(summary.deployment.remarks)):
        assert f"sums over at least 2 of 3 silos alone, of roster {made.roster.digest}" in text
        assert made.roster.shuffler.identity in text
    assert summary.privacy.guarantee_colluding in page
    assert state_of(tmp_path / "run") != "begun"


def test_a_silo_that_is_absent_or_whose_report_does_not_count_is_left_out_by_name(made, tmp_path):
    """A report that its silo has signed as a reply, and that no shuffler opens."""
    identity = made.enrolled.identity(SECOND)
    garbage = lying(identity, lambda arrays: {"report": arrays["report"].flip(0)})
    short = lying(identity, lambda arrays: {"report": arrays["report"][:-1]})
    bare = lying(identity, lambda arrays: {"g": torch.zeros(5, dtype=torch.float64)})
    faults = {1: garbage, 2: short, 3: bare}

    def second(frame: bytes, silo: Answer) -> bytes | None:
        told = read(frame)
        r = told.head["round"] if told.kind == "ask" else None
        return faults[r](frame, silo) if r in faults else silo(frame)

    with made.silos(seeded=False) as silos, made.channel() as shuffler:
        silos.faults = {SECOND: second, THIRD: in_round(4, absent)}
        outcome = deploy(pooled_scenario(**TWO), made.federation, silos, tmp_path / "run", shuffler=shuffler)
    summary = load_run(tmp_path / "run").summary
    assert summary.deployment is not None
    found = {each.name: (each.rounds, each.reasons) for each in summary.deployment.left_out}
    assert found == {
        SECOND: (
            3,
            [
                "the shuffler did not count its report",
                "its report has another size than the round's",
                "its message has other arrays than a sealed report",
            ],
        ),
        THIRD: (1, ["no reply within 0.1 s"]),
    }
    assert outcome.deployed is not None
    assert list(answered(outcome.results).values()) == [3, 2, 2, 2, 2, 3]
    assert bool(torch.isfinite(outcome.results.trials[0].models["private"]).all())


@pytest.mark.usefixtures("_unwritten")
def test_a_server_that_is_killed_sends_the_very_same_request_again(made, tmp_path):
    """It has a request in hand that the shuffler has released; meanwhile a silo has gone."""
    out = tmp_path / "run"
    with made.silos(seeded=False) as silos:
        with made.channel(_dying(2)) as shuffler, pytest.raises(Dead):
            deploy(pooled_scenario(**TWO), made.federation, silos, out, shuffler=shuffler)
        silos.faults = {THIRD: in_round(2, absent)}
        silos.asked.clear()
        with made.channel() as again:
            outcome = deploy(pooled_scenario(**TWO), made.federation, silos, out, True, shuffler=again)
        assert shuffler.sent[-1] == again.sent[0]
    assert outcome.deployed is not None
    assert list(answered(outcome.results).values()) == [3] * 6
    assert not any(kind == "ask" and head["round"] == 2 for _, kind, head in silos.asked)


@pytest.mark.usefixtures("_unwritten")
def test_a_request_that_is_lost_loses_its_round_and_the_run_ends_with_the_reason(made, tmp_path):
    """Another request for a round that was released would tell what the silos that differ have sent."""
    out = tmp_path / "run"
    with made.silos(seeded=False) as silos:
        with made.channel(_dying(2)) as shuffler, pytest.raises(Dead):
            deploy(pooled_scenario(**TWO), made.federation, silos, out, shuffler=shuffler)
        with Store.hold(out / RECORD, RUN) as store:
            store.drop("request")
        silos.faults = {THIRD: closed_away}
        with made.channel() as again:
            with pytest.raises(
                Lost, match=r"round 2: .*process of the shuffler that has ended.*is over.*silo-02"
            ):
                deploy(pooled_scenario(**TWO), made.federation, silos, out, True, shuffler=again)
            assert open_runs(made) == {THIRD}
            assert state_of(out) == "over"
            with pytest.raises(InputError, match="is over: begin a new one elsewhere"):
                deploy(pooled_scenario(**TWO), made.federation, silos, out, True, shuffler=again)
            silos.faults, said = {}, list[str]()
            give_up(pooled_scenario(**TWO), made.federation, silos, out, said.append, again)
    assert said == ["the run is over, and closed at 3 silos; begin a new run in another directory"]
    for config in made.enrolled.configs.values():
        (run,) = read_ledger(config.ledger).runs.values()
        assert run.charged == run.used != run.price.whole


def closed_away(frame, silo):
    """A silo that has gone when it is told that a run is over."""
    return None if decode(opened(frame)[0]).kind == "close" else in_round(2, absent)(frame, silo)


def open_runs(made: PooledFederation) -> set[str]:
    """Silos that hold a reservation."""
    configs = made.enrolled.configs.items()
    return {
        name for name, config in configs if any(run.open for run in read_ledger(config.ledger).runs.values())
    }


@pytest.mark.usefixtures("_unwritten")
@pytest.mark.parametrize("echoes", [True, False])
def test_a_shuffler_whose_notes_were_restored_between_runs_is_noticed(made, tmp_path, echoes):
    """By its server's echo; by the silos, where a server echoes nothing."""
    state = made.folder / "shuffler" / "state"
    shutil.copytree(state, tmp_path / "copy")
    made.federation = made.federation.model_copy(update={"heads": tmp_path / "heads" if echoes else None})
    run(made, tmp_path / "first", seeded=False, **TWO)
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "copy", state)
    said = "round 0: the shuffler refused: .*older copy" if echoes else "0 of 3 .*notes were set back"
    with pytest.raises(Refused, match=said):
        run(made, tmp_path / "second", seeded=False, **TWO)


@pytest.mark.usefixtures("_unwritten")
def test_a_request_that_too_few_silos_count_in_is_made_anew(made, tmp_path):
    """The shuffler has noted nothing, so that more silos may join."""
    out = tmp_path / "run"
    identity = made.enrolled.identity(SECOND)
    garbage = lying(identity, lambda arrays: {"report": arrays["report"].flip(0)})
    with made.silos(seeded=False) as silos, made.channel() as shuffler:
        silos.faults = {SECOND: in_round(1, garbage), THIRD: in_round(1, absent)}
        with pytest.raises(Refused, match="1 reports count, and the roster needs 2"):
            deploy(pooled_scenario(**TWO), made.federation, silos, out, shuffler=shuffler)
        silos.faults = {}
        outcome = deploy(pooled_scenario(**TWO), made.federation, silos, out, True, shuffler=shuffler)
    assert outcome.deployed is not None
    assert list(answered(outcome.results).values()) == [3] * 6


@pytest.mark.usefixtures("_unwritten")
def test_a_shuffler_that_does_not_answer_ends_a_run_that_can_be_resumed(made, tmp_path):
    out = tmp_path / "run"
    with made.silos(seeded=False) as silos:
        with (
            made.channel(lambda frame, answer: None) as silent,
            pytest.raises(Refused, match=r"round 0: no answer of the shuffler.*can be resumed"),
        ):
            deploy(pooled_scenario(**TWO), made.federation, silos, out, shuffler=silent)
        with made.channel() as shuffler:
            outcome = deploy(pooled_scenario(**TWO), made.federation, silos, out, True, shuffler=shuffler)
    assert len(outcome.results.trials) == 1


def test_another_shuffler_is_not_believed(made, tmp_path):
    def turned(frame: bytes, answer: Answer) -> bytes:
        reply = bytearray(answer(frame) or b"")
        reply[-1] ^= 1
        return bytes(reply)

    with (
        made.silos(seeded=False) as silos,
        made.channel(turned) as forged,
        pytest.raises(Refused, match="not signed by the identity in the roster"),
    ):
        deploy(pooled_scenario(**TWO), made.federation, silos, tmp_path / "run", shuffler=forged)


def test_shares_that_do_not_belong_together_are_no_model(made, tmp_path, monkeypatch):
    """A silo that shares out a number of its own for the shuffler: no party sees whose it is."""
    real = reports.split

    def odd(counts: Any) -> Any:
        first, second = real(counts)
        return first, second ^ np.uint64(1 << 62)

    monkeypatch.setattr(reports, "split", odd)
    with pytest.raises(Refused, match="it is not known which; the run is over"):
        run(made, tmp_path / "run", seeded=False, **TWO)


def test_where_aggregators_add_the_noise_both_do(tmp_path, monkeypatch):
    """Each scale of noise is drawn by the shuffler and by the server, and by no silo."""
    privacy = {"noise_by": "aggregators", "honest_fraction": None}
    scenario = pooled_scenario(privacy=privacy)
    made = pooled_federation(tmp_path, scenario, seeded=False, policy=GENEROUS)
    drawn: dict[str, list[float]] = {"server": [], "shuffler": [], "silo": []}

    def noted(values: Any, scale: float) -> Any:
        drawn["silo"].append(scale)
        return with_noise(values, scale)

    monkeypatch.setattr("fedsim.privacy.grid.with_noise", noted)
    for who, module in (("server", "server.secure_aggregation"), ("shuffler", "shuffler.rounds")):

        def added(form: reports.Form, who: str = who) -> Any:
            drawn[who].extend(form.scales)
            return aggregators_noise(form)

        monkeypatch.setattr(f"{module}.aggregators_noise", added)
    outcome = run(made, tmp_path / "run", seeded=False, privacy=privacy)
    assert drawn["silo"] == []
    assert len(drawn["server"]) == 6
    assert drawn["server"] == drawn["shuffler"]
    terms = outcome.results.trials[0].statements[0].admitted.terms
    resolved = resolve(scenario)
    assert terms.noise_multiplier is not None
    assert drawn["server"][0] == resolved.mechanism.aggregators_noise(
        terms.noise_multiplier, resolved.problem.dimension, 2.0
    )
    rows = load_run(tmp_path / "run").summary.privacy.silos
    assert [row.epsilon_colluding for row in rows] == [None] * 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"federation": {"shuffler": None}}, "federation.shuffler: None: is required with mechanism summed"),
        ({"federation": {"min_silos": 1}}, "federation.min_silos: 1: at least 2, as the roster has it"),
        ({"privacy": {"min_silos": 3}}, "scenario.privacy.min_silos: 3: 2, as the roster has it"),
        ({"privacy": {"honest_fraction": 0.5}}, "honest_fraction: 0.5: 1.0, as the roster has it"),
        (
            {"privacy": {"noise_by": "aggregators", "honest_fraction": None}},
            "noise_by: 'aggregators': silos, as the roster has it",
        ),
        ({"key": True}, "the key that the roster has of the server"),
        ({"silo": True}, "a roster of the federation's silos, each with its identity"),
    ],
)
def test_a_roster_that_does_not_fit_is_named_before_any_silo_is_asked(made, tmp_path, change, said):
    tree = made.federation.model_dump(mode="json", exclude_none=True)
    if "key" in change:
        (tmp_path / "other").mkdir()
        EnvelopeKey.create(tmp_path / "other")
        tree["shuffler"]["key"] = str(tmp_path / "other" / "envelopes.key")
    if "silo" in change:
        del tree["silos"][THIRD]
    tree |= change.get("federation", {})
    scenario = pooled_scenario(privacy={**TWO["privacy"], **change.get("privacy", {})})
    with made.silos(seeded=False) as silos:
        with made.channel() as shuffler, pytest.raises(InputError, match=re.escape(said)):
            deploy(scenario, parse_federation(tree), silos, tmp_path / "run", shuffler=shuffler)
        assert not silos.asked
    assert state_of(tmp_path / "run") != "begun"


class Dead(BaseException):
    """The server's process, as far as the test goes."""


def _dying(r: int) -> Fault:
    """The server dies when the shuffler has answered round r, and before it knows."""
    count = iter(range(r + 1))

    def fault(frame: bytes, answer: Answer) -> bytes | None:
        reply = answer(frame)
        if head_of(opened(frame)[0])[0] == "shuffle" and next(count) == r:
            raise Dead
        return reply

    return fault


def test_sums_are_of_all_silos_of_the_roster_from_the_start(tmp_path):
    """Whatever the server's federation.yaml says: a silo takes the set of silos from the roster."""
    made = pooled_federation(
        tmp_path, pooled_scenario(), terms={"min_silos": 2}, deadline=0.1, patience=0.1, min_silos=2
    )
    out = tmp_path / "run"
    with made.silos(True) as silos, made.channel() as shuffler:
        silos.faults = {"silo-01": absent}
        with pytest.raises(Refused, match=r"2 of 3 silos answered, 3 are needed.*secure aggregation"):
            deploy(pooled_scenario(), made.federation, silos, out, shuffler=shuffler)
        assert {kind for _, kind, _ in silos.asked} == {"hello"}
    assert state_of(out) != "begun"
