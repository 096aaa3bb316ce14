"""The vault by itself: what it admits and answers does not rest on what the front checked before."""

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch
from support.deployed import POLICY, calling, enrolled, offer_of, resolved_of, write_silos
from support.refusals import refused

from benchmarks.structure import ROOT, code_lines, loaded
from fedsim.common.errors import Refused
from fedsim.privacy.registry import GAUSSIAN
from fedsim.privacy.silo_gaussian import NoMechanism
from fedsim.problems.glm import HingeLoss, LogisticRegression
from fedsim.protocol.batch import FULL, Subsample
from fedsim.protocol.plan import Ask, Plan, Terms
from fedsim.protocol.query import Query
from fedsim.protocol.statistics import QueryShape
from fedsim.protocol.unit import RECORD, Person
from silos.front.config import Policy, load_config
from silos.vault.approvals import APPROVED, REFUSED, USED, approval, used
from silos.vault.considered import SEEDED, Admissible, Its, considered
from silos.vault.gate import OpenRound
from silos.vault.owners import Owners
from silos.vault.vault import Vault, check_same

MOST_CODE = 6_000  # of ours, beside a vault that has answered every statistic on every sampler
RESOLVED = resolved_of()
POINT = torch.zeros(5, dtype=torch.float64)
ITS = Its("A", 40, 5, 0, RECORD, public=False)
RULES = Policy.model_validate(POLICY).rules
GRADIENT = QueryShape("gradient", 1, 1.0)


def plan_of(rounds=2, unit=RECORD, batch=FULL, shape=GRADIENT):
    return Plan(((Ask(batch, (shape,)),),) * rounds, unit)


def found(plan=None, problem=None, dtype=torch.float64, rules=RULES, its=ITS, **changes) -> Admissible:
    plan = plan or plan_of()
    terms = Terms("B", 7, 1.0, 1e-6, range(len(plan.rounds)), None, None)
    asked = ((("w", 5),),) * len(plan.rounds)
    problem = problem or LogisticRegression(5)
    return considered(plan, problem, dtype, replace(terms, **changes), its, rules, broadcasts=asked)


@pytest.fixture
def vault(tmp_path):
    """Of the first silo, whose front is not asked."""
    (config,) = enrolled(write_silos(tmp_path, RESOLVED)[:1])
    with calling(config) as caller:
        yield caller.silo._vault


@pytest.fixture
def its(vault):
    rows = vault._records["training"]
    return ITS._replace(silo=vault.ledger.enrolment.silo, n=rows.n)


def admitted(vault: Vault, plan: Admissible, session: str = "11"):
    run = vault.admit(plan, session * 32, "{}", {})
    assert run is not None
    return run


def asked(opened: OpenRound):
    return opened.ask(Query("gradient", (POINT,), 1.0))


def test_a_round_is_asked_answered_and_kept(vault, its):
    plan = found(its=its)
    run = admitted(vault, plan)
    before = vault.ledger.account.left
    opened = vault.round(run, plan, 0, {"w": POINT})
    reply = opened.keep({"g": asked(opened)})
    for again in (opened.ask, lambda query: opened.keep(reply)):
        with pytest.raises(Refused, match="the round is over"):
            again(Query("gradient", (POINT,), 1.0))
    assert torch.equal(vault.round(run, plan, 0, {"w": POINT}).reply["g"], reply["g"])
    with pytest.raises(Refused, match="another broadcast"):
        vault.round(run, plan, 0, {"w": POINT + 1})
    assert vault.ledger.account.left == before  # all of it was reserved at its admission


def test_a_round_that_was_opened_is_paid_for_whatever_becomes_of_it(vault, its):
    plan = found(its=its)
    run = admitted(vault, plan)
    first = vault.round(run, plan, 0, {"w": POINT})
    with pytest.raises(Refused, match="begun and came to no reply"):
        vault.round(run, plan, 0, {"w": POINT})
    vault.forget(run.run)  # nor by another gate
    with pytest.raises(Refused, match="begun and came to no reply"):
        vault.round(run, plan, 0, {"w": POINT})
    asked(first)
    with pytest.raises(Refused, match="this is one more"):
        asked(first)
    assert run.debited == [0]


def test_a_run_is_answered_by_the_plan_that_it_was_admitted_with(vault, its):
    plan = found(its=its)
    run = admitted(vault, plan)
    others = [found(plan_of(3), its=its), found(problem=HingeLoss(5), its=its), found(its=its, epsilon=0.5)]
    others += [found(its=its, rounds=(0,)), replace(plan, dtype=torch.float32)]
    for other in others:
        with pytest.raises(Refused, match="admitted under another policy"):
            vault.round(run, other, 0, {"w": POINT})
    check_same(run, found(its=its))
    vault.close(run, plan)
    with pytest.raises(Refused, match="the run is closed"):
        vault.round(run, plan, 0, {"w": POINT})


def test_a_plan_that_was_priced_for_others_is_not_admitted(vault, its):
    public, poor = its._replace(public=True), RULES._replace(run_budget=(0.5, 1e-5), min_noise_multiplier=1e3)
    person = found(plan_of(unit=Person()), its=its._replace(unit=Person()))
    own = found(its=its)
    wrong = [found(its=public), found(its=ITS), replace(own, notices=(SEEDED,)), person]
    cheap = replace(own.admitted, noise_multiplier=10 * own.admitted.noise_multiplier)
    wrong += [replace(own, mechanism=NoMechanism()), replace(own, sealed=lambda run: run)]
    wrong += [replace(own, admitted=cheap)]
    for plan in wrong:
        with pytest.raises(Refused):
            admitted(vault, plan)
    vault._rules = poor
    for rules in (poor._replace(min_noise_multiplier=0.1), poor._replace(run_budget=(4.0, 1e-5))):
        vault._rules = rules
        with pytest.raises(Refused):
            admitted(vault, own)
    assert not vault.ledger.book.runs


