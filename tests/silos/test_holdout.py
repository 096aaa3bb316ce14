"""Records that a silo holds out: which they are, who reads them, and what each part costs."""

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.deployed import POLICY, Caller, offer_of, resolved_of, silo_file
from support.ledgers import CAPS, gaussian, open_run
from support.ledgers import enrolled as new_ledger
from support.scenarios import invoke

from fedsim.common.errors import InputError, Refused
from fedsim.common.identity import KEY_FILE, Identity
from fedsim.protocol.receipts import verified_receipt
from fedsim.scenario.evaluation import evaluation_of
from fedsim.scenario.resolve import Resolved
from fedsim.wire.messages import Offer, named
from silos.front.config import Config, load_config
from silos.front.enrolment import enrol
from silos.front.own_records import read_records
from silos.front.pending import PendingOffers
from silos.front.silo import Silo
from silos.front.tried_out import tried_out
from silos.vault import gate as gates
from silos.vault.account import Account, Cost
from silos.vault.book import read
from silos.vault.ledger_file import LedgerFile

N, HELD_OUT = 40, 8
SILO = "silo-00"
GOLDEN = [3.0, 10.0, 13.0, 14.0, 17.0, 19.0, 20.0, 35.0]
POINT = torch.zeros(5, dtype=torch.float64)


