"""A scenario run between organisations: the server's side, whatever carries its frames."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from fedsim.common.errors import InputError, Refused
from fedsim.common.files import check_free
from fedsim.common.process import one_thread
from fedsim.deployment.federation_file import Federation, read_heads, write_heads
from fedsim.deployment.history import History, Step, public_evaluator
from fedsim.deployment.offers import deployable, digest_of, identities_digest, offers_of, outline_of
from fedsim.deployment.secure_aggregation import (
    contexts_of,
    link_to,
    remarks_of,
    reports_of,
    shuffler_client,
    with_roster,
)
from fedsim.protocol.links import Link
from fedsim.report.outcome import Outcome
from fedsim.report.page import save
from fedsim.report.trackers import open_trackers
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.secagg.agreement import ReportContexts
from fedsim.secagg.roster import Roster
from fedsim.wire.messages import Admission, Greeting, Offer
from server.checkpoint import Checkpoint, RunRecord, expected_bytes
from server.federation import Channel, RemoteSilos
from server.loop import Aggregate, run
from server.participation import Schedule, schedule
from server.replies import Form
from server.secure_aggregation import KeptRequest

Observe = Callable[[Step], None]
Say = Callable[[str], None]


class _Plan(NamedTuple):
    """What silos are asked to admit, and who is asked in each round; with secure aggregation, its reports."""

    resolved: Resolved
    rounds: Schedule
    offers: dict[str, Offer]
    record: RunRecord
    contexts: ReportContexts | None


def deploy(
    scenario: Scenario,
    federation: Federation,
    channel: Channel,
    out: Path,
    resume: bool = False,
    observe: Observe = lambda step: None,
    say: Say = lambda line: None,
    shuffler: Channel | None = None,
) -> Outcome:
    """Train a model with the silos behind a channel, and write its run directory.

    Every silo of the federation must greet and admit its offer; after that a silo may be absent from rounds.
    Until the run directory is written, a file beside it has the rounds so far (`checkpoint_of`).

    Args:
        scenario: what to run; its data and partition are not opened.
        federation: who takes part.
        channel: carries the frames.
        out: a new directory.
        resume: go on with the run that did not end there.
        observe: told of every round.
        say: told in words what a person should know as it goes.
        shuffler: carries frames to the shuffler; by default a socket, as federation.yaml has it.

    Raises:
        InputError: the scenario asks for what no silo does, a file is wrong, or the checkpoint is another
            run's.
        Refused: a silo does not admit the run, or too few answered a round: the rounds so far are kept.
    """
    began, place = time.perf_counter(), check_free(out)
    path = checkpoint_of(place)
    scenario, remarks = deployable(scenario)
    scenario, roster = with_roster(scenario, federation)
    trackers = open_trackers(scenario.report.trackers, False, say)
    with one_thread(), ExitStack() as stack:
        old = stack.enter_context(closing(Checkpoint.open(path))) if resume else None
        if old is None:
            Checkpoint.check_free(path)
        heads = read_heads(federation.heads)
        if old is not None:
            old.heads.update(heads | old.heads)  # its own are newer, and it may lack those of other silos
            heads = old.heads
        other = stack.enter_context(shuffler_client(federation, roster, heads, shuffler))
        stack.callback(write_heads, federation.heads, heads)
        silos = RemoteSilos(
            channel,
            federation.identities,
            federation.deadline,
            federation.min_silos,
            federation.patience,
            heads,
        )
        greetings = silos.hello() if old is None else old.run.greetings
        session = old.run.session if old else secrets.token_hex(32)
        plan = _plan(scenario, federation, greetings, session, roster)
        evaluate = None if federation.test is None else public_evaluator(federation.test, plan.resolved)
        checkpoint = old or stack.enter_context(closing(Checkpoint.create(path, plan.record, heads)))
        if checkpoint.run != plan.record:
            raise InputError("checkpoint", str(path), "is of another scenario or another federation")
        admissions = _admitted(plan, silos, checkpoint, path, say)
        history = History(plan.resolved, plan.offers, greetings, admissions, evaluate, silos)
        trackers.start(plan.resolved)
        way = link_to(silos, plan.resolved, plan.contexts, other, KeptRequest(checkpoint.log))
        for step in _rounds(plan, history, way, checkpoint):
            observe(step)
            if step.measurement is not None:
                trackers.measured(step.measurement)
        closed, unstated = silos.close()
        remarks += remarks_of(roster)
        outcome = history.outcome(closed, unstated, remarks, time.perf_counter() - began)
    save(outcome, place)
    path.unlink()
    trackers.finish(outcome)
    return outcome


def checkpoint_of(place: Path) -> Path:
    """Where the rounds of a run are kept until its directory is there."""
    return place.with_name(f"{place.name}.checkpoint")


def _plan(
    scenario: Scenario,
    federation: Federation,
    greetings: Mapping[str, Greeting],
    session: str,
    roster: Roster | None,
) -> _Plan:
    resolved = resolve(scenario, outline_of(greetings))
    rounds = schedule(len(resolved.names), resolved.active, resolved.trace.holds, scenario.seed, 0)
    offers = offers_of(resolved, session, rounds, roster)
    record = RunRecord(
        session=session,
        scenario=digest_of(offers, rounds),
        federation=identities_digest(federation.identities),
        greetings=dict(greetings),
    )
    return _Plan(resolved, rounds, offers, record, contexts_of(resolved, offers))


def _admitted(
    plan: _Plan, silos: RemoteSilos, checkpoint: Checkpoint, path: Path, say: Say
) -> Mapping[str, Admission]:
    """The silos' admissions, which are in the checkpoint before the first round."""
    resolved = plan.resolved
    form = Form(resolved.trace.messages, resolved.problem.dimension, resolved.dtype)
    if not checkpoint.admissions:
        say(f"checkpoint {path}: at most about {_size(expected_bytes(form))}")
        try:
            checkpoint.admit(silos.offer(plan.offers))
        except Refused:
            checkpoint.remove()  # nothing has been released, so there is nothing to resume
            raise
    looks = form if plan.contexts is None else reports_of(plan.contexts)
    silos.begin({name: said.run for name, said in checkpoint.admissions.items()}, looks)
    return checkpoint.admissions


def _rounds(
    plan: _Plan, history: History, way: tuple[Link, Aggregate], checkpoint: Checkpoint
) -> Iterator[Step]:
    resolved, (link, aggregate) = plan.resolved, way
    public = resolved.public([checkpoint.admissions[name].noise_multiplier for name in resolved.names])
    seed, problem = resolved.scenario.seed, resolved.problem
    try:
        for progress in run(
            resolved.algorithm, problem, public, seed, link, plan.rounds, aggregate, checkpoint
        ):
            yield history.add(progress)
    except Refused as refusal:
        raise Refused(f"{refusal}; the rounds so far are kept, so that the run can be resumed") from None


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}"
        count //= 1000
    return f"{count:,} GB"
