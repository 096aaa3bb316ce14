"""What a silo spent is one number, in the table, in the curves, and where nothing is known of it."""

from support.scenarios import SMALL

import fedsim
from fedsim.api.given import one_run, resolved_of
from fedsim.results.outcome import Outcome, Results
from fedsim.results.run_directory import data_of
from fedsim.simulation.host import preview

SOME = {"participation": {"name": "availability", "probability": 0.5}, "trials": 4}


def test_the_curves_end_where_the_table_says() -> None:
    run = fedsim.simulate(SMALL | SOME, progress=False)
    last = {row["silo"]: row["epsilon_spent"] for row in run.spend}
    assert last == {silo.name: silo.epsilon_spent for silo in run.summary.privacy.silos}
    firsts = [row for row in run.ledger if row["trial"] == 0]
    counts = {silo.name: silo.rounds for silo in run.summary.privacy.silos}
    assert counts != {name: sum(row["silo"] == name for row in firsts) for name in counts}  # not the first's


def test_an_interrupted_run_without_a_trial_does_not_claim_to_have_spent_its_plan() -> None:
    resolved = resolved_of(one_run(SMALL))
    outcome = Outcome(resolved, Results(), 1.0, interrupted=True, admitted=preview(resolved))
    privacy = data_of(outcome).summary.privacy
    assert [silo.name for silo in privacy.silos] == ["silo-00", "silo-01", "silo-02"]
    assert all(silo.epsilon_guaranteed is not None for silo in privacy.silos)
    assert all(not {"epsilon_spent", "rounds"} & silo.model_fields_set for silo in privacy.silos)
    assert "what was spent is not known" in privacy.epsilon_spent_note