def write(folder: Path, **more: object) -> Path:
    """A silo whose every record carries its own number as its first feature; its file."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (N, 5))
    features[:, 0] = np.arange(N)
    np.savez(folder / "records.npz", features=features, target=rng.integers(0, 2, N))
    records = {"name": "npz", "path": "records.npz", "intercept": False, "classes": 2, "scaling": "none"}
    return silo_file(folder, SILO, records, **{"holdout": HELD_OUT / N} | more)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = load_config(write(tmp_path / SILO))
    enrol(made)
    return made


@pytest.fixture
def caller(config):
    silo = Silo.open(config)
    yield Caller(silo)
    silo.close()


def scenario() -> Resolved:
    """A federation of three, of which the silo is one; with the numbers of its two parts."""
    made = resolved_of(evaluate={"bins": 4})
    outline = replace(
        made.outline,
        sizes=made.outline.sizes | {SILO: N - HELD_OUT},
        held_out=made.outline.held_out | {SILO: HELD_OUT},
    )
    return replace(made, outline=outline, budgets=made.scenario.privacy.budgets(outline))


def training(session: int = 1, **changes: object) -> dict[str, object]:
    return offer_of(scenario(), SILO, session=f"{session:064x}", **changes)


def evaluation(session: int = 2, **changes: object) -> dict[str, object]:
    own = {"session": f"{session:064x}", "records": "holdout"}
    return offer_of(evaluation_of(scenario()), SILO, **(own | changes))


def refused(caller: Caller, offer: Mapping[str, Any]) -> str:
    return caller.refused("offer", **{**offer, "head": caller.head})


def parts(config: Config) -> tuple[set[int], set[int]]:
    """The numbers of the records of each part."""
    made = read_records(config).divided(config.holdout, Identity.load(config.state))
    training, holdout = ({int(x) for x in part.features[:, 0]} for part in made[:2])
    return training, holdout


@pytest.fixture
def laid_out(monkeypatch) -> list[set[int]]:
    """The numbers of the records that each gate was given."""
    seen: list[set[int]] = []

    def lay_out(silos, problem, dtype, persons):
        seen.append({int(x) for x in silos[0][0][:, 0]})
        return gates.lay_out(silos, problem, dtype, persons)

    monkeypatch.setattr("silos.vault.vault.lay_out", lay_out)
    return seen


def test_every_record_is_in_one_part_for_ever_and_no_value_decides_which(config, tmp_path):
    training, holdout = parts(config)
    assert training | holdout == set(range(N))
    assert not training & holdout
    assert len(holdout) == HELD_OUT
    assert parts(load_config(tmp_path / SILO / "silo.yaml")) == (training, holdout)
    records = read_records(config)
    moved = records.rows._replace(features=-records.rows.features, target=1 - records.rows.target)
    other = replace(records, rows=moved)
    identity = Identity.load(config.state)
    moved = other.divided(config.holdout, identity)
    assert {-int(x) for x in moved[1].features[:, 0]} == holdout
    assert {-int(x) for x in moved[0].features[:, 0]} == training


def test_the_division_follows_from_the_secret_key_alone(config, tmp_path):
    """Another key divides in another way; all that leaves a silo, its public key among it, is public."""
    found = set()
    for number in range(20):
        (tmp_path / f"{number}").mkdir()
        made = read_records(config).divided(config.holdout, Identity.create(tmp_path / f"{number}"))
        found.add(tuple(made[1].features[:, 0]))
    assert len(found) == 20


def test_the_division_is_the_same_in_every_version(config, tmp_path):
    """Another rule needs another label, and silos that hold to the old one."""
    (tmp_path / KEY_FILE).write_text("ab" * 32 + "\n")
    (tmp_path / KEY_FILE).chmod(0o600)
    holdout = read_records(config).divided(config.holdout, Identity.load(tmp_path))[1]
    assert holdout.features[:, 0].tolist() == GOLDEN


def test_nothing_that_leaves_a_silo_holds_the_division_or_what_it_is_made_of(config, caller):
    for offer in (training(), evaluation()):
        run = caller.admitted(offer)["run"]
        caller.asked(run, 0, w=POINT)
        caller.closed(run)
    key = Identity.load(config.state).sign(b"fedsim holdout 1\n")
    sent = b"".join(caller.sent)
    assert (
        caller.silo.ledger.enrolment.records.encode() in sent
    )  # in receipts: the search finds what is there
    for secret in (key, key.hex().encode()):
        assert secret not in sent


def test_a_gate_is_laid_out_over_the_part_that_its_offer_says_also_after_a_restart(config, caller, laid_out):
    runs = [caller.admitted(offer)["run"] for offer in (training(), evaluation())]
    for run in runs:
        caller.asked(run, 0, w=POINT)
    assert laid_out == list(parts(config))
    caller.silo.close()
    caller.silo = Silo.open(config)
    for run in runs:
        caller.asked(run, 1 if run == runs[0] else 0, w=POINT)
    assert laid_out[2:] == list(parts(config))


def test_greetings_count_the_parts_and_offers_must_count_the_right_one(caller):
    said = caller.send("hello").head
    assert (said["n"], said["held_out"]) == (N - HELD_OUT, HELD_OUT)
    for offer, right in ((training, N - HELD_OUT), (evaluation, HELD_OUT)):
        for wrong in (N, N - HELD_OUT, HELD_OUT):
            shape = offer()["shape"]
            changed = {**shape, "sizes": {**shape["sizes"], SILO: wrong}}
            if wrong == right:
                caller.admitted(offer(shape=changed))
            else:
                assert f"has {right} records" in refused(caller, offer(9, shape=changed))


def test_held_out_records_answer_evaluations_alone_and_others_none(caller):
    assert "allows evaluation" in refused(caller, evaluation(algorithm=training()["algorithm"]))
    assert "does not allow algorithm 'evaluation'" in refused(
        caller, training(algorithm=evaluation()["algorithm"])
    )
    assert "offer.records" in refused(caller, training(records="all"))


def test_a_relabelled_offer_is_another_one(caller):
    """The same session with the other part is refused; with another session it is a run of its own."""
    caller.admitted(evaluation())
    shape = evaluation()["shape"]
    own = {**shape, "sizes": {**shape["sizes"], SILO: N - HELD_OUT}}
    assert "known with another offer" in refused(caller, evaluation(records="training", shape=own))
    assert caller.admitted(evaluation()) == caller.admitted(evaluation())
    digests = {run.offer for run in caller.silo.ledger.book.runs.values()}
    caller.admitted(training())
    assert len(digests | {run.offer for run in caller.silo.ledger.book.runs.values()}) == 2


def test_each_part_has_the_whole_budget_and_is_held_to_it(caller):
    caps = caller.silo.ledger.account.caps.total
    many = filled(caller, training, 0)
    account = caller.silo.ledger.account
    assert account.column("holdout").reserved == Cost()
    left = account.column("training").left
    assert 0.5 * many <= filled(caller, evaluation, 1000) <= 2 * many
    assert account.column("training").left == left
    for part in ("training", "holdout"):
        assert account.column(part).reserved.mu_sq <= caps.mu_sq
    assert account.left == account.column("training").left.least(account.column("holdout").left)


def filled(caller: Caller, offer: Callable[[int], Mapping[str, Any]], session: int) -> int:
    """Admit runs until the account has no room for another; how many."""
    for number in range(1000):
        frame = caller.send("offer", **{**offer(session + number), "head": caller.head})
        if frame.kind == "refusal":
            part = " on held-out records" if offer is evaluation else ""
            assert f"lifetime budget cannot carry this run{part}: " in frame.head["reason"]
            return number
    raise AssertionError


def test_a_run_is_charged_to_its_own_part_alone():
    account = Account(CAPS)
    third = Cost(mu_sq=CAPS.total.mu_sq / 3)
    for run in "abc":
        account.reserve(run, Cost(mu_sq=CAPS.total.mu_sq / 4), "holdout")
    assert account.column("training").reserved == Cost()
    account.check(third)
    with pytest.raises(Refused, match="lifetime budget cannot carry this run on held-out records"):
        account.check(third, "holdout")
    account.reserve("d", third)
    account.charge("d", Cost())
    assert account.column("training").charged == Cost()
    assert account.reserved == account.column("holdout").reserved


def test_costs_of_both_parts_are_kept_through_restarts_and_in_receipts(config, caller):
    caller.admitted(training())
    run = caller.admitted(evaluation())["run"]
    caller.asked(run, 0, w=POINT)
    receipt = caller.closed(run)["receipt"]
    key = caller.silo.ledger.enrolment.identity
    assert verified_receipt(receipt, key)["part"] == "holdout"
    before = [caller.silo.ledger.account.column(part) for part in ("training", "holdout")]
    assert before[0].reserved.mu_sq > 0 == before[0].charged.mu_sq
    assert before[1].charged.mu_sq > 0 == before[1].reserved.mu_sq
    caller.silo.close()
    book = read(config.ledger)
    assert [book.account.column(part) for part in ("training", "holdout")] == before
    caller.silo = Silo.open(config)


def test_what_becomes_of_an_evaluation_is_told_by_its_own_part(config, caller):
    caller.silo.close()
    found = tried_out(config, evaluation())
    assert found.cost["mu_sq"] > 0
    caller.silo = Silo.open(config)


@pytest.mark.parametrize("holdout", [None, 0.3])
def test_another_holdout_than_the_enrolled_one_is_refused(config, tmp_path, holdout):
    file = tmp_path / SILO / "silo.yaml"
    with pytest.raises(InputError, match=r"silo.holdout.*enrolled with 0.2, for its whole life; enrol anew"):
        Silo.open(_held(file, holdout))


def test_a_silo_enrolled_without_one_holds_nothing_out_later(tmp_path):
    file = write(tmp_path / SILO, holdout=None)
    enrol(load_config(file))
    first = json.loads(next(iter(_entries(load_config(file).ledger))))
    assert "holdout" not in first
    with pytest.raises(InputError, match=r"silo.holdout.*enrolled with None"):
        Silo.open(_held(file, 0.2))
    silo = Silo.open(_held(file, None))
    try:
        caller = Caller(silo)
        assert "held_out" not in caller.send("hello").head
        assert "holds out no records" in refused(caller, evaluation())
    finally:
        silo.close()


def _held(file: Path, holdout: float | None) -> Config:
    tree = yaml.safe_load(file.read_text()) | {"holdout": holdout}
    file.write_text(yaml.safe_dump(tree))
    return load_config(file)


def _entries(ledger: Path) -> list[str]:
    with sqlite3.connect(ledger) as connection:
        return [row[0] for row in connection.execute("SELECT payload FROM entries ORDER BY seq")]


@pytest.mark.parametrize("share", [0.01, 0.03, 0.97])
def test_a_holdout_of_fewer_than_two_records_is_refused_to_the_owner_alone(tmp_path, share):
    config = load_config(write(tmp_path / SILO, holdout=share))
    with pytest.raises(InputError, match=r"silo.holdout.*at least 2"):
        enrol(config)
    assert not config.ledger.exists()


def test_runs_of_training_alone_are_entered_as_they_were(tmp_path):
    path, _ = new_ledger(tmp_path)
    with LedgerFile.open(path) as file:
        open_run(file, 1, gaussian(1))
        open_run(file, 2, gaussian(1), records="holdout")
    entered = [json.loads(payload) for payload in _entries(path) if "session" in payload]
    assert ["records" in payload for payload in entered] == [False, True]


def test_offers_and_greetings_of_training_alone_are_what_they_were():
    offer = Offer.model_validate(training() | {"records": "training"})
    assert "records" not in json.loads(offer.text)
    assert offer.text == Offer.model_validate(training()).text
    assert named(offer.text) != named(Offer.model_validate(training(records="holdout")).text)
    assert json.loads(Offer.model_validate(evaluation()).text)["records"] == "holdout"


def test_an_entry_of_neither_part_is_no_ledgers(tmp_path):
    with pytest.raises(Refused, match="training or holdout"):
        Account(CAPS).reserve("a", Cost(mu_sq=0.1), "others")


def test_an_operator_reads_both_columns_and_which_records_a_run_is_about(config, caller):
    caller.admitted(training())
    run = caller.admitted(evaluation())["run"]
    caller.asked(run, 0, w=POINT)
    caller.closed(run)
    shown = invoke("ledger", "show", config.state)
    most = [line for line in shown.splitlines() if "may still cost" in line]
    assert ["on held-out records" in line for line in most] == [False, True]
    for line in ("mu^2 of Gaussian plans, training", "mu^2 of Gaussian plans, holdout", "closed, held out"):
        assert line in " ".join(shown.split())
    tree = json.loads(invoke("ledger", "show", config.state, "--json"))
    account = caller.silo.ledger.account
    assert tree["charged"] == account.column("holdout").charged.tree()
    assert tree["parts"]["training"][1] == account.column("training").reserved.tree()
    assert [each["records"] for each in tree["runs"]] == ["training", "holdout"]


def test_an_operator_who_decides_is_told_which_records(tmp_path):
    file = write(tmp_path / SILO, policy=POLICY | {"approve": "ask"})
    made = load_config(file)
    enrol(made)
    silo = Silo.open(made)
    try:
        caller = Caller(silo)
        assert "has to decide" in refused(caller, evaluation())
        (offer,) = PendingOffers(made.state).all(silo.ledger.now())
        assert "those that are held out" in invoke("offers", "show", made.state, offer.digest[:8])
        invoke("offers", "approve", made.state, offer.digest[:8])
        caller.admitted(evaluation())
        assert [run.records for run in silo.ledger.book.runs.values()] == ["holdout"]
    finally:
        silo.close()


def test_an_account_of_labels_alone_is_one_for_its_whole_life(tmp_path):
    """Else labels could be released beside records that were promised more."""
    for label_dp in (False, True):
        file = write(tmp_path / str(label_dp), policy=POLICY | {"label_dp": label_dp})
        enrol(load_config(file))
        Silo.open(load_config(file)).close()
        other = yaml.safe_load(file.read_text())
        other["policy"]["label_dp"] = not label_dp
        file.write_text(yaml.safe_dump(other))
        with pytest.raises(InputError, match=f"the silo enrolled with {label_dp}, for its whole account"):
            Silo.open(load_config(file))
