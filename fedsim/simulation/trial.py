"""One trial: data, silos, server loop and evaluation, whatever process the silos live in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from fedsim.common.errors import InputError, Refused
from fedsim.common.process import one_thread
from fedsim.common.serialise import finite
from fedsim.data.federation import Federation, load
from fedsim.measure.baselines import baselines, converged
from fedsim.measure.evaluator import Evaluator, Final, odd_records
from fedsim.measure.metrics import asked_of
from fedsim.measure.objective import NOTE, TrainingObjective
from fedsim.protocol.blame import blaming
from fedsim.protocol.limits import DIVERGED
from fedsim.protocol.links import Link, Variant
from fedsim.protocol.unit import RECORD
from fedsim.report import record
from fedsim.report.outcome import Observer, Results, TrialResult, measures_costs, measures_objective, variants
from fedsim.report.record import Measurement
from fedsim.report.sections.evaluation import Evaluated
from fedsim.report.sections.training import ChosenClip, ChosenH, ClippedRound, OptimumNote
from fedsim.scenario.evaluation import evaluation_of
from fedsim.scenario.noise_cost import noise_cost
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.host import DirectLink, Hosts, SiloHost, preview
from fedsim.simulation.run_digest import run_digest
from server.aggregate import summed, weighted
from server.loop import Aggregate, Progress, run
from server.participation import Schedule, admitted_rounds, schedule

if TYPE_CHECKING:
    from fedsim.algorithms.prepared import Contributions
    from fedsim.measure.from_histogram import Estimate
    from fedsim.simulation.secure_aggregation import Party

_SLICE = 0.2  # seconds between two looks at the progress


class Trial:
    """One trial's run, advanced event by event."""

    def __init__(
        self,
        resolved: Resolved,
        trial: int,
        hosts: Hosts,
        evaluate: Evaluator,
        data: Federation,
        party: Callable[[], Party] | None = None,
    ) -> None:
        """A trial that has not begun.

        Args:
            hosts: its silos.
            evaluate: measures models.
            data: the trial's records, and how they were prepared.
            party: makes the second aggregator, where silos are added up.
        """
        self._data, self._party, self._warnings = data, party, odd_records(data)
        self._resolved, self._trial, self._hosts, self._evaluate = resolved, trial, hosts, evaluate
        self._models: dict[Variant, Tensor] = {}
        self._own: dict[Variant, Tensor] = {}  # own models, (silos, d)
        self._clipped: list[record.BaselineMeasurement] = []
        self._chosen: list[ChosenClip | ChosenH] = []
        self._estimates: list[Evaluated] = []
        self._events = self._run()
        self.finished = False

    def advance(self, seconds: float) -> list[Measurement]:
        """Work for about so many seconds; sets `finished` at the end."""
        until = time.perf_counter() + seconds
        measured = []
        while not self.finished and time.perf_counter() < until:
            if (event := next(self._events, None)) is None:
                self.finished = True
            else:
                measured.append(event)
        return measured

    def result(self) -> TrialResult:
        """The finished trial."""
        statements = self._hosts.statements(variants(self._resolved)[0])
        return TrialResult(self._trial, self._models, statements, list(self._rows()), self._data.fitted)

    def _rows(self) -> Iterator[Any]:
        """Measurements of the final models and of the whole trial."""
        trial, measured = self._trial, self._evaluate.objective
        for variant, w in self._models.items():
            yield from self._evaluate.of_model(variant, w)
        for variant, own in self._own.items():
            yield from self._evaluate.by_silo(variant, own)
        for index, part in self._hosts.clipping().items():
            if part.terms:
                share, median = part.clipped / part.terms, float(np.median(part.ratios))
                yield ClippedRound(trial, index + 1, part.terms, share, median)
        if measured is not None:
            yield OptimumNote(trial, measured.least, measured.eta, NOTE, measured.reason)
        main, *_ = variants(self._resolved)
        yield from self._evaluate.baselines(self._final(main))
        yield from self._clipped
        yield from self._estimates
        yield from self._chosen
        yield from (record.Warned(trial, text) for text in self._warnings)
        if (most := self._data.most_records) is not None:
            yield record.Counted(trial, most)

    def _final(self, main: Variant) -> Final:
        silos = {silo.admitted.terms.name: silo for silo in self._hosts.statements(main)}
        noise = noise_cost(self._resolved, [silo.admitted.noise_multiplier for silo in silos.values()])
        return Final(self._models[main], noise, [name for name, silo in silos.items() if silo.rounds])

    def _run(self) -> Iterator[Measurement]:
        scenario, holds = self._resolved.scenario, self._resolved.trace.holds
        rounds = schedule(len(self._resolved.names), self._resolved.active, holds, scenario.seed, self._trial)
        main, *baselines = variants(self._resolved)
        yield from self._variant(main, rounds)
        if scenario.report.own_models:
            self._add_own_models(main, rounds)
        if scenario.evaluate is not None:
            try:
                exact = self._evaluate.exact(self._models[main], scenario.privacy.unit != RECORD)
                self._estimates = [
                    Evaluated(self._trial, name, *one, one.too_few, finite(exact.get(name)))
                    for name, one in self.estimates(self._models[main]).items()
                ]
            except Refused as refusal:  # of a model that no silo takes
                self._warnings.append(f"the evaluation was refused: trial {self._trial}, {refusal}")
        if measures_costs(self._resolved):
            self._clipped = list(self._without_noise(rounds))
        for baseline in baselines:
            try:
                for measurement in self._variant(baseline, rounds):
                    yield measurement
                _check_finite(measurement.loss)
            except Refused as refusal:
                self._models.pop(baseline)
                self._lost("the non-private baseline", refusal)

    def _add_own_models(self, main: Variant, rounds: Schedule) -> None:
        """Each silo's own model, and those that the algorithm compares it with."""
        self._own["own"] = self._models[main] + self._hosts.own(main)
        others: list[Variant] = ["one", "alone"]
        for variant in (each for each in others if each in self._resolved.beside):
            try:
                *_, last = self._rounds(variant, rounds)
                self._own[variant] = last.answer + self._hosts.own(variant)
            except Refused as refusal:
                self._lost(f"what own models are compared with ({variant})", refusal)

    def _without_noise(self, rounds: Schedule) -> Iterator[record.BaselineMeasurement]:
        """The final model of the same rounds, with the clip and without noise."""
        try:
            for progress in self._rounds("clipped", rounds):
                model = progress.answer
            tested = self._evaluate(model, last=True)
            _check_finite(tested[1])
        except Refused as refusal:
            self._lost("the baseline that is clipped, without noise,", refusal)
        else:
            method = f"the run's algorithm and its {len(rounds):,} rounds"
            total = sum(self._resolved.sizes)
            yield record.BaselineMeasurement(self._trial, "clipped", None, total, method, *tested)

    def _lost(self, what: str, refusal: Refused) -> None:
        """A baseline that diverges takes nothing with it."""
        self._warnings.append(f"{what} diverged and has no row: trial {self._trial}, {refusal}")

    def estimates(self, model: Tensor) -> dict[str, Estimate]:
        """Metrics of a model, (d,), from one release of every silo's held-out records. Refused if a silo
        does not take the model, or has released before.
        """
        from fedsim.measure.estimates import estimates

        evaluation = evaluation_of(self._resolved)
        *_, last = self._rounds("evaluation", [list(range(len(evaluation.sizes)))], model)
        return estimates(evaluation, preview(evaluation), last.answer, sum(evaluation.sizes))

    @property
    def _counted(self) -> Contributions | None:
        """The stage that chooses h by a histogram of persons, which comes first."""
        if not self._resolved.stages:
            return None
        from fedsim.algorithms.prepared import Contributions

        first = self._resolved.stages[0]
        return first if isinstance(first, Contributions) else None

    def _rounds(self, variant: Variant, rounds: Schedule, start: Tensor | None = None) -> Iterator[Progress]:
        own = self._resolved, self._trial, self._hosts, self._data.digest
        return rounds_of(*own, variant, rounds, self._party, start)

    def _variant(self, variant: Variant, rounds: Schedule) -> Iterator[Measurement]:
        every, last = self._resolved.scenario.report.evaluate_every, len(rounds)
        going, main = self._rounds(variant, rounds), variants(self._resolved)[0]
        counted = self._counted
        spent, start = 0.0, time.perf_counter()
        for progress in going:
            self._models[variant] = progress.answer
            if progress.clip is not None and variant != "nonprivate":
                self._chosen.append(ChosenClip(self._trial, progress.rounds + 1, progress.clip))
            if progress.last and counted and (progress.rounds, variant) == (1, main):
                self._chosen.append(ChosenH(self._trial, int(counted.h(progress.last.aggregate["h"]))))
            if progress.rounds % every == 0 or progress.rounds == last:
                spent += time.perf_counter() - start
                error, loss, more = self._evaluate(progress.answer, progress.rounds == last)
                place, work = (self._trial, variant, progress.rounds), (progress.participants, spent)
                yield Measurement(*place, error, loss, *work, *self._evaluate.risk(progress.answer), more)
                start = time.perf_counter()


