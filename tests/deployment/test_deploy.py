"""A scenario over silos of this process: the simulation's model, and a run directory that says what it is."""

import errno
import json
import os
import re
import socket
import sqlite3
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock, patch

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from support.browser import BINARY, assert_fits, chromium
from support.channels import (
    Answer,
    Enrolled,
    InMemory,
    absent,
    enrolled_federation,
    in_round,
    late,
    lying,
    read,
    signing,
)
from support.deployed import SCENARIO, SVRG, assert_statements, federation_of, resolved_of, simulated
from support.flower import free_port
from support.helpers import together
from support.refusals import refused
from torch import Tensor

import fedsim
from fedsim.api.run import load_run
from fedsim.cli.output import print_run
from fedsim.common.errors import CAN_BEGIN, InputError, Refused
from fedsim.common.files import RECORD
from fedsim.data.federation import Hosted
from fedsim.deployment.history import Step
from fedsim.deployment.run import deploy
from fedsim.protocol.links import Answered
from fedsim.protocol.receipts import verified_receipt
from fedsim.report.comparison import compared, source_of
from fedsim.report.outcome import Outcome
from fedsim.report.page import write_page
from fedsim.report.resume import state_of
from fedsim.report.texts import remarks
from fedsim.scenario.load import load, parse
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import SiloHost
from fedsim.wire.frames import Frame
from server.aggregate import weighted
from server.federation import RemoteSilos
from server.loop import run
from server.participation import admitted_rounds, schedule
from silos.vault import book

LIAR, SECOND, THIRD = "silo-00", "silo-01", "silo-02"
NO_REPLY = r"no reply within 0\.\d+ s"  # a silo asked again has what is left of the deadline
GENEROUS: dict[str, Any] = {
    "lifetime": {"epsilon": 25.0, "delta": 0.1, "expires": "2999-12-31"},
    "per_run": {"epsilon": 10.0, "delta": 0.01},
}


def one_by_one(resolved: Resolved) -> tuple[Tensor, dict[str, list[str]]]:
    """The simulated run with every silo in a cohort of its own, as deployed ones are: model, broadcasts."""
    federation = federation_of(resolved)
    hosts = [SiloHost(resolved, 0, Hosted(together([silo]), federation.digest)) for silo in federation.silos]
    rounds = schedule(len(hosts), resolved.active, resolved.trace.holds, resolved.scenario.seed, 0)
    own = admitted_rounds(resolved.active, rounds, len(hosts))
    admitted = [host.open("private", [mine])[0] for host, mine in zip(hosts, own, strict=True)]

    class Link:
        def answer(self, r: int, broadcast: Mapping[str, Tensor], members: Any) -> Answered:
            replies = [hosts[m].answer("private", r, broadcast, None) for m in members]
            rows = {name: torch.cat([each[name] for each in replies]) for name in replies[0]}
            return Answered(members, rows)

    public = resolved.public([silo.noise_multiplier for silo in admitted])
    seed = resolved.scenario.seed
    *_, last = run(resolved.gate_algorithm, resolved.problem, public, seed, Link(), rounds, weighted)
    stated = [host.statements("private")[0] for host in hosts]
    return last.answer, {said.admitted.terms.name: said.digests for said in stated}


def model_of(outcome: Outcome) -> Tensor:
    return outcome.results.trials[0].models["private"]


def digests_of(outcome: Outcome) -> dict[str, list[str]]:
    return {said.admitted.terms.name: said.digests for said in outcome.results.trials[0].statements}


def scenario_of(**changes: Any) -> Scenario:
    return parse({**SCENARIO, **changes})


SAMPLED = {**SCENARIO["algorithm"], "batch": {"sampler": "subsample", "fraction": 0.3}}
PARITY: dict[str, dict[str, Any]] = {
    "as it is": {},
    "sampled batches": {"algorithm": SAMPLED},
    "held silos": {"algorithm": SVRG, "participation": {"name": "uniform", "num_silos": 2}},
    "float32": {"runtime": {"name": "inprocess", "dtype": "float32"}},
    "public records": {
        "public": {"name": "synthetic", "rows": 40, "features": 4, "draw": 1},
        "problem": {
            "name": "logistic_regression",
            "start": "public",
            "public": {"weight": "optimal", "precondition": True},
        },
    },
}


