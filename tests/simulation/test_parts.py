"""The count of private tuning: every part of the records is handed out as priced, once, and then no more."""

import copy
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedsim.common.errors import Refused
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.batch import FULL, Poisson
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Admitted, Ask, Plan, QueryShape, Release, Terms
from fedsim.simulation.selection import Grant, GrantedRun, Parts, RunId, SelectionTerms
from silos.entropy import SeededEntropy

NAMES, RUNS, HALF = ("a", "b"), 4, 30
PLAN = Plan(((Ask(FULL, (QueryShape("gradient", 1, 1.0),)),),) * 10)
SILOS = [SelectionTerms(name, HALF, 1.0, 1e-5) for name in NAMES]


def parts() -> Parts:
    """Two silos; four runs of ten rounds, of which the second silo is in the first five of each."""
    own = [[PLAN.census()] * RUNS, [PLAN.census(range(5))] * RUNS]
    return Parts(own, SILOS, Limits())


def run(trial: int, setting: str = "s", records: str = "r") -> RunId:
    return RunId(records, setting, trial)


def admitted(grant: Grant, rounds: tuple[range, range] = (range(10), range(5))) -> list[Admitted]:
    """What gates of the granted noise accept."""
    pairs = zip(NAMES, rounds, grant.noise, strict=True)
    return [Admitted(Terms(name, HALF, 1.0, 1e-5, own, z), z, 1.0, len(own)) for name, own, z in pairs]


def test_every_run_that_was_priced_is_handed_out_once_and_at_the_admitted_noise() -> None:
    desk = parts()
    grants = [desk.candidate(run(trial, f"setting {trial // 2}")) for trial in range(RUNS)]
    for trial, grant in enumerate(grants):
        assert (grant.part, grant.run) == ("candidate", run(trial, f"setting {trial // 2}"))
        assert grant.noise == tuple(silo.noise_multiplier for silo in desk.silos)
        assert grant.score_noise == tuple(silo.score_noise_multiplier for silo in desk.silos)
        assert grant.releases == (((Release(FULL, 1.0), 10),), ((Release(FULL, 1.0), 5),))
        assert pickle.loads(pickle.dumps(grant)) == grant
        with pytest.raises(Refused, match="once is paid for"):
            desk.candidate(run(trial, f"setting {trial // 2}"))


def test_what_was_handed_out_is_not_forgotten_by_a_copy() -> None:
    desk = parts()
    for duplicate in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(desk)


@pytest.mark.parametrize("trial", [RUNS, RUNS + 7, -1, True, 1.0, math.nan])
def test_one_more_candidate_is_refused(trial: int) -> None:
    with pytest.raises(Refused, match="4 runs of candidates were priced"):
        parts().candidate(run(trial, "another step size"))


def test_a_run_handed_out_serves_no_other_setting_trial_or_division_of_the_records() -> None:
    grant = parts().candidate(run(1))
    GrantedRun(grant, run(1))
    for other in (run(1, "other noise"), run(2), run(1, records="another seed")):
        with pytest.raises(Refused, match="for another run"):
            GrantedRun(grant, other)
    with pytest.raises(Refused, match="needs a grant"):
        GrantedRun(None, run(1))


@pytest.mark.parametrize("first", ["candidate", "reported"])
def test_the_records_are_divided_once(first: str) -> None:
    """Divided anew, a record that trained one candidate could score another."""
    desk = parts()
    getattr(desk, first)(run(0))
    for other in (desk.candidate, desk.reported):
        with pytest.raises(Refused, match="divided in another way"):
            other(run(1, records="another seed"))


def test_a_run_s_gate_gets_its_records_once_and_under_the_admitted_terms() -> None:
    grant = parts().candidate(run(0))
    using = GrantedRun(grant, run(0))
    using.train(PLAN, admitted(grant))
    with pytest.raises(Refused, match="one is paid for"):
        using.train(PLAN, admitted(grant))


Changed = Callable[[Grant], tuple[Plan, list[Admitted]]]
OTHER_TERMS: dict[str, Changed] = {
    "less noise": lambda grant: (
        PLAN,
        admitted(grant._replace(noise=(grant.noise[0], 0.9 * grant.noise[1]))),
    ),
    "no noise": lambda grant: (PLAN, admitted(grant._replace(noise=(grant.noise[0], 0.0)))),
    "more rounds": lambda grant: (PLAN, admitted(grant, (range(10), range(6)))),
    "other batches": lambda grant: (
        Plan(((Ask(Poisson(0.5), (QueryShape("gradient", 1, 1.0),)),),) * 10),
        admitted(grant),
    ),
    "another ratio": lambda grant: (
        Plan(((Ask(FULL, (QueryShape("gradient", 1, 0.9),)),),) * 10),
        admitted(grant),
    ),
}


@pytest.mark.parametrize("way", OTHER_TERMS)
def test_a_plan_or_noise_that_was_not_priced_gets_no_records(way: str) -> None:
    grant = parts().candidate(run(0))
    using = GrantedRun(grant, run(0))
    with pytest.raises(Refused, match=r"silo '[ab]': this is not the plan, at the noise, that was priced"):
        using.train(*OTHER_TERMS[way](grant))
    with pytest.raises(Refused, match="one is paid for"):
        using.train(PLAN, admitted(grant))


def test_a_silo_that_answers_nothing_needs_no_noise_of_its_own() -> None:
    desk = Parts([[PLAN.census()], [()]], SILOS, Limits())
    grant = desk.candidate(run(0))
    assert grant.noise[1] == 0
    free = grant._replace(noise=(grant.noise[0], 1.0))
    GrantedRun(grant, run(0)).train(PLAN, admitted(free, (range(10), range(0))))


def test_a_second_score_is_refused_whatever_the_model() -> None:
    records = [(np.ones((HALF, 3)), np.arange(HALF) % 2) for _ in NAMES]
    grant = parts().candidate(run(0))
    using = GrantedRun(grant, run(0))

    def scorer() -> object:
        entropy = SeededEntropy(0, 0, NAMES, ["run"] * len(NAMES))
        return using.scorer(records, LogisticRegression(3), entropy, Limits(), torch.float64)

    desk = scorer()
    with pytest.raises(Refused, match="one score is paid for"):
        scorer()
    desk.answer(torch.ones(3).double())  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="one is paid for"):
        desk.answer(torch.zeros(3).double())  # type: ignore[attr-defined]


def test_one_setting_is_reported_once_in_each_trial() -> None:
    desk = parts()
    desk.candidate(run(0, "tuned"))
    grants = [desk.reported(run(trial, "chosen")) for trial in (4, 5)]
    assert [grant.part for grant in grants] == ["reported"] * 2
    with pytest.raises(Refused, match="another setting is reported"):
        desk.reported(run(6, "a second reported run"))
    with pytest.raises(Refused, match="once is paid for"):
        desk.reported(run(5, "chosen"))


def test_a_reported_run_has_one_gate_and_no_score() -> None:
    using = GrantedRun(parts().reported(run(4)), run(4))
    using.train(PLAN, [])
    with pytest.raises(Refused, match="one is paid for"):
        using.train(PLAN, [])
    with pytest.raises(Refused, match="only a candidate's run is scored"):
        using.scorer([], LogisticRegression(3), SeededEntropy(0, 0, (), ()), Limits(), torch.float64)


def test_what_is_counted_is_what_was_admitted() -> None:
    with pytest.raises(Refused, match="runs to choose from"):
        Parts([[PLAN.census()] * 9], [SelectionTerms("a", HALF, 0.01, 1e-9)], Limits(max_noise_multiplier=10))
