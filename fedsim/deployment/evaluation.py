"""The evaluation after a deployed run: a second run, of one round, of the records that silos hold out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from fedsim.algorithms.registry import EVALUATION
from fedsim.deployment.history import Evaluation, admitted_of
from fedsim.deployment.offers import offers_of
from fedsim.deployment.secure_aggregation import contexts_of, link_to, reports_of
from fedsim.measure.estimates import estimates
from fedsim.report.sections.evaluation import Evaluated
from fedsim.scenario.evaluation import evaluation_of
from fedsim.scenario.resolve import Resolved
from fedsim.secagg.roster import Roster
from fedsim.wire.messages import Admission, Offer
from server.checkpoint import Checkpoint
from server.federation import RemoteSilos
from server.loop import run
from server.replies import Form
from server.secure_aggregation import KeptRequest, ShufflerClient


class Evaluating(NamedTuple):
    """An evaluation as a run, and what silos are offered."""

    resolved: Resolved
    offers: Mapping[str, Offer]

    def admitted(self, admissions: Mapping[str, Admission]) -> Evaluation:
        """What is known of it before it is answered: what it costs at most, and the offers' files."""
        terms = [admitted_of(self.resolved, offer, admissions[name]) for name, offer in self.offers.items()]
        files = {f"{EVALUATION}/{name}": offer for name, offer in self.offers.items()}
        return Evaluation(admitted=terms, offers=files)


def offered_with(
    resolved: Resolved, offers: Mapping[str, Offer], roster: Roster | None
) -> tuple[Evaluating, dict[str, Offer]]:
    """The evaluation of a run, and the run's offers with it. Refused if a silo cannot afford it."""
    evaluation = evaluation_of(resolved)
    session = next(iter(offers.values())).session
    asked = offers_of(evaluation, session, _everyone(evaluation), roster)
    both = {name: offer.with_evaluation(asked[name]) for name, offer in offers.items()}
    made = {name: own for name, offer in both.items() if (own := offer.evaluated) is not None}
    return Evaluating(evaluation, made), both


def _everyone(evaluation: Resolved) -> list[list[int]]:
    return [list(range(len(evaluation.names)))]


def evaluated(
    asks: Evaluating,
    admissions: Mapping[str, Admission],
    model: Tensor,
    checkpoint: Checkpoint,
    silos: RemoteSilos,
    shuffler: ShufflerClient | None,
) -> Evaluation:
    """Evaluate the model of a run that is closed, (d,), by what all of its silos admitted before it began.

    The run's checkpoint keeps the round: what is asked for again is not paid for twice. Refused if too few
    silos answer, some of which may have paid.
    """
    evaluation, known = asks.resolved, asks.admitted(admissions)
    names, admitted = evaluation.names, known.admitted
    contexts = contexts_of(evaluation, asks.offers)
    form = Form(evaluation.trace.messages, evaluation.dtype)
    runs = {name: said.run for name, said in admissions.items()}
    silos.begin(runs, form if contexts is None else reports_of(contexts))
    link, aggregate = link_to(silos, evaluation, contexts, shuffler, KeptRequest(checkpoint.store))
    public = evaluation.public([silo.noise_multiplier for silo in admitted])
    asked = evaluation.algorithm, evaluation.problem, public, evaluation.scenario.seed, link
    *_, last = run(*asked, _everyone(evaluation), aggregate, checkpoint, model)
    closed, missing = silos.close()
    assert last.last is not None
    there = last.last.members  # others were absent, and an aggregate makes up for them
    records = sum(evaluation.sizes[member] for member in there)
    share = len(there) / len(names) * sum(evaluation.sizes) / records
    found = estimates(evaluation, [admitted[member] for member in there], last.answer * share, records)
    rows = [Evaluated(0, name, *one, one.too_few) for name, one in found.items()]
    receipts = {f"{EVALUATION}/{name}": each.receipt for name, each in closed.items()}
    why = [f"silo {name} gave no statement of the evaluation: {reason}" for name, reason in missing.items()]
    return known._replace(rows=rows, receipts=receipts, remarks=why)