@pytest.mark.parametrize("case", PARITY)
def test_the_model_is_that_of_the_simulation(tmp_path, case):
    resolved = resolved_of(**PARITY[case])
    policy = {**GENEROUS, "lifetime": {**GENEROUS["lifetime"], "sampled": {"epsilon": 20.0, "delta": 0.05}}}
    enrolled = enrolled_federation(tmp_path, resolved, policy=policy)
    with enrolled.opened(seeded=True) as channel:
        outcome = deploy(scenario_of(**PARITY[case]), enrolled.federation, channel, tmp_path / "run")
    model, broadcasts = one_by_one(resolved)
    assert torch.equal(model_of(outcome), model)
    assert digests_of(outcome) == broadcasts


def test_breast_cancer_deployed_is_breast_cancer_simulated(tmp_path):
    """Grouping silos in one cohort changes rounding, and nothing else."""
    scenario = load(Path("breast_cancer"), ["trials=1", "report.nonprivate_baseline=false"])
    resolved = resolve(scenario)
    enrolled = enrolled_federation(tmp_path, resolved, policy=GENEROUS)
    with enrolled.opened(seeded=True) as channel:
        outcome = deploy(load(Path("breast_cancer")), enrolled.federation, channel, tmp_path / "run")
    expected = simulated(resolved)
    torch.testing.assert_close(model_of(outcome), expected.models["private"], rtol=1e-9, atol=1e-12)
    assert torch.equal(model_of(outcome), one_by_one(resolved)[0])
    assert_statements(outcome.results.trials[0], expected)
    stated = outcome.results.trials[0].statements
    assert [said.admitted for said in stated] == [said.admitted for said in expected.statements]


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory):
    """Silos with a lifetime for the runs of this file."""
    folder, soon = tmp_path_factory.mktemp("silos"), {"deadline": 0.1, "patience": 0.1}
    return enrolled_federation(folder, resolved_of(), seeded=False, policy=GENEROUS, **soon)


@pytest.fixture
def channel(enrolled):
    with enrolled.opened(seeded=False) as made:
        yield made


@pytest.fixture(scope="module")
def test_file(tmp_path_factory):
    """Public records, prepared as the silos'."""
    path = tmp_path_factory.mktemp("public") / "test.npz"
    silos = federation_of(resolved_of()).silos
    features, target = ([getattr(s.test, part) for s in silos] for part in ("features", "target"))
    np.savez(path, features=np.concatenate(features), target=np.concatenate(target))
    return path


def test_a_run_directory_says_that_it_was_deployed(enrolled, channel, test_file, tmp_path):
    steps: list[Step] = []
    said: list[str] = []
    out = tmp_path / "run"
    federation = enrolled.again(test=str(test_file))
    asked = scenario_of(trials=3, purpose="To find whom\n  a visit helps.\n")
    deploy(asked, federation, channel, out, observe=steps.append, say=said.append)
    assert [step.rounds for step in steps] == list(range(7))
    assert [step.answered for step in steps] == [0, 3, 3, 3, 3, 3, 3]
    assert said == [f"record {out / RECORD}: at most about 3 kB until the run has ended"]
    loaded = load_run(out)
    assert list(loaded.predict(np.zeros((2, 4))).columns) == ["prediction", "probability 0", "probability 1"]
    summary = loaded.summary
    assert (summary.runtime, summary.trials.asked, summary.trials.finished) == ("deployed", 1, 1)
    assert summary.metrics.error == pytest.approx(steps[-1].measurement.error)
    assert loaded.metrics.arrow["round"].to_pylist() == list(range(7))
    assert len(loaded.ledger.arrow) == 18
    assert [row.rounds for row in summary.privacy.silos] == [6, 6, 6]
    assert summary.deployment is not None
    assert summary.deployment.left_out == []
    assert summary.deployment.remarks == [
        "purpose: To find whom a visit helps.",
        "1 of 3 trials: every repetition would spend the silos' budgets again",
    ]
    assert "Purpose: To find whom a visit helps." in (out / "report.html").read_text()
    for name in federation.silos:
        receipt = (out / "receipts" / f"{name}.json").read_text()
        stated = verified_receipt(receipt, (out / "receipts" / f"{name}.pub").read_text())
        assert (stated["silo"], stated["rounds"]) == (name, list(range(6)))
        assert stated["study"] == {"name": "deployed", "purpose": "To find whom a visit helps."}
    written = (out / "scenario.yaml").read_text()
    assert "data:" not in written
    assert "partition:" not in written
    assert state_of(out) != "begun"


