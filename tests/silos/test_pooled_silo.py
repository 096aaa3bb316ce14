"""A silo in secure aggregation: it answers by its own pinned roster, and what it says of others is sealed."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support import scenarios
from support.deployed import Caller, calling
from support.pooled import PooledFederation, pooled_federation, pooled_scenario
from support.refusals import lacking
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.common.errors import InputError, Refused
from fedsim.deployment.offers import offers_of
from fedsim.protocol.batch import FULL
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.statistics import Extent
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.secagg import shuffling
from fedsim.secagg.agreement import ReportContexts, agreement
from fedsim.secagg.envelopes import EnvelopeKey
from fedsim.secagg.reports import open_report
from fedsim.secagg.roster import load_roster
from fedsim.secagg.shuffling import Release, Request
from fedsim.wire.frames import sealed
from fedsim.wire.messages import Mark, Offer
from server.participation import schedule
from shuffler.keys import Keys
from silos.front.config import load_config
from silos.front.pending import PendingOffers
from silos.front.silo import Silo

SCENARIO = pooled_scenario()
RESOLVED = resolve(SCENARIO)
FIRST = RESOLVED.names[0]
POINT = torch.full((5,), 0.25, dtype=torch.float64)
OTHER = "ab" * 32
LOCAL = {"name": "local_sgd", "num_rounds": 3, "local_steps": 2, "step_size": 0.1, "clip_norm": 1.0}


def offers(made: PooledFederation, resolved: Resolved = RESOLVED, session: int = 1) -> dict[str, Offer]:
    rounds = schedule(len(resolved.names), resolved.active, resolved.trace.holds, 0, 0)
    return offers_of(resolved, f"{session:064x}", rounds, made.roster)


def told(offer: Offer, **changes: Any) -> dict[str, Any]:
    """An offer's plain values with dotted fields set, the dots written as two underscores."""
    dotted = {path.replace("__", "."): value for path, value in changes.items()}
    return scenarios.changed(offer.model_dump(mode="json"), dotted)


@pytest.fixture
def made(tmp_path):
    return pooled_federation(tmp_path, SCENARIO, seeded=False)


@pytest.fixture
def callers(made):
    mark = made.mark()
    silos = {name: Caller(Silo.open(config), mark=mark) for name, config in made.enrolled.configs.items()}
    yield silos
    for caller in silos.values():
        caller.silo.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pooled__roster": OTHER}, "none that the silo's operator has pinned"),
        ({"pooled__mechanism": "gaussian"}, "no mechanism of secure aggregation"),
        ({"pooled__clip": 0.0}, "greater than 0"),
        ({"pooled__clip": 1.5}, "less than or equal to 1"),
        ({"noise_multiplier": None}, "must be given"),
        ({"noise_multiplier": 0.5}, "its budget is 2"),
        ({"weights": [1.0, 1.0]}, "weights must be 3"),
        ({"shape__sizes": {FIRST: RESOLVED.sizes[0]}, "weights": [1.0]}, "not those of the roster"),
        (
            {"shape__sizes": {FIRST: RESOLVED.sizes[0], "mole-1": 32, "mole-2": 32}},  # in the others' places
            "not those of the roster",
        ),
        ({"algorithm": LOCAL}, "computes with each silo's own noisy answers"),
    ],
)
def test_an_offer_that_the_roster_does_not_cover_is_refused_and_costs_nothing(made, callers, changes, said):
    caller = callers[FIRST]
    before = caller.silo.ledger.head
    assert said in caller.refused("offer", **told(offers(made)[FIRST], **changes))
    assert caller.silo.ledger.head == before


