"""A scenario run between organisations: the server's side, whatever carries its frames.

Who takes part is decided once and before round 0. The rule, which is public: the silos that greet within the
deadline, at least `min_silos`, are offered a run of these silos alone, with weights that sum to 1 over them.
A silo that asks for time, since its operator decides, has `patience` for it. Where some refuse, give no reply
within the deadline or do not decide, it is closed, and the others are offered another run, of a session of
its own: at once, so that no operator decides on a run that cannot be. This goes on until all that are offered
a run admit it. No silo joins later. A run that is resumed before that offers the same again, and what
operators approved holds.

Privacy: a silo's guarantee does not depend on who else takes part, where it answers for itself. Its gate
prices the plan that it was offered with its own number of records and adds all of its noise itself; sizes and
weights of others enter neither sensitivity nor noise multiplier, so that a server that names others wrongly
changes the model and no guarantee. Whether a silo joins follows from its policy, its ledger, its connection
and its operator's decision, and when it answers from when the operator decides: none of this is made of
records, unless an operator decides by looking at them. A run that is closed before round 0 has released
nothing and is charged nothing.

With secure aggregation a silo relies on the noise of others. It takes their names and `min_silos` from the
roster that its operator pinned, and refuses an offer of any other set: there all silos of the roster must
join, and may then be absent from rounds down to the roster's `min_silos`.

A run with an evaluation offers both at once, and silos admit both before round 0. An evaluation that is not
answered when the run ends may be asked for later: its round is kept, and the silos' days last.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from fedsim.common.durable import remove_drafts
from fedsim.common.errors import CAN_BEGIN, CAN_RESUME, Behind, InputError, Lost, Refused
from fedsim.common.files import RECORD, atomic_directory, writing
from fedsim.common.notices import apart
from fedsim.common.process import one_thread
from fedsim.deployment import secure_aggregation as sums
from fedsim.deployment.evaluation import Evaluating, evaluated, offered_with
from fedsim.deployment.federation_file import ROOT, Federation, read_heads, write_heads
from fedsim.deployment.history import Evaluation, Gauges, History, Step, public_evaluator
from fedsim.deployment.offers import deployable, digest_of, identities_digest, of_those, offers_of, outline_of
from fedsim.measure.evaluator import Evaluator
from fedsim.report.outcome import NotKept, Outcome, Results
from fedsim.report.page import save
from fedsim.report.record import BEGUN, ENDED, OVER, Begun, Record
from fedsim.report.resume import place_of, state_of
from fedsim.report.trackers import open_trackers
from fedsim.scenario.model import Scenario
from fedsim.scenario.participation import per_silo
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.secagg.agreement import ReportContexts
from fedsim.wire.messages import Admission, Greeting, Offer
from fedsim.wire.metrics import exposed
from server.checkpoint import Checkpoint, RunRecord, expected_bytes
from server.federation import Channel, RemoteSilos, Unanswered
from server.loop import run
from server.participation import Schedule, schedule
from server.replies import Form, shown
from server.secure_aggregation import KeptRequest

Observe = Callable[[Step], None]
Say = Callable[[str], None]
Told = TypeVar("Told")
OFFERS = "offers"  # in the run's directory from the beginning: an operator may be sent his, to try it out


class _Plan(NamedTuple):
    """What silos are asked to admit, and who is asked in each round; with secure aggregation, its reports."""

    resolved: Resolved
    rounds: Schedule
    offers: dict[str, Offer]
    record: RunRecord
    contexts: ReportContexts | None
    evaluate: Evaluator | None  # on the server's public test records, if there are any
    asks: Evaluating | None  # its evaluation on records that silos hold out, if there is one


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

    Silos of the federation must greet and admit their offers, `federation.min_silos` of them (see the
    module); after that a silo may be absent from rounds.
    Its record has the rounds so far, and their aggregates until the run has ended.

    Args:
        scenario: what to run; its data and partition are not opened.
        federation: who takes part.
        channel: carries the frames.
        out: a new directory, or with `resume` that of a run that has not ended, which goes on.
        resume: see `out`; also that of a run that has ended and whose evaluation is outstanding.
        observe: told of every round; with `resume`, of the last one so far and those after it.
        say: told in words what a person should know as it goes.
        shuffler: carries frames to the shuffler; by default a socket, as federation.yaml has it.

    Raises:
        InputError: the scenario asks for what no silo does, a file is wrong or cannot be written, or the
            record is another run's.
        Refused: a silo does not admit the run, or too few answered a round: the rounds so far are kept.
        Lost: too few will ever answer a round; the run is over, and closed at its silos.
    """
    start, place = time.perf_counter(), place_of(out, resume)
    with one_thread(), ExitStack() as stack:
        server = _Server(stack, scenario, federation, channel, shuffler, place, resume, say)
        outcome, offers = server.trained(observe, start)
        with writing(out):
            _keep(offers, place / OFFERS)
            save(outcome, place)
        if not server.later:
            with suppress(OSError):  # it has ended; what is left takes room alone
                server.checkpoint.store.forget()
    server.trackers.finish(outcome)
    return outcome