NO_RECORDS = {key: value for key, value in SCENARIO.items() if key not in ("data", "partition")}
TESTED = """name: csv
path: test.csv
target: readmitted
schema:
  age: {kind: number, lower: 0, upper: 110}
  length: {kind: number, lower: 0, upper: 100}
  cost: {kind: number, lower: 0, upper: 10}
  visits: {kind: number, lower: 0, upper: 10}
  readmitted: {kind: category, categories: ["no", "yes"]}
"""


def test_a_scenario_need_not_know_the_silos_records(enrolled, channel, tmp_path):
    """The model is kept with the schema of the public test records."""
    (tmp_path / "test.csv").write_text("age,length,cost,visits,readmitted\n70,9,1,2,yes\n20,1,1,0,no\n")
    test = {**yaml.safe_load(TESTED), "path": str(tmp_path / "test.csv")}
    out = tmp_path / "run"
    deploy(parse(NO_RECORDS), enrolled.again(test=test), channel, out)
    assert list(load_run(out).predict(tmp_path / "test.csv")["prediction"]) == [ANY, ANY]
    with refused("scenario.data", "silos", "only `fedsim deploy`, whose silos have their own, goes without"):
        resolve(parse(NO_RECORDS))
    with refused("scenario.partition", None, "is required"):
        parse({**NO_RECORDS, "data": "breast_cancer"})


UNKNOWN = ("test error on each silo", "without noise and clipping", "excess risk", "heterogeneity")


def test_what_only_a_simulation_knows_is_left_out_by_name(enrolled, channel, tmp_path):
    out = tmp_path / "run"
    deploy(scenario_of(), enrolled.federation, channel, out)
    page = write_page(out).read_text(encoding="utf-8")
    summary = load_run(out).summary
    assert summary.metrics.error is None
    assert summary.deployment is not None
    for text in (page, " ".join(summary.deployment.unmeasured)):
        for name in (*UNKNOWN, "federation.yaml names no public test records"):
            assert name in text
    assert "simulated" not in page
    assert "deployed" in page
    assert "no public test records" in repr(load_run(out))
    with pytest.raises(InputError, match="no public test records"):
        compared([source_of(out)])


@pytest.mark.usefixtures("drawn")
@pytest.mark.skipif(BINARY is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [1000, 390])
def test_the_page_of_a_deployed_run_fits(enrolled, channel, tmp_path, width):
    channel.faults = {THIRD: in_round(3, absent)}
    deploy(scenario_of(trials=3), enrolled.again(min_silos=2), channel, tmp_path / "run")
    with chromium() as browser:
        assert_fits(browser.view(tmp_path / "run" / "report.html", width), width)


def test_runs_with_public_records_can_be_compared(enrolled, channel, test_file, small_run, tmp_path):
    deploy(scenario_of(), enrolled.again(test=str(test_file)), channel, tmp_path / "run")
    points = compared([source_of(tmp_path / "run"), source_of(small_run)]).points
    assert {point.source for point in points} == {"run", small_run.name}


def test_the_page_has_the_times_of_rounds_and_those_of_before_a_stop(enrolled, channel, tmp_path):
    out = tmp_path / "run"

    def stop(step: Step) -> None:
        if step.rounds == 3:
            raise Refused("stopped")

    with pytest.raises(Refused):
        deploy(scenario_of(), enrolled.federation, channel, out, observe=stop)
    deploy(scenario_of(), enrolled.federation, channel, out, resume=True)
    summary = load_run(out).summary
    times = summary.deployment.round_seconds
    assert len(times) == 6
    assert all(0 < each < 60 for each in times)
    longest = max(range(6), key=lambda r: times[r]) + 1
    assert f"the longest {max(times):.3g} s (round {longest})" in " ".join(remarks(summary))
    assert "What each round took" in (out / "report.html").read_text()


