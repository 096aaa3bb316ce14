"""A scenario run between organisations: the server's side, whatever carries its frames."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedsim.common.errors import InputError, Refused
from fedsim.common.files import atomic_directory, check_free
from fedsim.common.process import one_thread
from fedsim.deployment import secure_aggregation as sums
from fedsim.deployment.evaluation import evaluated
from fedsim.deployment.federation_file import ROOT, Federation, read_heads, write_heads
from fedsim.deployment.history import Evaluation, Gauges, History, Step, public_evaluator
from fedsim.deployment.offers import deployable, digest_of, identities_digest, of_those, offers_of, outline_of
from fedsim.measure.evaluator import Evaluator
from fedsim.protocol.links import Link
from fedsim.report.outcome import Outcome
from fedsim.report.page import save
from fedsim.report.trackers import open_trackers
from fedsim.scenario.model import Scenario
from fedsim.scenario.participation import per_silo
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.secagg.agreement import ReportContexts
from fedsim.secagg.roster import Roster
from fedsim.wire.messages import Greeting, Offer
from fedsim.wire.metrics import exposed
from server.checkpoint import Checkpoint, RunRecord, expected_bytes
from server.federation import Channel, RemoteSilos
from server.loop import Aggregate, run
from server.participation import Schedule, schedule
from server.replies import Form, shown
from server.secure_aggregation import KeptRequest

Observe = Callable[[Step], None]
Say = Callable[[str], None]
Told = TypeVar("Told")


class _Plan(NamedTuple):
    """What silos are asked to admit, and who is asked in each round; with secure aggregation, its reports."""

    resolved: Resolved
    rounds: Schedule
    offers: dict[str, Offer]
    record: RunRecord
    contexts: ReportContexts | None
    evaluate: Evaluator | None  # on the server's public test records, if there are any


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

    Silos of the federation must greet and admit their offers, `federation.min_silos` of them (`_joined`);
    after that a silo may be absent from rounds.
    Until the run directory is written, a file beside it has the rounds so far (`checkpoint_of`).

    Args:
        scenario: what to run; its data and partition are not opened.
        federation: who takes part.
        channel: carries the frames.
        out: a new directory.
        resume: go on with the run that did not end there.
        observe: told of every round; with `resume`, of the last one so far and those after it.
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
    scenario, roster = sums.with_roster(scenario, federation)
    trackers = open_trackers(scenario.report.trackers, False, say)
    with one_thread(), ExitStack() as stack:
        old = stack.enter_context(closing(Checkpoint.open(path))) if resume else None
        if old is None:
            Checkpoint.check_free(path)
        heads = read_heads(federation.heads)
        if old is not None:
            old.heads.update(heads | old.heads)  # its own are newer, and it may lack those of other silos
            heads = old.heads
        other = stack.enter_context(sums.shuffler_client(federation, roster, heads, shuffler))
        stack.callback(write_heads, federation.heads, heads)
        gauges = Gauges()
        stack.enter_context(exposed(federation.metrics, f"{ROOT}.metrics", gauges.read))
        known = federation.identities, federation.deadline, federation.min_silos, federation.patience
        silos = RemoteSilos(channel, *known, heads, say)
        plan, checkpoint = _joined(scenario, federation, roster, silos, old, path, say)
        stack.callback(checkpoint.close)
        ended = checkpoint.rounds
        history = History(plan.resolved, plan.offers, checkpoint, plan.evaluate, silos, federation.test)
        trackers.start(plan.resolved)
        way = sums.link_to(silos, plan.resolved, plan.contexts, other, KeptRequest(checkpoint.log))
        for step in _rounds(plan, history, way, checkpoint):
            gauges.add(step)
            if step.rounds >= ended:
                observe(step)
            if step.measurement is not None:
                trackers.measured(step.measurement)
        closed, unstated = silos.close()
        remarks += sums.remarks_of(roster)
        evaluation = Evaluation()
        if scenario.evaluate is not None:
            with _resumable():
                evaluation = evaluated(plan.resolved, history.model, checkpoint, silos, roster, other)
        outcome = history.outcome(closed, unstated, remarks, time.perf_counter() - began, evaluation)
    save(outcome, place)
    _keep({**plan.offers, **evaluation.offers}, place / "offers")
    shutil.rmtree(_offers_beside(path), ignore_errors=True)
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
    absent: Mapping[str, str],
    session: str,
    roster: Roster | None,
) -> _Plan:
    outline, own = outline_of(greetings), of_those(scenario, list(federation.silos), greetings)
    if own.privacy.unit.one_sided:  # what stands for their persons the silos have declared
        privacy = own.privacy.model_copy(update={"expected_persons": outline.sizes})
        own = own.model_copy(update={"privacy": privacy})
    if public := {name for name, said in greetings.items() if said.public}:
        budgets: Any = per_silo("scenario.privacy.epsilon", own.privacy.epsilon, sorted(greetings))
        epsilon = {n: "public" if n in public else e for n, e in zip(sorted(greetings), budgets, strict=True)}
        own = own.model_copy(update={"privacy": own.privacy.model_copy(update={"epsilon": epsilon})})
    resolved = resolve(own, outline)
    rounds = schedule(len(resolved.names), resolved.active, resolved.trace.holds, scenario.seed, 0)
    offers = offers_of(resolved, session, rounds, roster)
    record = RunRecord(
        session=session,
        scenario=digest_of(offers, rounds, scenario.evaluate),
        federation=identities_digest(federation.identities),
        greetings=dict(greetings),
        absent=dict(absent),
    )
    evaluate = None if federation.test is None else public_evaluator(federation.test, resolved)
    return _Plan(resolved, rounds, offers, record, sums.contexts_of(resolved, offers), evaluate)


def _joined(
    scenario: Scenario,
    federation: Federation,
    roster: Roster | None,
    silos: RemoteSilos,
    old: Checkpoint | None,
    path: Path,
    say: Say,
) -> tuple[_Plan, Checkpoint]:
    """Decide who takes part, once and before round 0; the admissions are in the checkpoint then.

    The rule, which is public: the silos that greet within the deadline, at least `min_silos`, are offered a
    run of these silos alone, with weights that sum to 1 over them. A silo that asks for time, since its
    operator decides, has `patience` for it. Where some refuse, give no reply within the deadline or do not
    decide, it is closed, and the others are offered another run, of a session of its own: at once, so that no
    operator decides on a run that cannot be. This goes on until all that are offered a run admit it. No silo
    joins later. A run that is resumed before that offers the same again, and what operators approved holds.

    Privacy: a silo's guarantee does not depend on who else takes part, where it answers for itself. Its gate
    prices the plan that it was offered with its own number of records and adds all of its noise itself;
    sizes and weights of others enter neither sensitivity nor noise multiplier, so that a server that names
    others wrongly changes the model and no guarantee. Whether a silo joins follows from its policy, its
    ledger, its connection and its operator's decision, and when it answers from when the operator decides:
    none of this is made of records, unless an operator decides by looking at them. A run that is closed
    before round 0 has released nothing and is charged nothing.

    With secure aggregation a silo relies on the noise of others. It takes their names and `min_silos` from
    the roster that its operator pinned, and refuses an offer of any other set: there all silos of the roster
    must join, and may then be absent from rounds down to the roster's `min_silos`.

    Raises:
        Refused: too few join; the checkpoint is removed, since nothing has been released.
        InputError: the checkpoint `old` is of another run.
    """
    least = silos.least if roster is None else len(silos.names)
    session, checkpoint = (old.run.session if old else secrets.token_hex(32)), old
    if old is None:
        greetings, absent = _all_if_summed(roster, silos.hello, least)
        _say_absent(absent, say)
        for name, said in sorted(greetings.items()):
            for line in said.notices:
                say(f"silo {name}: {shown(line)}")
    else:
        greetings, absent = old.run.greetings, old.run.absent
    while True:
        silos.keep(greetings)
        plan = _plan(scenario, federation, greetings, absent, session, roster)
        if checkpoint is None:
            checkpoint = Checkpoint.create(path, plan.record, silos.heads)
        elif checkpoint.run != plan.record:
            raise InputError("checkpoint", str(path), "is of another scenario or another federation")
        form = Form(plan.resolved.trace.messages, plan.resolved.dtype)
        refused = {} if checkpoint.admissions else _offered(plan, silos, checkpoint, path, least, roster)
        if not refused:
            if checkpoint.rounds == 0:
                say(f"checkpoint {path}: at most about {_size(expected_bytes(form))}")
            looks = form if plan.contexts is None else sums.reports_of(plan.contexts)
            silos.begin({name: said.run for name, said in checkpoint.admissions.items()}, looks)
            return plan, checkpoint
        _say_absent(refused, say)
        greetings = {name: said for name, said in greetings.items() if name not in refused}
        absent, session, checkpoint = {**absent, **refused}, secrets.token_hex(32), None


def _offers_beside(checkpoint: Path) -> Path:
    """The folder of the offers of a run that has not ended, which an operator may be sent to try out."""
    return checkpoint.with_suffix(".offers")


def _keep(offers: Mapping[str, Offer], folder: Path) -> None:
    """Write each silo's offers, in the place of earlier ones; the silo's receipt has the file's SHA-256."""
    shutil.rmtree(folder, ignore_errors=True)
    with atomic_directory(folder) as draft:
        for name, offer in offers.items():
            (draft / name).parent.mkdir(exist_ok=True)
            (draft / f"{name}.json").write_text(offer.text)