def rounds_of(
    asked: Resolved,
    trial: int,
    hosts: Hosts,
    digest: str,
    variant: Variant,
    rounds: Schedule,
    party: Callable[[], Party] | None = None,
    start: Tensor | None = None,
) -> Iterator[Progress]:
    """The rounds of a variant of what is asked, as `server.loop.run`; other arguments as of `Trial`."""
    resolved = evaluation_of(asked) if variant == "evaluation" else asked
    admitted = hosts.open(variant, admitted_rounds(resolved.active, rounds, len(resolved.names)))
    public = resolved.public([silo.noise_multiplier for silo in admitted])
    link: Link = DirectLink(partial(hosts.answer, variant))
    aggregate: Aggregate = weighted
    if resolved.sums is not None and variant in ("private", "evaluation"):
        common, key = admitted[0].terms.noise_multiplier, run_digest(asked, digest, variant)
        assert common is not None
        from fedsim.simulation.secure_aggregation import Party, Summed, TrialSums, adder

        sums = TrialSums(resolved, trial, key, common)
        link, aggregate = Summed(resolved, link, adder(sums, party or Party)), summed
    algorithm, seed = resolved.beside.get(variant, resolved.gate_algorithm), resolved.scenario.seed
    return run(algorithm, resolved.problem, public, seed, link, rounds, aggregate, start=start)