def test_a_model_that_is_no_better_than_the_majority_is_said_to_be(enrolled, channel, test_file, tmp_path):
    """Of the public test records alone, which all but one are of one class."""
    features, file = np.load(test_file)["features"], tmp_path / "test.npz"
    np.savez(file, features=features, target=np.eye(1, len(features), dtype=int)[0])
    out = tmp_path / "run"
    deploy(scenario_of(), enrolled.again(test=str(file)), channel, out)
    summary = load_run(out).summary
    (majority,) = summary.baselines
    assert (majority.name, majority.error) == ("majority", pytest.approx(1 / len(features)))
    assert any("no better than predicting the majority class" in line for line in summary.warnings)
    page = (out / "report.html").read_text()
    assert "shares of the classes in the public test records" in page
    console = Console(file=StringIO(), width=80)
    print_run(console, load_run(out), out)
    assert "majority class" in console.file.getvalue()


def test_prometheus_sees_how_a_run_goes_and_the_port_is_free_afterwards(
    enrolled, channel, test_file, tmp_path
):
    channel.faults, port = {SECOND: in_round(2, late)}, free_port()
    seen: list[str] = []

    def scrape(step: Step) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            seen.append(response.read().decode())

    federation = enrolled.again(min_silos=2, test=str(test_file), metrics={"port": port})
    deploy(scenario_of(), federation, channel, tmp_path / "run", observe=scrape)
    for line in ("rounds_total 6.0", "rounds_planned 6.0", "silos_answered 3.0"):
        assert f"\nfedsim_{line}\n" in seen[-1]
    assert f'fedsim_silo_missed_total{{silo="{SECOND}"}} 1.0' in seen[-1]
    assert "rounds_total 0.0" in seen[0]
    error = load_run(tmp_path / "run").summary.metrics.error
    assert f'fedsim_test{{metric="error"}} {error}' in seen[-1]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(InputError, match=rf"federation.metrics.port: {port}: a free port"):
            deploy(scenario_of(), federation, channel, tmp_path / "another")
    assert not list(tmp_path.glob("another*"))


def test_who_was_late_or_lied_is_named(enrolled, channel, tmp_path):
    nan = lying(enrolled.identity(LIAR), lambda a: {"g": a["g"] * float("nan")})
    channel.faults = {LIAR: in_round([1, 4], nan), SECOND: in_round(2, late), THIRD: in_round([3], absent)}
    steps: list[Step] = []
    out = tmp_path / "run"
    outcome = deploy(scenario_of(), enrolled.again(min_silos=2), channel, out, observe=steps.append)
    assert [sorted(step.left_out) for step in steps] == [[], [], [LIAR], [SECOND], [THIRD], [LIAR], []]
    assert bool(torch.isfinite(model_of(outcome)).all())
    summary = load_run(out).summary
    assert summary.deployment is not None
    found = {each.name: (each.rounds, each.reasons) for each in summary.deployment.left_out}
    assert found[LIAR] == (2, ["its message has an entry that is not finite or above 1e+06"])
    assert found[SECOND] == found[THIRD] == (1, ["no reply within 0.1 s"])
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f"Silo {LIAR} is left out of 2 of 6 rounds (2, 5): its message has an entry" in page
    # A silo that answered too late or wrongly has paid all the same; one that was not reached has not.
    assert {row.name: row.rounds for row in summary.privacy.silos} == {LIAR: 6, SECOND: 6, THIRD: 5}
    assert summary.participation.observed_mean_m == pytest.approx((3 + 2 + 2 + 2 + 2 + 3) / 6)


def test_a_silo_without_a_statement_counts_as_having_spent_its_plan(enrolled, channel, tmp_path):
    def stops(frame: bytes, silo: Any) -> bytes | None:
        told = read(frame)
        gone = told.kind == "close" or (told.kind == "ask" and told.head["round"] >= 2)
        return None if gone else silo(frame)

    channel.faults = {THIRD: stops}
    out = tmp_path / "run"
    deploy(scenario_of(), enrolled.again(min_silos=2), channel, out)
    summary = load_run(out).summary
    assert summary.deployment is not None
    assert summary.deployment.without_statement == {THIRD: "no reply within 0.1 s"}
    row = next(row for row in summary.privacy.silos if row.name == THIRD)
    assert row.epsilon_spent == row.epsilon_guaranteed
    assert row.rounds == 4  # it may have paid for whatever it was asked: rounds 2 and 3, and no later one
    assert not (out / "receipts" / f"{THIRD}.json").exists()