def test_what_a_sum_rests_on_is_the_rosters_and_not_the_offers(made):
    """Noise is shared out among the least number of silos that the roster has, whatever the server has."""
    config = made.enrolled.configs[FIRST]
    for least in (2, 3):
        tree = yaml.safe_load((made.folder / "roster.yaml").read_text())
        (made.folder / "roster.yaml").write_text(yaml.safe_dump({**tree, "min_silos": least}))
        roster = load_roster(made.folder / "roster.yaml")
        with calling(config) as caller:
            offer = told(offers(made)[FIRST], pooled__roster=roster.digest, session=f"{least:064x}")
            admission = caller.admitted(offer)
        z = admission["noise_multiplier"]
        mechanism, census = (
            RESOLVED.mechanism.__class__(Extent(5, 5), least, 1.0),
            RESOLVED.trace.plan.census(),
        )
        (expected,) = mechanism.epsilons(census, [(RESOLVED.sizes[0], z / least**0.5, 1e-6)])
        assert admission["epsilon_colluding"] == pytest.approx(expected)


@pytest.mark.parametrize("whose", ["another silo", "a stranger"])
def test_a_roster_in_which_the_silo_is_not_itself_is_no_roster_of_its_own(made, whose):
    tree = yaml.safe_load((made.folder / "roster.yaml").read_text())
    if whose == "a stranger":
        del tree["silos"][FIRST]
        tree["min_silos"] = 2
    else:
        first, second, *_ = tree["silos"]
        tree["silos"][first], tree["silos"][second] = tree["silos"][second], tree["silos"][first]
    (made.folder / "roster.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(InputError, match=rf"silo\.rosters\.0: .*{FIRST} has this silo's own identity"):
        Silo.open(made.enrolled.configs[FIRST])


def test_a_silo_without_rosters_takes_part_in_no_sum(made):
    file = made.folder / FIRST / "silo.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "rosters": []}))
    with calling(load_config(file)) as caller:
        said = caller.refused("offer", **told(offers(made)[FIRST]))
    assert "none that the silo's operator has pinned" in said


@pytest.mark.parametrize(("most", "admits"), [(3.0, False), (5.0, True)])
def test_the_policy_bounds_what_a_run_costs_if_aggregators_collude(tmp_path, most, admits):
    made = pooled_federation(tmp_path, SCENARIO, seeded=False, policy={"max_epsilon_colluding": most})
    with calling(made.enrolled.configs[FIRST]) as caller:
        if admits:
            admission = caller.admitted(told(offers(made)[FIRST]))
            assert admission["epsilon_guaranteed"] <= 2.0 < 3.0 < admission["epsilon_colluding"] < most
        else:
            said = caller.refused("offer", **told(offers(made)[FIRST]))
            assert lacking(said, "if server and shuffler collude | policy allows 3") == []


def test_an_offer_that_waits_for_the_operator_names_the_federation_of_its_roster(tmp_path):
    made = pooled_federation(tmp_path, SCENARIO, seeded=False, policy={"approve": "ask"})
    config = made.enrolled.configs[FIRST]
    with calling(config) as caller:
        assert "has to decide" in caller.refused("offer", **told(offers(made)[FIRST]))
    (waits,) = PendingOffers(config.state).all(0)
    assert waits.federation == made.roster.federation
    shown = CliRunner().invoke(app, ["offers", "show", str(config.state), waits.digest]).output
    assert f"of the federation {waits.federation}, by your roster" in " ".join(shown.split())
    assert "if server and shuffler collude" in shown


def test_where_aggregators_add_the_noise_nothing_is_left_if_they_collude(tmp_path):
    scenario = pooled_scenario(privacy={"noise_by": "aggregators", "honest_fraction": None})
    made = pooled_federation(tmp_path, scenario, seeded=False)
    with calling(made.enrolled.configs[FIRST]) as caller:
        admission = caller.admitted(told(offers(made, resolve(scenario))[FIRST]))
    assert admission["epsilon_colluding"] is None
    assert admission["epsilon_guaranteed"] <= 2.0


def test_a_report_is_all_that_leaves_and_the_same_bytes_whenever_it_is_asked_for(made, callers):
    caller = callers[FIRST]
    run = caller.admitted(told(offers(made)[FIRST]))["run"]
    (name, first), *more = caller.asked(run, 0, w=POINT).items()
    assert (name, first.dtype, more) == ("report", torch.uint8, [])
    assert torch.equal(caller.asked(run, 0, w=POINT)["report"], first)
    assert "another broadcast" in caller.refused("ask", {"w": POINT + 1}, run=run, round=0, mark=made.mark())
    caller.silo.close()
    later = made.mark(9, start="09" * 32)  # no second report for another process of the shuffler
    silo = callers[FIRST] = Caller(Silo.open(made.enrolled.configs[FIRST]), caller.head, mark=later)
    lost = silo.refused("ask", {"w": POINT}, run=run, round=0, mark=later)
    assert "was answered for a process of the shuffler that has ended" in lost
    silo.mark = made.mark()
    assert torch.equal(silo.asked(run, 0, w=POINT)["report"], first)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (None, "with the shuffler's mark"),
        ("forged", "not signed by the roster's shuffler"),
        ({"number": 4}, "notes were set back"),
        ({"number": 4, "start": "09" * 32}, "notes were set back"),
        ({"number": 5, "head": "06" * 32}, "notes were set back"),
        ({"number": 5, "head": "06" * 32, "start": "09" * 32}, "notes were set back"),
    ],
)
def test_a_shuffler_whose_notes_were_set_back_gets_no_report(made, callers, shown, said):
    """Before and after the silo's own restart; a refused round has cost nothing."""
    caller = callers[FIRST]
    run = caller.admitted(told(offers(made)[FIRST]))["run"]
    caller.mark = made.mark(5)
    caller.asked(run, 0, w=POINT)
    mark = {**made.mark(6), "number": 7} if shown == "forged" else shown and made.mark(**shown)
    for _ in range(2):
        before = caller.silo.ledger.book.runs[run].rounds.copy()
        assert said in caller.refused("ask", {"w": POINT}, run=run, round=1, mark=mark)
        assert caller.silo.ledger.book.runs[run].rounds == before
        caller.silo.close()
        caller = callers[FIRST] = Caller(Silo.open(made.enrolled.configs[FIRST]), caller.head)
    caller.mark = made.mark(6, start="09" * 32)
    caller.asked(run, 1, w=POINT)


