"""A scenario run between organisations: the server's side, whatever carries its frames."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from fedsim.common.errors import Refused
from fedsim.common.files import check_free
from fedsim.common.process import one_thread
from fedsim.deployment import secure_aggregation as sums
from fedsim.deployment.evaluation import evaluated
from fedsim.deployment.federation_file import ROOT, Federation, read_heads, write_heads
from fedsim.deployment.history import Evaluation, Gauges, History, Step
from fedsim.deployment.joining import Joining, Plan, Say, keep, offers_beside
from fedsim.deployment.offers import deployable
from fedsim.protocol.links import Link
from fedsim.report.outcome import Outcome
from fedsim.report.page import save
from fedsim.report.trackers import open_trackers
from fedsim.scenario.model import Scenario
from fedsim.wire.messages import Offer
from fedsim.wire.metrics import exposed
from server.checkpoint import Checkpoint
from server.federation import Channel, RemoteSilos
from server.loop import Aggregate, run
from server.secure_aggregation import KeptRequest

Observe = Callable[[Step], None]


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

    Silos of the federation must greet and admit their offers, `federation.min_silos` of them
    (`fedsim.deployment.joining`); after that a silo may be absent from rounds.
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
    with one_thread(), ExitStack() as stack:
        server = _Server(stack, scenario, federation, channel, shuffler, path, resume, say)
        outcome, offers = server.trained(observe, began)
    save(outcome, place)
    keep(offers, place / "offers")
    shutil.rmtree(offers_beside(path), ignore_errors=True)
    path.unlink()
    server.trackers.finish(outcome)
    return outcome


def checkpoint_of(place: Path) -> Path:
    """Where the rounds of a run are kept until its directory is there."""
    return place.with_name(f"{place.name}.checkpoint")


class _Server:
    """The server of one run: what it has open until `stack` is closed, and the rounds."""

    def __init__(
        self,
        stack: ExitStack,
        scenario: Scenario,
        federation: Federation,
        channel: Channel,
        shuffler: Channel | None,
        path: Path,
        resume: bool,
        say: Say,
    ) -> None:
        scenario, self._remarks = deployable(scenario)
        scenario, self._roster = sums.with_roster(scenario, federation)
        self.trackers, self._gauges = open_trackers(scenario.report.trackers, False, say), Gauges()
        old = stack.enter_context(closing(Checkpoint.open(path))) if resume else None
        if old is None:
            Checkpoint.check_free(path)
        heads = read_heads(federation.heads)
        if old is not None:
            old.heads.update(heads | old.heads)  # its own are newer, and it may lack those of other silos
            heads = old.heads
        client = sums.shuffler_client(federation, self._roster, heads, shuffler)
        self._shuffler = stack.enter_context(client)
        stack.callback(write_heads, federation.heads, heads)
        stack.enter_context(exposed(federation.metrics, f"{ROOT}.metrics", self._gauges.read))
        known = federation.identities, federation.deadline, federation.min_silos, federation.patience
        self._silos, self._test = RemoteSilos(channel, *known, heads, say), federation.test
        joining = Joining(scenario, federation, self._roster, self._silos, path, say)
        self._plan, self._checkpoint = joining.decided(old)
        stack.callback(self._checkpoint.close)

    def trained(self, observe: Observe, began: float) -> tuple[Outcome, Mapping[str, Offer]]:
        """Play the rounds, close the run and evaluate its model: the outcome, and all that was offered."""
        plan, checkpoint, silos = self._plan, self._checkpoint, self._silos
        resolved, request = plan.resolved, KeptRequest(checkpoint.log)
        ended = checkpoint.rounds
        history = History(resolved, plan.offers, checkpoint, plan.evaluate, silos, self._test)
        self.trackers.start(resolved)
        way = sums.link_to(silos, resolved, plan.contexts, self._shuffler, request)
        for step in _rounds(plan, history, way, checkpoint):
            self._gauges.add(step)
            if step.rounds >= ended:
                observe(step)
            if step.measurement is not None:
                self.trackers.measured(step.measurement)
        closed, unstated = silos.close()
        remarks, evaluation = [*self._remarks, *sums.remarks_of(self._roster)], Evaluation()
        if resolved.scenario.evaluate is not None:
            with _resumable():
                asked = history.model, checkpoint, silos, self._roster, self._shuffler
                evaluation = evaluated(resolved, *asked)
        seconds = time.perf_counter() - began
        outcome = history.outcome(closed, unstated, remarks, seconds, evaluation)
        return outcome, {**plan.offers, **evaluation.offers}


def _rounds(plan: Plan, history: History, way: tuple[Link, Aggregate], kept: Checkpoint) -> Iterator[Step]:
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