@pytest.mark.parametrize(
    ("rounds", "said"),
    [((0, 1), "lacks rounds that it answered"), ((0, 1, 2, 3, 4, 5, 6), "did not ask for")],
)
def test_a_statement_that_is_not_the_servers_is_not_believed(enrolled, channel, tmp_path, rounds, said):

    def other(told: Frame) -> Frame:
        if told.kind != "closed":
            return told
        known = dict(zip(told.head["rounds"], told.head["broadcasts"], strict=True))
        stated = {"rounds": list(rounds), "broadcasts": [known.get(r, "00" * 32) for r in rounds]}
        return Frame(told.kind, {**told.head, **stated, "epsilon_spent": 0.0})

    channel.faults = {LIAR: signing(enrolled.identity(LIAR), other)}
    out = tmp_path / "run"
    deploy(scenario_of(), enrolled.federation, channel, out)
    summary = load_run(out).summary
    assert summary.deployment is not None
    assert said in summary.deployment.without_statement[LIAR]
    row = summary.privacy.silos[0]
    assert (row.name, row.epsilon_spent) == (LIAR, row.epsilon_guaranteed)
    page = (out / "report.html").read_text()
    assert f"fedsim ledger verify receipts/{SECOND}.json" in page
    assert f"receipts/{LIAR}.json" not in page


def test_too_few_answers_end_a_run_that_can_be_resumed(enrolled, channel, tmp_path):
    out = tmp_path / "run"
    broken_off(enrolled, channel, out)
    assert state_of(out) == "begun"
    with pytest.raises(InputError, match="holds a run that has not ended"):
        deploy(scenario_of(), enrolled.federation, channel, out)
    channel.asked.clear()
    steps: list[Step] = []
    deploy(scenario_of(), enrolled.federation, channel, out, resume=True, observe=steps.append)
    assert channel.kinds(LIAR) == ["ask"] * 3 + ["close"]
    assert [step.rounds for step in steps] == [3, 4, 5, 6]
    assert load_run(out).summary.privacy.silos[0].rounds == 6


def broken_off(enrolled: Enrolled, channel: InMemory, out: Path) -> None:
    channel.faults = {THIRD: in_round(3, absent)}
    with pytest.raises(Refused, match=r"round 3: 2 of 3 silos answered.*can be resumed"):
        deploy(scenario_of(), enrolled.federation, channel, out)
    channel.faults.clear()
    channel.asked.clear()


@pytest.mark.parametrize(
    "fails", ["outcome.write_models", "run_directory.write_trained", "outcome.Results.end"]
)
def test_a_run_that_the_disk_has_no_room_for_at_its_end_is_resumed(
    enrolled, channel, tmp_path, monkeypatch, fails
):
    """Where its last entry alone is missing, all files are there, and the run has not ended."""
    out = tmp_path / "run"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as changed:
        changed.setattr(f"fedsim.report.{fails}", Mock(side_effect=full))
        with pytest.raises(InputError, match=r"cannot be written \(No space left"):
            deploy(scenario_of(), enrolled.federation, channel, out)
    assert state_of(out) == "begun"
    channel.asked.clear()
    deploy(scenario_of(), enrolled.federation, channel, out, resume=True)
    assert not [kind for _, kind, _ in channel.asked if kind in ("offer", "ask")]
    assert state_of(out) == "ended"
    assert [row.rounds for row in load_run(out).summary.privacy.silos] == [6, 6, 6]
    with closing(sqlite3.connect(out / RECORD)) as record:  # aggregates took room until it had ended
        assert record.execute("SELECT count(*) FROM bodies").fetchone() == (0,)
    with pytest.raises(InputError, match="holds no run that can go on"):
        deploy(scenario_of(), enrolled.federation, channel, out, resume=True)


