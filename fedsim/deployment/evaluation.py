"""The evaluation after a deployed run: a second run, of one round, of the records that silos hold out."""

from __future__ import annotations

import hashlib

from torch import Tensor

from fedsim.algorithms.registry import EVALUATION
from fedsim.common.errors import Refused
from fedsim.deployment.history import Evaluation, admitted_of
from fedsim.deployment.offers import offers_of
from fedsim.deployment.secure_aggregation import contexts_of, link_to, reports_of
from fedsim.measure.estimates import estimates
from fedsim.report.sections.evaluation import Evaluated
from fedsim.scenario.evaluation import evaluation_of
from fedsim.scenario.resolve import Resolved
from fedsim.secagg.roster import Roster
from server.checkpoint import Checkpoint
from server.federation import RemoteSilos
from server.loop import run
from server.replies import Form
from server.secure_aggregation import KeptRequest, ShufflerClient


def evaluated(
    resolved: Resolved,
    model: Tensor,
    checkpoint: Checkpoint,
    silos: RemoteSilos,
    roster: Roster | None,
    shuffler: ShufflerClient | None,
) -> Evaluation:
    """Evaluate the model of a run that is closed, (d,).

    All silos of the run must admit it: where they do not, nothing of it is released, and a remark says why.
    Its session follows from that of the run, and the run's checkpoint keeps admissions and round: a run that
    is resumed asks for nothing twice. Refused if too few silos answer, some of which may have paid.
    """
    evaluation = evaluation_of(resolved)
    names, everyone = evaluation.names, [list(range(len(evaluation.names)))]
    session = hashlib.sha256(f"{checkpoint.run.session} evaluation".encode()).hexdigest()
    try:
        offered = offers_of(evaluation, session, everyone, roster)
        offers = {name: each.model_copy(update={"records": "holdout"}) for name, each in offered.items()}
        admissions = checkpoint.evaluation(lambda: silos.offer(offers)[0])
    except Refused as refusal:
        return Evaluation(remarks=[f"there is no evaluation: {refusal}"])
    contexts = contexts_of(evaluation, offers)
    form = Form(evaluation.trace.messages, evaluation.dtype)
    runs = {name: said.run for name, said in admissions.items()}
    silos.begin(runs, form if contexts is None else reports_of(contexts))
    link, aggregate = link_to(silos, evaluation, contexts, shuffler, KeptRequest(checkpoint.store))
    admitted = [admitted_of(evaluation, offers[name], admissions[name]) for name in names]
    public = evaluation.public([silo.noise_multiplier for silo in admitted])
    part, seed = evaluation.problem, evaluation.scenario.seed
    *_, last = run(evaluation.algorithm, part, public, seed, link, everyone, aggregate, checkpoint, model)
    closed, missing = silos.close()
    assert last.last is not None
    there = last.last.members  # others were absent, and an aggregate makes up for them
    records = sum(evaluation.sizes[member] for member in there)
    share = len(there) / len(names) * sum(evaluation.sizes) / records
    found = estimates(evaluation, [admitted[member] for member in there], last.answer * share, records)
    rows = [Evaluated(0, name, *one, one.too_few) for name, one in found.items()]
    receipts = {f"{EVALUATION}/{name}": each.receipt for name, each in closed.items()}
    why = [f"silo {name} gave no statement of the evaluation: {reason}" for name, reason in missing.items()]
    return Evaluation(rows, admitted, {f"{EVALUATION}/{name}": offers[name] for name in names}, receipts, why)