def test_marks_of_two_runs_at_once_may_cross(made, callers):
    """Of one process of the shuffler: another one's older mark is refused."""
    caller = callers[FIRST]
    half = {"epsilon": 1.0, "noise_multiplier": 2 * (offers(made)[FIRST].noise_multiplier or 0)}
    one, two = (caller.admitted(told(offers(made, session=i)[FIRST], **half))["run"] for i in (1, 2))
    caller.mark = made.mark(5)
    caller.asked(one, 0, w=POINT)
    caller.mark = made.mark(4)
    caller.asked(two, 0, w=POINT)
    old = made.mark(4, start="09" * 32)
    assert "set back" in caller.refused("ask", {"w": POINT}, run=two, round=1, mark=old)


def shuffled(made: PooledFederation, request: Request) -> Release:
    with made.shuffler(request.context.start) as answer:
        frame = answer(sealed(request.body()))
    return Release.read(frame, request, bytes.fromhex(made.roster.shuffler.identity))


def contexts(offer: Offer) -> ReportContexts:
    return ReportContexts(offer, RESOLVED.trace.plan, RESOLVED.sums.mechanism, 5, 5)


def test_no_contribution_is_in_the_ledger_in_the_clear(made, callers):
    """The test opens the report with both parties' keys, and looks for its numbers in the ledger's file."""
    offered = offers(made)
    caller = callers[FIRST]
    run = caller.admitted(told(offered[FIRST]))["run"]
    report = caller.asked(run, 0, w=POINT)["report"].numpy().tobytes()
    context = contexts(offered[FIRST]).of(0, made.mark()["start"])
    keys = Keys.load(made.folder / "shuffler" / "state")
    server = EnvelopeKey.load(made.folder / "server")
    position, inner, share = open_report(report, context, made.roster, keys.envelopes)
    alone = Release(context, "", (position,), (inner,), share, Mark(**made.mark()))
    contribution = shuffling.totals(alone, made.roster, server, 0 * share)
    assert 0 < np.abs(contribution).max() < 2**45
    stored = (made.folder / FIRST / "state" / "ledger.sqlite").read_bytes()
    wal = made.folder / FIRST / "state" / "ledger.sqlite-wal"
    stored += wal.read_bytes() if wal.exists() else b""
    assert report in stored or report[:500] in stored  # a row may lie on several pages
    for kind in (np.int64, np.float64):
        assert contribution.astype(kind).tobytes()[:16] not in stored