def test_records_whose_persons_are_not_known_are_no_units():
    with pytest.raises(Refused, match="whose"):
        Owners.of(Person(), [None])
    with pytest.raises(Refused, match="whose"):
        Owners.of(Person(), [np.zeros(3, int), None])


def test_an_approval_binds_plan_unit_problem_dtype_terms_and_cost():
    by_person = ITS._replace(unit=Person())
    dear = RULES._replace(exact_noise_dimension=0)
    each = [
        found(),
        found(plan_of(3)),
        found(plan_of(unit=Person()), its=by_person),
        found(problem=HingeLoss(5)),
        found(problem=HingeLoss(5, smoothing=2.0)),
        found(epsilon=0.5),
        found(delta=1e-7),
        found(rounds=(1,)),
        found(rules=dear),
        found(its=ITS._replace(n=41)),
        replace(found(), dtype=torch.float32),
        replace(found(), records="holdout"),
    ]
    assert len({one.digest for one in each}) == len(each)
    assert found().digest == each[0].digest


def test_an_approval_is_of_one_admission_until_it_lapses_and_once(tmp_path):
    place = tmp_path / f"{'00' * 32}.{APPROVED}"
    for said in ("", "aa", "aa x", approval("bb", 10), approval("aa", 9)):
        place.write_text(said)
        assert not used(tmp_path, "00" * 32, "aa", 9)
        assert place.exists()
    place.write_text(approval("aa", 10))
    assert not used(tmp_path, "11" * 32, "aa", 9)
    place.with_suffix(f".{REFUSED}").touch()
    assert not used(tmp_path, "00" * 32, "aa", 9)
    place.with_suffix(f".{REFUSED}").unlink()
    assert used(tmp_path, "00" * 32, "aa", 9)
    assert [each.suffix for each in tmp_path.iterdir()] == [f".{USED}"]
    assert not used(tmp_path, "00" * 32, "aa", 9)


def test_a_vault_with_approvals_admits_nothing_without_one(vault, its, tmp_path):
    plan, folder = found(its=its), tmp_path / "offers"
    folder.mkdir()
    vault._approvals = folder
    offer, digest = ("{}", {}), sha256(b"{}").hexdigest()
    (folder / f"{digest}.{APPROVED}").write_text(approval(found(plan_of(1), its=its).digest, 2**60))
    assert vault.admit(plan, "11" * 32, *offer) is None
    assert not vault.ledger.open_runs()
    (folder / f"{digest}.{APPROVED}").write_text(approval(plan.digest, 2**60))
    assert vault.admit(plan, "11" * 32, *offer) is not None
    assert vault.admit(plan, "22" * 32, *offer) is None


WRONG = {
    "unit": ({"plan": plan_of(unit=Person())}, "it is of unit person"),
    "features": ({"problem": LogisticRegression(4)}, "has 5 features"),
    "groups": ({"plan": plan_of(shape=QueryShape("joint", 1, 1.0, (2, 2, 1, 0)))}, "has 0 groups"),
    "statistic": ({"rules": RULES._replace(statistics=("error",))}, "statistic 'gradient'"),
    "float32": (
        {"plan": plan_of(batch=Subsample(0.5)), "dtype": torch.float32},
        "float32 with sampled batches",
    ),
    "budget": ({"epsilon": 9.0, "noise_multiplier": 0.11}, "its budget is 4"),
    "noise": ({"rules": RULES._replace(min_noise_multiplier=1e3)}, "asks for 1000"),
}


@pytest.mark.parametrize(("given", "words"), WRONG.values(), ids=WRONG)
def test_what_the_front_let_through_is_refused(given, words):
    with pytest.raises(Refused, match=words):
        found(**given)


def test_name_number_and_budget_are_the_silos_own():
    own = found(epsilon=100.0).terms
    assert (own.name, own.n, own.epsilon) == ("A", 40, RULES.run_budget[0])
    assert GAUSSIAN.epsilons(plan_of().census(), [(40, found().admitted.noise_multiplier, 1e-6)])[0] <= 1.0


def test_a_policy_may_name_statistics(tmp_path):
    (path, other) = write_silos(tmp_path, RESOLVED, policy={"statistics": ["second_moment"]})[:2]
    (config,) = enrolled([path])
    with calling(config) as caller:
        offer = offer_of(RESOLVED, caller.silo._own.silo)
        hint = "offer: the silo's policy does not allow statistic 'gradient'; it allows second_moment"
        assert caller.refused("offer", **offer) == hint
    other.write_text(other.read_text().replace("second_moment", "gradiant"))
    with refused("silo.policy.statistics", "gradiant", "gradient"):
        load_config(other)


def test_what_an_auditor_reads_is_counted_by_a_real_import(tmp_path):
    files = loaded(tmp_path / "folder", "linear")
    assert sum(code_lines(file.read_text(encoding="utf-8")) for file in files) <= MOST_CODE
    rooms = {str(file.relative_to(ROOT).parent) for file in files}
    trusted = {f"fedsim/{room}" for room in ("common", "privacy", "problems", "protocol")}
    assert rooms == trusted | {"fedsim", "silos", "silos/vault"}