def _offered(
    plan: _Plan, silos: RemoteSilos, checkpoint: Checkpoint, path: Path, least: int, roster: Roster | None
) -> Mapping[str, str]:
    """Offer a run. Its checkpoint has the admissions where all admit it, and is removed where some do not;
    the reasons of these.
    """
    _keep(plan.offers, _offers_beside(path))
    try:
        admissions, refused = _all_if_summed(roster, partial(silos.offer, plan.offers), least)
    except Refused:
        checkpoint.remove()  # nothing has been released, so there is nothing to resume
        shutil.rmtree(_offers_beside(path))
        raise
    except BaseException:
        checkpoint.close()  # another process may resume it, while this one lives
        raise
    if refused:
        checkpoint.remove()
    else:
        checkpoint.admit(admissions)
    return refused


def _all_if_summed(roster: Roster | None, ask: Callable[[int], Told], least: int) -> Told:
    """Ask silos to join; with secure aggregation the error says why none may be missing."""
    try:
        return ask(least)
    except Refused as refusal:
        if roster is None:
            raise
        why = "with secure aggregation all silos of the roster must join, since each relies on their noise"
        raise Refused(f"{refusal}; {why}") from None


def _say_absent(absent: Mapping[str, str], say: Say) -> None:
    for name, reason in sorted(absent.items()):
        say(f"silo {name} takes no part in this run: {reason}")


def _rounds(plan: _Plan, history: History, way: tuple[Link, Aggregate], kept: Checkpoint) -> Iterator[Step]:
    resolved, (link, aggregate) = plan.resolved, way
    public = resolved.public([kept.admissions[name].noise_multiplier for name in resolved.names])
    asked = resolved.served, resolved.problem, public, resolved.scenario.seed
    with _resumable():
        for progress in run(*asked, link, plan.rounds, aggregate, kept):
            yield history.add(progress)


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except Refused as refusal:
        raise Refused(f"{refusal}; the rounds so far are kept, so that the run can be resumed") from None


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}"
        count //= 1000
    return f"{count:,} GB"