def give_up(
    scenario: Scenario,
    federation: Federation,
    channel: Channel,
    out: Path,
    say: Say = lambda line: None,
    shuffler: Channel | None = None,
) -> None:
    """Close a run that has not ended, or is over, at its silos; arguments and errors as of `deploy`."""
    if state_of(out) not in ("begun", "over"):
        raise InputError("--give-up", str(out), "holds no run that can be given up")
    with closing(Checkpoint.open(out / RECORD)) as old:
        if not old.admissions:
            hint = "holds a run that not all silos have admitted: remove it; reservations end with run_days"
            raise InputError("--give-up", str(out), hint)
    with ExitStack() as stack:
        server = _Server(stack, scenario, federation, channel, shuffler, out.resolve(), True, say)
        told, all_know = server.give_up()
    if not all_know:
        raise Refused(told)
    say(told)


class _Server:
    """The server of one run: what it has open until `stack` is closed, who takes part, and the rounds."""

    def __init__(
        self,
        stack: ExitStack,
        scenario: Scenario,
        federation: Federation,
        channel: Channel,
        shuffler: Channel | None,
        place: Path,
        resume: bool,
        say: Say,
    ) -> None:
        federation.check_enough()
        scenario, self._remarks = deployable(scenario)
        self._scenario, self._roster = sums.with_roster(scenario, federation)
        self.trackers, self._gauges = open_trackers(scenario.report.trackers, False, say), Gauges()
        self._federation, self._place, self._say = federation, place, say
        old = stack.enter_context(closing(Checkpoint.open(place / RECORD))) if resume else None
        heads = read_heads(federation.heads)
        if old is not None:
            old.heads.update(heads | old.heads)  # its own are newer, and it may lack those of other silos
            heads = old.heads
        self._shuffler = stack.enter_context(sums.shuffler_client(federation, self._roster, heads, shuffler))
        stack.callback(write_heads, federation.heads, heads)
        stack.enter_context(exposed(federation.metrics, f"{ROOT}.metrics", self._gauges.read))
        known = federation.identities, federation.deadline, federation.min_silos, federation.patience
        self._silos = RemoteSilos(channel, *known, heads, say)
        self._least = self._silos.least if self._roster is None else len(self._silos.names)
        self.later = False  # whether its evaluation is to be asked for again
        self._plan, self.checkpoint = self._joined(old)
        stack.callback(self.checkpoint.close)
        remove_drafts(place)  # this process alone is at work in it now

    def trained(self, observe: Observe, began: float) -> tuple[Outcome, Mapping[str, Offer]]:
        """Play the rounds, close the run and evaluate its model: the outcome, and all that was offered."""
        plan, checkpoint, silos = self._plan, self.checkpoint, self._silos
        resolved, ended, test = plan.resolved, checkpoint.rounds, self._federation.test
        results = Results(Record.of(checkpoint.store), self._place)
        history = History(resolved, plan.offers, checkpoint, plan.evaluate, silos, test, results)
        if plan.asks is not None:
            try:
                self._evaluating(plan.asks)
            except Refused as refusal:  # it is offered once more when the run is closed
                self._say(f"the evaluation is not admitted: {refusal}")
        form = Form(resolved.trace.messages, resolved.dtype)
        looks = form if plan.contexts is None else sums.reports_of(plan.contexts)
        silos.begin({name: said.run for name, said in checkpoint.admissions.items()}, looks)
        self.trackers.start(resolved)
        try:
            for step in self._rounds(history):
                self._gauges.add(step)
                if step.rounds >= ended:
                    observe(step)
                if step.measurement is not None:
                    self.trackers.measured(step.measurement)
        except Behind as lost:  # another copy of its record may be further
            raise Behind(f"{lost}; where no newer record is, give the run up (--give-up)") from None
        except Lost as lost:
            raise Lost(f"{lost}; {self.give_up()[0]}") from None
        closed, unstated = silos.close()
        evaluation = Evaluation() if plan.asks is None else self._evaluated(plan.asks, history.model)
        remarks = [*self._remarks, *sums.remarks_of(self._roster)]
        seconds = time.perf_counter() - began
        try:
            outcome = history.outcome(closed, unstated, remarks, seconds, evaluation)
        except NotKept as error:
            hint = f"cannot be written ({error}); {CAN_RESUME}"
            raise InputError("--out", str(self._place), hint) from None
        return outcome, {**plan.offers, **evaluation.offers}

    def give_up(self) -> tuple[str, bool]:
        """Let the run be over, and close it at its silos: rounds that they have not paid for cost nothing.
        What to tell a person of it, and whether all silos know.
        """
        checkpoint = self.checkpoint
        with writing(self._place):  # first: it must not go on once a silo has closed it
            Record.of(checkpoint.store).append(ENDED, [OVER])
        runs = {name: said.run for name, said in checkpoint.admissions.items()}
        self._silos.begin(runs, Form((), torch.float64))
        untold = self._silos.close(over=True)[1]
        told = [f"the run is over, and closed at {len(checkpoint.admissions) - len(untold)} silos"]
        for name, reason in sorted(untold.items()):
            run = checkpoint.admissions[name].run[:_SHORT]
            how = f"--give-up tells it again, or its operator closes run {run}"
            told.append(f"{name} could not be told ({reason}): {how}")
        return "; ".join([*told, "begin a new run in another directory"]), not untold

    def _evaluating(self, asks: Evaluating) -> Mapping[str, Admission]:
        """What all silos have admitted of the evaluation. Refused if one does not: it is closed then;
        Unanswered if one gave no answer.
        """
        self._silos.begin({}, Form((), torch.float64))  # what `offer` closes is not the run itself
        return self.checkpoint.evaluation(lambda: self._silos.offer(asks.offers, again=True)[0])

    def _evaluated(self, asks: Evaluating, model: torch.Tensor) -> Evaluation:
        known = Evaluation()
        try:
            admissions = self._evaluating(asks)
            known = asks.admitted(admissions)  # from here on silos may pay
            return evaluated(asks, admissions, model, self.checkpoint, self._silos, self._shuffler)
        except Lost as lost:
            self._silos.close()
            self._remark(f"there is no evaluation: {lost}")
        except Refused as refusal:
            self.later = bool(known.admitted) or isinstance(refusal, Unanswered)
            asked = "there is no evaluation yet" if self.later else "there is no evaluation"
            again = "; it can be asked for again" if self.later else ""
            self._remark(f"{asked}: {refusal}{again}")
        return known

    def _remark(self, line: str) -> None:
        self._remarks.append(line)
        self._say(line)

    def _rounds(self, history: History) -> Iterator[Step]:
        plan, kept, resolved = self._plan, self.checkpoint, self._plan.resolved
        request = KeptRequest(kept.store)
        link, aggregate = sums.link_to(self._silos, resolved, plan.contexts, self._shuffler, request)
        public = resolved.public([kept.admissions[name].noise_multiplier for name in resolved.names])
        asked = resolved.gate_algorithm, resolved.problem, public, resolved.scenario.seed
        with _resumable():
            for progress in run(*asked, link, plan.rounds, aggregate, kept):
                yield history.add(progress)

    def _joined(self, old: Checkpoint | None) -> tuple[_Plan, Checkpoint]:
        """The run that all of its silos admit; the admissions are in the checkpoint then.

        Raises:
            Refused: too few join; the checkpoint is removed, since nothing has been released.
            InputError: the checkpoint `old` is of another run.
        """
        session, checkpoint = (old.run.session if old else secrets.token_hex(32)), old
        greetings, absent = (old.run.greetings, old.run.absent) if old else self._greeted()
        while True:
            self._silos.keep(greetings)
            plan = self._planned(greetings, absent, session)
            if checkpoint is None:
                checkpoint = Checkpoint.create(self._place / RECORD, plan.record, self._silos.heads)
                with writing(self._place):
                    Record.of(checkpoint.store).append(BEGUN, [Begun("deployment")])
            elif checkpoint.run != plan.record:
                hint = "is of another scenario or another federation"
                raise InputError("record", str(checkpoint.store.path), hint)
            refused = {} if checkpoint.admissions else self._offered(plan, checkpoint)
            if not refused:
                if checkpoint.rounds == 0:
                    size = _size(expected_bytes(Form(plan.resolved.trace.messages, plan.resolved.dtype)))
                    self._say(f"record {checkpoint.store.path}: at most about {size} until the run has ended")
                return plan, checkpoint
            self._say_absent(refused)
            greetings = {name: said for name, said in greetings.items() if name not in refused}
            absent, session, checkpoint = {**absent, **refused}, secrets.token_hex(32), None

    def _greeted(self) -> tuple[dict[str, Greeting], dict[str, str]]:
        greetings, absent = self._all_if_summed(self._silos.hello)
        self._say_absent(absent)
        for name, said in sorted(greetings.items()):
            ahead = said.time and said.time - time.time()
            away = apart("its ledger's time", ahead, "this server's clock")
            for line in (*said.notices, *away):
                self._say(f"silo {name}: {shown(line)}")
        return greetings, absent

    def _planned(self, greetings: Mapping[str, Greeting], absent: Mapping[str, str], session: str) -> _Plan:
        scenario, federation = self._scenario, self._federation
        outline, own = outline_of(greetings), of_those(scenario, list(federation.silos), greetings)
        update = dict[str, Any]()
        if own.privacy.expected_persons is not None:  # what stands for their persons the silos have declared
            update["expected_persons"] = outline.sizes
        if public := {name for name, said in greetings.items() if said.public}:
            budgets: Any = per_silo("scenario.privacy.epsilon", own.privacy.epsilon, sorted(greetings))
            pairs = zip(sorted(greetings), budgets, strict=True)
            update["epsilon"] = {name: "public" if name in public else each for name, each in pairs}
        own = own.model_copy(update={"privacy": own.privacy.model_copy(update=update)})
        resolved = resolve(own, outline)
        rounds = schedule(len(resolved.names), resolved.active, resolved.trace.holds, scenario.seed, 0)
        offers, asks = offers_of(resolved, session, rounds, self._roster), None
        if scenario.evaluate is not None:
            try:
                asks, offers = offered_with(resolved, offers, self._roster)
            except Refused as refusal:
                self._remark(f"there is no evaluation: {refusal}")
        record = RunRecord(
            session=session,
            scenario=digest_of(offers, rounds, scenario.evaluate),
            federation=identities_digest(federation.identities),
            greetings=dict(greetings),
            absent=dict(absent),
        )
        evaluate = None if federation.test is None else public_evaluator(federation.test, resolved)
        return _Plan(resolved, rounds, offers, record, sums.contexts_of(resolved, offers), evaluate, asks)

    def _offered(self, plan: _Plan, checkpoint: Checkpoint) -> Mapping[str, str]:
        """Offer a run. Its checkpoint has the admissions where all admit it, and is removed where some do
        not; the reasons of these.
        """
        try:
            with writing(self._place):
                _keep(plan.offers, self._place / OFFERS)
            admissions, refused = self._all_if_summed(partial(self._silos.offer, plan.offers))
        except Refused:
            self._give_up(checkpoint)
            raise
        except BaseException:
            checkpoint.close()  # another process may resume it, while this one lives
            raise
        if refused:
            self._give_up(checkpoint)
        else:
            checkpoint.admit(admissions)
        return refused

    def _give_up(self, checkpoint: Checkpoint) -> None:
        """Leave nothing: nothing has been released, so there is nothing to resume."""
        shutil.rmtree(self._place / OFFERS)
        checkpoint.remove()

    def _all_if_summed(self, ask: Callable[[int], Told]) -> Told:
        """Ask silos to join; with secure aggregation the error says why none may be missing."""
        try:
            return ask(self._least)
        except Refused as refusal:
            told = str(refusal)
            if self._roster is not None:
                why = "all silos of the roster must join, since each relies on their noise"
                told += f"; with secure aggregation {why}"
            if isinstance(refusal, Unanswered):
                told += f"; {CAN_BEGIN}"
            raise Refused(told) from None

    def _say_absent(self, absent: Mapping[str, str]) -> None:
        for name, reason in sorted(absent.items()):
            self._say(f"silo {name} takes no part in this run: {reason}")


def _keep(offers: Mapping[str, Offer], folder: Path) -> None:
    """Write each silo's offers, in the place of earlier ones; the silo's receipt has the file's SHA-256."""
    shutil.rmtree(folder, ignore_errors=True)
    with atomic_directory(folder) as draft:
        for name, offer in offers.items():
            (draft / name).parent.mkdir(exist_ok=True)
            (draft / f"{name}.json").write_text(offer.text)


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}"
        count //= 1000
    return f"{count:,} GB"


_SHORT = 8  # digits of a run's id that stand for it


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except Lost:
        raise
    except Refused as refusal:
        raise Refused(f"{refusal}; {CAN_RESUME}") from None
