"""The count of private tuning: every part of the records is handed out as priced, once, and then no more."""

import pickle
from collections.abc import Callable

import pytest

from fedsim.common.errors import Refused
from fedsim.protocol.batch import FULL, Poisson
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Admitted, Ask, Plan, QueryShape, Release, Terms
from fedsim.simulation.selection import Grant, Parts, RunId

NAMES, RUNS, HALF = ("a", "b"), 4, 30
SILOS = [Terms(name, HALF, 1.0, 1e-5, ()) for name in NAMES]


def plan(batch: object = FULL, ratio: float = 1.0) -> Plan:
    return Plan(((Ask(batch, (QueryShape("gradient", 1, ratio),)),),) * 10)


PLAN = plan()


def parts() -> Parts:
    """Two silos; four runs of ten rounds, of which the second silo is in the first five of each."""
    own = [[PLAN.census()] * RUNS, [PLAN.census(range(5))] * RUNS]
    return Parts(own, SILOS, Limits())


def run(trial: int, setting: str = "s", records: str = "r") -> RunId:
    return RunId(records, setting, trial)


def admitted(noise: tuple[float, ...], rounds: tuple[range, range] = (range(10), range(5))) -> list[Admitted]:
    """What gates of this noise accept."""
    pairs = zip(NAMES, rounds, noise, strict=True)
    return [Admitted(Terms(name, HALF, 1.0, 1e-5, own, z), z, 1.0, len(own)) for name, own, z in pairs]


def test_every_run_that_was_priced_is_handed_out_once_and_at_the_admitted_noise():
    desk = parts()
    grants = [desk.candidate(run(trial, f"setting {trial // 2}")) for trial in range(RUNS)]
    for trial, grant in enumerate(grants):
        assert (grant.part, grant.run) == ("candidate", run(trial, f"setting {trial // 2}"))
        assert grant.noise == tuple(silo["candidates"].noise_multiplier for silo in desk.silos)
        assert grant.score_noise == tuple(silo["scores"].noise_multiplier for silo in desk.silos)
        assert grant.releases == (((Release(FULL, 1.0), 10),), ((Release(FULL, 1.0), 5),))
        assert pickle.loads(pickle.dumps(grant)) == grant
        with pytest.raises(Refused, match="once is paid for"):
            desk.candidate(run(trial, f"setting {trial // 2}"))
    for trial in (RUNS, RUNS + 7, -1):
        with pytest.raises(Refused, match="4 runs of candidates were priced"):
            desk.candidate(run(trial, "another step size"))


@pytest.mark.parametrize("first", ["candidate", "reported"])
def test_the_records_are_divided_once(first):
    """Divided anew, a record that trained one candidate could score another."""
    desk = parts()
    getattr(desk, first)(run(0))
    for other in (desk.candidate, desk.reported):
        with pytest.raises(Refused, match="divided in another way"):
            other(run(1, records="another seed"))


Noise = tuple[float, float]
OTHER_TERMS: dict[str, Callable[[Noise], tuple[Plan, list[Admitted]]]] = {
    "less noise": lambda z: (PLAN, admitted((z[0], 0.9 * z[1]))),
    "no noise": lambda z: (PLAN, admitted((z[0], 0.0))),
    "more rounds": lambda z: (PLAN, admitted(z, (range(10), range(6)))),
    "other batches": lambda z: (plan(Poisson(0.5)), admitted(z)),
    "another ratio": lambda z: (plan(ratio=0.9), admitted(z)),
}


@pytest.mark.parametrize("way", OTHER_TERMS)
def test_a_plan_or_noise_that_was_not_priced_is_refused(way):
    grant = parts().candidate(run(0))
    grant.check(PLAN, admitted(grant.noise))
    with pytest.raises(Refused, match=r"silo '[ab]': this is not the plan, at the noise, that was priced"):
        grant.check(*OTHER_TERMS[way](grant.noise))


def test_a_silo_that_answers_nothing_needs_no_noise_of_its_own():
    grant = Parts([[PLAN.census()], [()]], SILOS, Limits()).candidate(run(0))
    assert grant.noise[1] == 0
    grant.check(PLAN, admitted((grant.noise[0], 1.0), (range(10), range(0))))


def test_one_setting_is_reported_once_in_each_trial():
    desk = parts()
    desk.candidate(run(0, "tuned"))
    grants = [desk.reported(run(trial, "chosen")) for trial in (4, 5)]
    assert grants == [Grant("reported", run(trial, "chosen")) for trial in (4, 5)]
    with pytest.raises(Refused, match="another setting is reported"):
        desk.reported(run(6, "a second reported run"))
    with pytest.raises(Refused, match="once is paid for"):
        desk.reported(run(5, "chosen"))
    grants[0].check(plan(Poisson(0.5)), [])  # its own budget prices it


def test_what_is_counted_is_what_was_admitted():
    with pytest.raises(Refused, match="runs to choose from"):
        Parts([[PLAN.census()] * 9], [Terms("a", HALF, 0.01, 1e-9, ())], Limits(max_noise_multiplier=10))
