"""The history of a deployed run as its server sees it, measured on the server's own public test records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedsim.common import installed
from fedsim.common.errors import InputError, Refused
from fedsim.data.dataset import Dataset, Elsewhere
from fedsim.data.federation import SiloSplit
from fedsim.data.prepare import prepare
from fedsim.data.recipe import Fitted, declared_recipe
from fedsim.deployment.offers import NO_TEST, UNMEASURED
from fedsim.measure.baselines import constant
from fedsim.measure.evaluator import Evaluator
from fedsim.measure.metrics import asked_of
from fedsim.protocol.plan import Admitted, Statement, Terms
from fedsim.report.outcome import Outcome, Results, TrialResult, value
from fedsim.report.record import AskedSilo, Measurement
from fedsim.report.sections.evaluation import Evaluated
from fedsim.report.sections.training import ChosenClip
from fedsim.report.summary import Deployment
from fedsim.scenario.metric import METRICS
from fedsim.scenario.resolve import Resolved
from fedsim.wire.messages import Admission, Closed, Offer
from fedsim.wire.metrics import Metric, info, single
from server.checkpoint import Checkpoint
from server.federation import NOT_ASKED, RemoteSilos
from server.loop import Progress
from server.replies import shown


class Step(NamedTuple):
    """Progress of a deployed run."""

    rounds: int  # that have ended
    of: int  # all rounds
    answered: int  # silos that answered the last one; 0 before the first
    left_out: Mapping[str, str]  # those that did not, by name, and why
    measurement: Measurement | None  # of the model, on public test records; None where it was not measured
    metric: str = "error"  # which of its numbers is shown


class Gauges:
    """How a run goes, for Prometheus: what its server sees, and its model on public test records."""

    def __init__(self) -> None:
        self._step: Step | None = None
        self._missed: Counter[str] = Counter()
        self._measured: Measurement | None = None

    def add(self, step: Step) -> None:
        """A round that has ended, in this process or an earlier one."""
        self._step, self._measured = step, step.measurement or self._measured
        self._missed.update(list(step.left_out))

    def read(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        yield info()
        step, measured = self._step, self._measured
        if step is None:
            return
        yield single("rounds_total", "Rounds that have ended.", step.rounds)
        yield single("rounds_planned", "All rounds of the run.", step.of)
        yield single("silos_answered", "Silos that answered the last round.", step.answered)
        yield Metric("silo_missed_total", "Rounds that went without a silo.", dict(self._missed), "silo")
        if measured is not None:
            values = {name: number for name in METRICS if (number := value(measured, name)) is not None}
            yield Metric("test", "The model on public test records.", values, "metric")


class Evaluation(NamedTuple):
    """What came of it; nothing but the reason where silos did not admit it."""

    rows: Sequence[Evaluated] = ()
    admitted: Sequence[Admitted] = ()
    offers: Mapping[str, Offer] = {}  # these two by the name of their file
    receipts: Mapping[str, str] = {}
    remarks: Sequence[str] = ()


class History:
    """Follows a run's rounds, and makes its outcome; `evaluate` measures a model on public test records.

    The schema of these, `test`, is the silos' where the scenario says nothing of records. What is measured
    goes into `results`.
    """

    def __init__(
        self,
        resolved: Resolved,
        offers: Mapping[str, Offer],
        checkpoint: Checkpoint,
        evaluate: Evaluator | None,
        silos: RemoteSilos,
        test: Dataset | None,
        results: Results,
    ) -> None:
        self._resolved, self._evaluate, self._silos, self._test = resolved, evaluate, silos, test
        self._greetings, self._absent = checkpoint.run.greetings, checkpoint.run.absent
        self._admissions = said = checkpoint.admissions
        self._admitted = {name: admitted_of(resolved, offers[name], said[name]) for name in resolved.names}
        self._total, self._start = len(resolved.trace.plan.rounds), time.perf_counter()
        self._asked: list[AskedSilo] = []
        self._clips: list[ChosenClip] = []
        self._seconds: list[float | None] = []
        self._results, self.model = results, Tensor()

    def add(self, progress: Progress) -> Step:
        """One step of the loop: the model, and the round that made it."""
        self.model, last, names = progress.answer, progress.last, self._resolved.names
        left_out = {} if last is None else {names[m]: reason for m, reason in last.left_out.items()}
        if last is not None:
            self._seconds.append(last.seconds)
            why = dict.fromkeys(names[m] for m in last.members) | left_out
            self._asked += [
                AskedSilo(0, name, progress.rounds - 1, last.broadcast, why[name]) for name in why
            ]
        if progress.clip is not None:
            self._clips.append(ChosenClip(0, progress.rounds + 1, progress.clip))
        count = progress.participants if last is None else len(last.members)
        measurement = self._measured(progress.rounds, progress.answer, count)
        if measurement is not None:
            self._results.add(measurement)
        answered = 0 if last is None else len(last.members)
        metric = self._resolved.scenario.report.metric
        return Step(progress.rounds, self._total, answered, left_out, measurement, metric)

    def _measured(self, rounds: int, model: Tensor, participants: int) -> Measurement | None:
        every = self._resolved.scenario.report.evaluate_every
        if self._evaluate is None or (rounds % every and rounds != self._total):
            return None
        error, loss, more = self._evaluate(model, last=rounds == self._total)
        elapsed = time.perf_counter() - self._start
        return Measurement(0, "private", rounds, error, loss, participants, elapsed, more=more)

    def outcome(
        self,
        closed: Mapping[str, Closed],
        unstated: Mapping[str, str],
        remarks: Sequence[str],
        seconds: float,
        evaluation: Evaluation,
    ) -> Outcome:
        """The run's results; `unstated` says why the silos that are not in `closed` gave no statement."""
        odd = {name: why for name, each in closed.items() if (why := self._odd(name, each))}
        reasons = {**unstated, **odd}
        said = {name: each for name, each in closed.items() if name not in reasons}
        statements = [self._statement(name, said.get(name)) for name in self._resolved.names]
        # The preparation that scenario or test records declare: public, all that the server knows.
        outline, data = self._resolved.outline, self._resolved.scenario.data
        described = self._test if self._test is not None and isinstance(data, Elsewhere) else data
        made = declared_recipe(described, outline.num_features, outline.num_classes)
        fitted = None if made is None else Fitted(made)
        rows: list[Any] = [*self._asked, *self._clips]
        if (test := self._evaluate) is not None:  # beside the best model without features
            rows.append(constant(self._resolved, test.target.numpy(), test, f"the {NAME}"))
        rows += evaluation.rows
        self._results.finish(TrialResult(0, {"private": self.model}, statements, rows, fitted))
        receipts = {name: each.receipt for name, each in closed.items()} | dict(evaluation.receipts)
        lines = [*self._versions(), *remarks, *evaluation.remarks]
        deployed, admitted = self._deployed(reasons, receipts, lines), tuple(self._admitted.values())
        ended = seconds, False, None, admitted, deployed, evaluation.admitted
        return Outcome(self._resolved, self._results, *ended)

    def _odd(self, name: str, closed: Closed) -> str:
        """The fault of a statement: rounds that were not asked for, or lost ones; empty without any."""
        stated, asked = dict(zip(closed.rounds, closed.broadcasts, strict=True)), self._asked_of(name)
        if len(stated) < len(closed.rounds) or any(
            r not in asked or asked[r].broadcast_sha256 != sent for r, sent in stated.items()
        ):
            return "its statement has rounds that this server did not ask for"
        if not {r for r, row in asked.items() if row.left_out is None} <= stated.keys():
            return "its statement lacks rounds that it answered"
        return ""

    def _statement(self, name: str, closed: Closed | None) -> Statement:
        """Of one that gave none at most what it admitted: any round asked for may have been paid for."""
        admitted, asked = self._admitted[name], self._asked_of(name)
        if closed is not None:
            spent = inf if closed.epsilon_spent is None else closed.epsilon_spent
            return Statement(admitted, spent, list(closed.rounds), list(closed.broadcasts))
        digests = [row.broadcast_sha256 for row in asked.values()]
        return Statement(admitted, admitted.epsilon_guaranteed, list(asked), digests)

    def _asked_of(self, name: str) -> dict[int, AskedSilo]:
        return {row.round: row for row in self._asked if row.silo == name and row.left_out != NOT_ASKED}

    def _deployed(
        self, why: Mapping[str, str], receipts: Mapping[str, str], said: Sequence[str]
    ) -> Deployment:
        admissions = self._admissions
        notices = [
            f"silo {name}: {shown(line)}"
            for name in self._resolved.names
            for line in dict.fromkeys((*self._greetings[name].notices, *admissions[name].notices))
        ]
        return Deployment(
            notices=notices,
            accountants=sorted({shown(each.accountant) for each in admissions.values()}),
            min_silos=self._silos.least,
            round_seconds=self._seconds,
            absent=dict(self._absent),
            without_statement=dict(why),
            receipts=dict(receipts),
            identities={name: key.hex() for name, key in self._silos.identities.items()},
            measured=self._evaluate is not None,
            remarks=list(said),
            unmeasured=[*([] if self._evaluate else [NO_TEST]), *UNMEASURED],
        )

    def _versions(self) -> list[str]:
        own = release(installed.version())
        return [
            f"silo {name} has version {shown(greeting.version)} of fedsim, the server {own}"
            for name, greeting in sorted(self._greetings.items())
            if release(greeting.version) != own
        ]