def _check_finite(loss: float | None) -> None:
    if loss is None or not isfinite(loss):
        raise Refused(f"the final model has no finite test loss {DIVERGED}")


def read(resolved: Resolved, trial: int) -> Federation:
    """The trial's records, of all silos; InputError if the data cannot be read or divided as asked."""
    scenario = resolved.scenario
    with blaming("data set", type(scenario.data)):
        federation = load(scenario.data, scenario.partition, scenario.seed, trial, scenario.privacy.unit)
    if not federation.silos.test.rows.n:
        fraction = scenario.data.test_fraction
        raise InputError("scenario.data.test_fraction", fraction, "leaves no silo a record to test with")
    return federation


def evaluator(resolved: Resolved, data: Federation, trial: int) -> Evaluator:
    """The measurements that the scenario asks for."""
    silos = data.silos
    objective = TrainingObjective(resolved, silos) if measures_objective(resolved.scenario) else None
    parts: list[Any] = [baselines] if resolved.scenario.report.baselines else []
    parts += [converged] if measures_costs(resolved) else []
    fits = [partial(part, resolved, silos) for part in parts]
    asked = asked_of(resolved, data.fitted.preparation)
    return Evaluator(resolved.problem, silos, resolved.dtype, asked, objective, fits, trial)


def trial_of(
    resolved: Resolved,
    trial: int,
    party: Callable[[], Party] | None = None,
    hosts: Callable[[Resolved, int, Federation], Hosts] = SiloHost,
) -> Trial:
    """A trial whose silos `hosts` holds, by default in this process as one cohort; of `party` see `Trial`."""
    data = read(resolved, trial)
    return Trial(resolved, trial, hosts(resolved, trial, data), evaluator(resolved, data, trial), data, party)


def execute(resolved: Resolved, results: Results, observe: Observer) -> None:
    """Run every trial that is left in this process, one after another, adding to `results` as it goes.
    Refused if a silo does not accept the plan, or a request within it; InputError if the data cannot be read
    or divided as asked.
    """
    with one_thread():
        for number in results.left(resolved.scenario.trials):
            trial = trial_of(resolved, number)
            while not trial.finished:
                for measurement in trial.advance(_SLICE):
                    results.add(measurement)
                    observe(measurement)
            results.finish(trial.result())