def test_a_run_that_waits_for_its_silos_is_nothing_to_a_sweep(enrolled, channel, tmp_path):
    """It is given up before round 0 by the process alone that began it: another one may have been killed."""
    out = tmp_path / "run"
    with patch.object(RemoteSilos, "offer", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        deploy(scenario_of(), enrolled.federation, channel, out)
    before = (out / RECORD).read_bytes()
    with pytest.raises(InputError, match="fedsim deploy --resume goes on with"):
        fedsim.sweep("private_tuning", out=out, workers=0, progress=False)
    assert (out / RECORD).read_bytes() == before
    deploy(scenario_of(), enrolled.federation, channel, out, resume=True)
    assert state_of(out) == "ended"


def test_a_run_that_cannot_be_of_the_silos_that_are_left_can_be_begun_anew(enrolled, channel, tmp_path):
    """Its directory is as it was, but for a draft of a process that was killed."""
    out = tmp_path / "run"
    (out / ".writing-0123").mkdir(parents=True)
    federation = enrolled.again(min_silos=2)
    all_three = scenario_of(participation={"name": "uniform", "num_silos": 3})

    def refusing(frame: bytes, silo: Answer) -> bytes | None:
        return None if read(frame).kind == "offer" else silo(frame)

    channel.faults = {THIRD: refusing}
    with pytest.raises(InputError, match="at most 2"):
        deploy(all_three, federation, channel, out)
    assert not out.exists()
    assert state_of(out) != "begun"
    assert state_of(out) != "ended"
    channel.faults = {}
    deploy(all_three, federation, channel, out)
    assert state_of(out) == "ended"


def test_a_checkpoint_of_before_is_refused_by_name(enrolled, channel, tmp_path):
    (tmp_path / "run.checkpoint").write_bytes(b"rounds")
    for resume in (False, True):
        with pytest.raises(InputError, match=r"earlier version of fedsim \(run.checkpoint\)"):
            deploy(scenario_of(), enrolled.federation, channel, tmp_path / "run", resume=resume)
    assert (tmp_path / "run.checkpoint").read_bytes() == b"rounds"


OTHERS: dict[str, dict[str, Any]] = {
    "rounds": {"algorithm": {**SCENARIO["algorithm"], "num_rounds": 7}},
    "step size": {"algorithm": {**SCENARIO["algorithm"], "step_size": 0.25}},
    "budget": {"privacy": {"epsilon": 1.0, "delta": 1e-6}},
    "seed": {"seed": 5},
    "participation": {"participation": {"name": "uniform", "num_silos": 2}},
    "weights": {"problem": {"name": "logistic_regression", "silo_weights": [1, 2, 3]}},
}


@pytest.mark.parametrize("other", [*OTHERS, "federation"])
def test_another_scenario_or_federation_is_not_resumed(enrolled, channel, tmp_path, other):
    broken_off(enrolled, channel, tmp_path / "run")
    before = (tmp_path / "run" / RECORD).read_bytes()
    key = tmp_path / "other.pub"
    key.write_text("cd" * 32)
    federation = enrolled.again(**{LIAR: {"identity": str(key)}} if other == "federation" else {})
    with pytest.raises(InputError, match="is of another scenario or another federation"):
        deploy(scenario_of(**OTHERS.get(other, {})), federation, channel, tmp_path / "run", resume=True)
    assert channel.asked == []
    assert (tmp_path / "run" / RECORD).read_bytes() == before


def test_a_run_that_a_silo_does_not_admit_leaves_nothing(enrolled, channel, tmp_path):
    costly = scenario_of(
        privacy={"epsilon": 2.0, "delta": 1e-6, "calibration": "sigma", "noise_multiplier": 0.2}
    )
    with pytest.raises(Refused, match=r"0 of 3 silos answered.*plan costs epsilon"):
        deploy(costly, enrolled.federation, channel, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


FITTED = {**SCENARIO["data"], "preprocessing_cost": "ignored"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a long name": ({"name": "a" * 101}, "scenario.name"),
    "a purpose that moves the cursor": ({"purpose": "a\x1b[2J"}, "scenario.purpose"),
    "pooled scaling": ({"data": {**FITTED, "scaling": "training_statistics"}}, "scenario.data.scaling"),
    "pooled components": ({"data": {**FITTED, "pca": 2}}, "scenario.data.pca"),
    "a draw": ({"data": {"name": "mnist", "draw": "published"}}, "scenario.data.name"),
    "reserve": ({"data": {**SCENARIO["data"], "reserve": {"fraction": 0.1}}}, "scenario.data.reserve"),
    "sweep": ({"sweep": {"grid": {"privacy.epsilon": [1.0, 2.0]}}}, "scenario.sweep"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_silo_does_is_refused_by_field(enrolled, tmp_path, case):
    changes, field = REFUSED[case]
    empty = InMemory({})
    with refused(field):
        deploy(scenario_of(**changes), enrolled.federation, empty, tmp_path / "run")
    assert empty.exchanges == 0


@pytest.mark.parametrize(
    ("features", "target", "said"),
    [
        (np.zeros((4, 3)), np.array([0, 1, 0, 1]), "5 prepared features"),
        (np.zeros((4, 5)), np.array([0.5, 1, 0, 1]), "a target of 2 classes"),
        (np.zeros((4, 5)), np.array([0, 1, 2, 1]), "a target of 2 classes"),
    ],
)
def test_public_records_of_another_kind_are_refused_before_any_offer(
    enrolled, channel, tmp_path, features, target, said
):
    np.savez(tmp_path / "test.npz", features=features, target=target)
    with pytest.raises(InputError, match=said):
        deploy(scenario_of(), enrolled.again(test=str(tmp_path / "test.npz")), channel, tmp_path / "run")
    assert {kind for _, kind, _ in channel.asked} == {"hello"}


def test_heads_are_kept_from_run_to_run(enrolled, channel, tmp_path):
    federation = enrolled.again(heads=str(tmp_path / "heads.json"))
    deploy(scenario_of(), federation, channel, tmp_path / "first")
    heads = json.loads((tmp_path / "heads.json").read_text())
    assert set(heads) == set(federation.silos)
    channel.asked.clear()
    deploy(scenario_of(), federation, channel, tmp_path / "second")
    greeted = {name: head["head"] for name, kind, head in channel.asked if kind == "hello"}
    assert greeted == heads
    assert json.loads((tmp_path / "heads.json").read_text()) != heads


def test_silos_that_disagree_on_their_features_are_named(enrolled, channel, tmp_path):

    def wider(told: Frame) -> Frame:
        return Frame(told.kind, {**told.head, "num_features": 9})

    channel.faults = {LIAR: signing(enrolled.identity(LIAR), wider)}
    with pytest.raises(Refused, match=r"differ in num_features \(silo-00: 9, silo-01: 5, silo-02: 5\)"):
        deploy(scenario_of(), enrolled.federation, channel, tmp_path / "run")


def test_heads_of_other_silos_outlive_a_resumed_run(enrolled, channel, tmp_path):
    file = tmp_path / "heads.json"
    file.write_text(json.dumps({"elsewhere": "ab" * 32}))
    federation = enrolled.again(heads=str(file))
    channel.faults = {THIRD: in_round(0, absent)}
    with pytest.raises(Refused, match="round 0"):
        deploy(scenario_of(), federation, channel, tmp_path / "run")
    channel.faults.clear()
    deploy(scenario_of(), federation, channel, tmp_path / "run", resume=True)
    assert json.loads(file.read_text())["elsewhere"] == "ab" * 32


@pytest.mark.parametrize("field", ["epsilon_guaranteed", "noise_multiplier"])
def test_a_silo_that_states_a_negative_number_does_not_take_part(enrolled, channel, tmp_path, field):

    def negative(told: Frame) -> Frame:
        return Frame(told.kind, {**told.head, field: -1.0} if told.kind == "admission" else told.head)

    channel.faults = {LIAR: signing(enrolled.identity(LIAR), negative)}
    with pytest.raises(Refused, match="silo-00: its admission is malformed"):
        deploy(scenario_of(), enrolled.federation, channel, tmp_path / "run")


WEIGHED: dict[str, Any] = {"problem": {"name": "logistic_regression", "silo_weights": [1, 2, 3]}}


def test_a_silo_that_is_never_there_is_left_out_before_round_0(enrolled, channel, tmp_path):
    """One round from zero: w = -step sum_i p_i g_i, the p_i of those that take part summing to 1. A silo that
    comes after the joining deadline is not asked for anything.
    """
    heard: list[Tensor] = []

    def listen(frame: bytes, silo: Any) -> bytes | None:
        reply = silo(frame)
        if read(frame).kind == "ask":
            heard.append(read(reply).arrays["g"])
        return reply

    def misses_the_greeting(frame: bytes, silo: Any) -> bytes | None:
        return None if read(frame).kind == "hello" else silo(frame)

    channel.faults = {LIAR: misses_the_greeting, SECOND: listen, THIRD: listen}
    algorithm = {**SCENARIO["algorithm"], "num_rounds": 1, "last_iterate": True}
    said: list[str] = []
    out = tmp_path / "run"
    scenario = scenario_of(algorithm=algorithm, **WEIGHED)
    outcome = deploy(scenario, enrolled.again(min_silos=2), channel, out, say=said.append)
    first, second = heard
    torch.testing.assert_close(model_of(outcome), -0.5 * (first * 2 / 5 + second * 3 / 5), rtol=1e-12, atol=0)
    assert set(channel.kinds(LIAR)) == {"hello"}
    found = re.fullmatch(f"silo {LIAR} takes no part in this run: ({NO_REPLY})", said[0])
    assert found is not None
    loaded = load_run(out)
    assert loaded.summary.deployment is not None
    assert loaded.summary.deployment.absent == {LIAR: found[1]}
    assert [row.name for row in loaded.summary.privacy.silos] == [SECOND, THIRD]
    assert f"Silo {LIAR} takes no part" in (out / "report.html").read_text(encoding="utf-8")
    assert sorted(path.stem for path in (out / "receipts").glob("*.pub")) == [SECOND, THIRD]


def test_silos_whose_ledger_is_days_from_the_servers_clock_are_named_and_take_part(
    enrolled, channel, tmp_path
):
    def later(days: float) -> Any:
        def changed(said: Frame) -> Frame:
            moved = {"time": said.head["time"] + round(days * 86_400)} if said.kind == "greeting" else {}
            return Frame(said.kind, {**said.head, **moved}, said.arrays)

        return changed

    away = {LIAR: 3.1, SECOND: -40.1, THIRD: 0.9}
    channel.faults = {name: signing(enrolled.identity(name), later(days)) for name, days in away.items()}
    said: list[str] = []
    deploy(scenario_of(), enrolled.federation, channel, tmp_path / "run", say=said.append)
    assert [line for line in said if "clock" in line] == [
        f"silo {LIAR}: its ledger's time is 3 days ahead of this server's clock",
        f"silo {SECOND}: its ledger's time is 40 days behind this server's clock",
    ]
    assert len(load_run(tmp_path / "run").summary.privacy.silos) == 3


def test_a_silo_that_does_not_admit_the_run_is_left_out_and_the_others_pay_once(enrolled, channel, tmp_path):
    """THIRD's share of the plan is beyond its budget. The run that the others had admitted is closed before
    round 0, and costs them nothing; they are offered one of their own.
    """
    privacy = {"epsilon": 2.0, "delta": 1e-6, "calibration": "sigma", "noise_multiplier": [9.0, 8.0, 0.1]}
    out = tmp_path / "run"
    deploy(scenario_of(privacy=privacy), enrolled.again(min_silos=2), channel, out)
    assert channel.kinds(THIRD) == ["hello", "offer"]
    for name in (LIAR, SECOND):
        assert channel.kinds(name) == ["hello", "offer", "close", "offer", *["ask"] * 6, "close"]
        *_, empty, whole = book.read(enrolled.configs[name].state / "ledger.sqlite").runs.values()
        assert (sorted(empty.rounds), sorted(whole.rounds)) == ([], list(range(6)))
    summary = load_run(out).summary
    assert summary.deployment is not None
    assert "plan costs epsilon" in summary.deployment.absent[THIRD]
    assert [row.noise_multiplier for row in summary.privacy.silos] == [9.0, 8.0]


def test_fewer_than_min_silos_are_no_run(enrolled, channel, tmp_path):
    channel.faults = dict.fromkeys((LIAR, THIRD), absent)
    with pytest.raises(Refused, match=rf"1 of 3 silos answered, 2 are needed .*; {CAN_BEGIN}$"):
        deploy(scenario_of(), enrolled.again(min_silos=2), channel, tmp_path / "run")
    assert {kind for _, kind, _ in channel.asked} == {"hello"}


def test_a_resumed_run_is_of_the_silos_that_had_joined(enrolled, channel, tmp_path):
    """LIAR comes between the two processes, and joins no run that has begun."""
    out, federation = tmp_path / "run", enrolled.again(min_silos=2)
    channel.faults = {LIAR: absent, THIRD: in_round(3, absent)}
    with pytest.raises(Refused, match=r"round 3: 1 of 2 silos answered, 2 are needed"):
        deploy(scenario_of(), federation, channel, out)
    channel.faults.clear()
    channel.asked.clear()
    deploy(scenario_of(), federation, channel, out, resume=True)
    assert {name for name, _, _ in channel.asked} == {SECOND, THIRD}
    summary = load_run(out).summary
    assert summary.deployment is not None
    assert set(summary.deployment.absent) == {LIAR}
    assert re.fullmatch(NO_REPLY, summary.deployment.absent[LIAR])
    assert [row.rounds for row in summary.privacy.silos] == [6, 6]