def told_apart(made: PooledFederation, callers: Mapping[str, Caller]) -> Request:
    """A server that tells the first silo its noise, and the others half of it, in a plan that allows it."""
    offered, reports = offers(made), []
    for name, caller in callers.items():
        changes: dict[str, Any] = {}
        if name != FIRST:
            changes = {"algorithm__num_rounds": 1}  # less to pay for, so that they may have less noise
            changes["noise_multiplier"] = 0.5 * (offered[name].noise_multiplier or 0)
        run = caller.admitted(told(offered[name], **changes))["run"]
        reports.append(caller.asked(run, 0, w=POINT)["report"].numpy().tobytes())
    return Request(contexts(offered[FIRST]).of(0, made.mark()["start"]), tuple(reports))


def test_silos_that_were_told_less_noise_do_not_count_beside_one_that_was_not(made, callers):
    request = told_apart(made, callers)
    with pytest.raises(Refused, match="1 reports count, and the roster needs 3"):
        shuffled(made, request)


def test_they_would_count_if_reports_were_for_the_session_alone(made, callers, monkeypatch):
    """The attack above works where nothing binds a report to what its silo was told."""

    def session(offer, plan):
        return offer.session

    monkeypatch.setattr("fedsim.secagg.agreement.agreement", session)
    assert shuffled(made, told_apart(made, callers)).silos == (0, 1, 2)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"silo": "north", "rounds": (0,), "epsilon": 0.5, "delta": 1e-7, "head": OTHER}, True),
        ({"noise_multiplier": 3.0}, False),
        ({"session": OTHER}, False),
        ({"seed": 8}, False),
        ({"weights": (1.0, 2.0, 3.0)}, False),
        ({"dtype": "float32"}, False),
    ],
)
def test_what_names_a_run_is_all_that_silos_must_be_told_alike(made, change, same):
    offer = offers(made)[FIRST]
    named = agreement(offer.model_copy(update=change), Plan(()))
    assert (named == agreement(offer, Plan(()))) == same


@pytest.mark.parametrize("field", ["clip", "roster", "mechanism"])
def test_of_a_part_in_sums_the_clip_alone_is_the_silos_own(made, field):
    offer = offers(made)[FIRST]
    assert offer.pooled is not None
    other: Callable[[Any], Any] = {"clip": lambda _: 0.5, "roster": lambda _: OTHER}.get(field, lambda _: "x")
    part = offer.pooled.model_copy(update={field: other(None)})
    named = agreement(offer.model_copy(update={"pooled": part}), Plan(()))
    assert (named == agreement(offer, Plan(()))) == (field == "clip")


def test_silos_that_make_another_plan_of_an_offer_are_not_added_up(made):
    """Two versions of a plug-in: the others' noise would be less than this silo has priced."""
    offer, shapes = offers(made)[FIRST], (QueryShape("gradient", 1, 1.0), QueryShape("gradient", 1, 0.1))
    named = {agreement(offer, Plan(((Ask(FULL, (shape,)),),))) for shape in shapes}
    assert len(named) == 2