def release(version: str) -> str:
    """A version without the side of a deployment that it is installed for.

    >>> release("0.1.0+silo")
    '0.1.0'
    """
    return version.partition("+")[0]


def admitted_of(resolved: Resolved, offer: Offer, admission: Admission) -> Admitted:
    """What a silo has admitted, by its own words. Refused if it guarantees nothing, and is not public."""
    rounds = range(len(resolved.trace.plan.rounds)) if offer.rounds is None else offer.rounds
    n = offer.shape.sizes[offer.silo]
    public = resolved.public_silos[resolved.names.index(offer.silo)]
    if not public and None in (admission.epsilon, admission.epsilon_guaranteed):
        raise Refused(f"silo {offer.silo!r} guarantees nothing, and did not greet as a public one")
    epsilon, cost = (inf if e is None else e for e in (admission.epsilon, admission.epsilon_guaranteed))
    terms = Terms(offer.silo, n, epsilon, admission.delta, rounds, offer.noise_multiplier, public=public)
    return Admitted(terms, admission.noise_multiplier, cost, admission.releases)


NAME = "public test records"


def public_evaluator(test: Dataset, resolved: Resolved) -> Evaluator:
    """Measures a model on all records of `test`, prepared as it says. InputError if they cannot be read, or
    are of another kind than the silos'.
    """
    try:
        source = test.open()
        rows = np.arange(source.num_rows)
        found, by = prepare(test, source.design(rows), rows, rows)
    except InputError as error:
        field = error.field.replace("scenario.data", "federation.test", 1)
        raise InputError(field, error.value, error.hint) from None
    outline = resolved.outline
    features = found.features.shape[1]
    if features != outline.num_features:
        hint = f"{outline.num_features} prepared features, as the silos have, the intercept included"
        raise InputError("federation.test", f"{features} features", hint)
    of_classes = np.issubdtype(found.target.dtype, np.integer)
    if bool(outline.num_classes) != of_classes or source.num_classes > outline.num_classes:
        hint = f"a target of {outline.num_classes} classes" if outline.num_classes else "a target of numbers"
        raise InputError("federation.test", f"{source.num_classes} classes", hint)
    if source.groups not in ((), outline.groups):
        raise InputError("federation.test", source.groups, f"groups of the silos' names: {outline.groups}")
    silo = SiloSplit(NAME, found.of(slice(0)), found)
    return Evaluator(resolved.problem, [silo], resolved.dtype, asked_of(resolved, by))
