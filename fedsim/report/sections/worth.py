"""What joining or an own model is worth to a silo, and what noise, clip and rounds cost. Simulation only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedsim.problems.registry import FITTED_AT_HOME
from fedsim.report.outcome import Outcome, interval90, penalised, value
from fedsim.report.record import (
    OF_TESTS,
    BaselineMeasurement,
    HasMetrics,
    Measurement,
    SiloMeasurement,
    grouped,
)
from fedsim.report.section import Section
from fedsim.report.summary import Interval, Part, Summary
from fedsim.scenario.metric import METRICS


class Paired(NamedTuple):
    """Of one trial: standard errors, over a silo's test records, of the metric's difference between the
    silo's own model and the run's, or the one that it makes at home of both.
    """

    trial: int
    silo: str
    joined: float | None
    at_home: float | None = None


class Compared(Part):
    """The metric of silos alone, with the run's model (`joined`), and with one made at home; and standard
    errors of what the last two gain, paired, over trials, or of one trial over test records.
    """

    alone: float
    joined: float
    at_home: float | None = None
    joined_error: float | None = None
    at_home_error: float | None = None

    def verdict(self, metric: str, home: bool = True) -> int:
        """1 where joining pays beyond two standard errors, -1 where it costs, else 0; with the model at home
        where that was measured, or without it.
        """
        model, error = (self.at_home, self.at_home_error) if home else (None, None)
        model, error = (self.joined, self.joined_error) if model is None else (model, error)
        gain = _sign(metric) * (self.alone - model)
        return 0 if error is None or abs(gain) <= 2 * error else int(np.sign(gain))


class JoiningSilo(Compared):
    """On a silo's own test records."""

    name: str


class Joining(Compared):
    """Means over silos, by their numbers of test records, and trials.

    `gain_interval90` is of how much better they are joined than alone. Simulation only, not private.
    """

    metric: str
    gain_interval90: Interval
    silos: list[JoiningSilo]

    def counts(self, home: bool = True) -> tuple[int, int]:
        """The silos for which joining pays, and those that it costs; see `verdict`."""
        found = [silo.verdict(self.metric, home) for silo in self.silos]
        return found.count(1), found.count(-1)


class _Pair(NamedTuple):
    row: SiloMeasurement  # a silo in a trial
    values: tuple[float, float, float]  # the metric alone, joined and at home


def _joining(outcome: Outcome) -> Joining | None:
    """The chosen metric of silos alone and joined; None where one is not known or pays for fairness alone."""
    metric = outcome.resolved.scenario.report.metric
    rows = outcome.results.rows(BaselineMeasurement)
    alone, home = (
        {(row.trial, row.silo): value(row, metric) for row in rows if row.baseline == name}
        for name in ("silo_alone", "at_home")
    )
    pairs = []
    for row in outcome.results.rows(SiloMeasurement):
        own, joined = alone.get((row.trial, row.silo)), value(row, metric)
        if row.variant == outcome.main and own is not None and joined is not None:
            there = home.get((row.trial, row.silo))  # too few records: the run's model as it is
            pairs.append(_Pair(row, (own, joined, joined if there is None else there)))
    if not pairs or penalised(outcome.resolved):
        return None
    errors = {row.silo: row[2:] for row in outcome.results.rows(Paired)}
    by_silo = sorted(grouped(pairs, lambda pair: pair.row.silo).items())
    silos = [JoiningSilo(name=name, **_compared(own, errors, bool(home))) for name, own in by_silo]
    means = np.array([_mean(own) for own in grouped(pairs, lambda pair: pair.row.trial).values()])
    gains = interval90(_sign(metric) * (means[:, 0] - means[:, 1]))
    return Joining(metric=metric, gain_interval90=gains, silos=silos, **_compared(pairs, errors, bool(home)))


def _mean(pairs: Sequence[_Pair]) -> np.ndarray:
    """(3,), by numbers of test records."""
    return np.average(
        [pair.values for pair in pairs], axis=0, weights=[pair.row.test_records for pair in pairs]
    )


def _compared(
    pairs: Sequence[_Pair], errors: Mapping[str, Sequence[float | None]], home: bool
) -> dict[str, Any]:
    """Fields of `Compared`, of one silo or of all; of one trial, errors are of the silos that have one."""
    trials = np.array([_mean(own) for own in grouped(pairs, lambda pair: pair.row.trial).values()])
    found: list[float | None] = [None, None]
    if len(trials) > 1:
        found = [float(np.std(trials[:, 0] - trials[:, k], ddof=1) / len(trials) ** 0.5) for k in (1, 2)]
    known = {name: own[: 1 + home] for name, own in errors.items() if None not in own[: 1 + home]}
    if len(trials) == 1 and (of := [pair.row for pair in pairs if pair.row.silo in known]):
        shares = np.array([[row.test_records] for row in of]) / sum(row.test_records for row in of)
        found = np.sqrt(np.square(shares * np.array([known[row.silo] for row in of])).sum(0)).tolist()
    names = ["alone", "joined", *["at_home"] * home]
    own = dict(zip(names, trials.mean(0).tolist(), strict=False))
    return own | dict(zip(["joined_error", *["at_home_error"] * home], found, strict=False))


def _sign(metric: str) -> int:
    """1 where less is better."""
    return -1 if METRICS[metric].higher else 1


def _joining_lines(part: Joining, run: Summary) -> list[str]:
    """A line that says for how many silos joining pays, and for which it pays most."""
    what = METRICS[part.metric].title
    model = "the federation's private model" if run.privacy.private else "the federation's model"
    means = f"on its own records each silo alone has {what} {part.alone:.3g} on average"
    means += f", {model} {part.joined:.3g}"
    if part.at_home is not None:
        without = _counted(part, home=False)
        means += f", one made of both at home {part.at_home:.3g} (not private; without it joining {without})"
    winners = [silo for silo in part.silos if silo.verdict(part.metric) > 0]
    most = max(winners, key=lambda silo: abs(silo.alone - _with(silo)), default=None)
    example = f", most for {most.name}, {most.alone:.3g} to {_with(most):.3g}" if most else ""
    pays = f"joining {_counted(part)}"
    if (verdict := part.verdict(part.metric)) > 0:
        return [f"{pays}{example}; {means}"]
    if verdict < 0 and part.at_home is None and run.problem in FITTED_AT_HOME:
        example += "; report.at_home: true also tries a model that each makes of both at home"
    lead = (
        "silos are better off alone"
        if verdict
        else "joining makes no difference on average beyond two standard errors"
    )
    return [f"{lead}: {means}; {pays}{example}"]


def _with(silo: Compared) -> float:
    return silo.joined if silo.at_home is None else silo.at_home


def joining_note(part: Joining | None) -> str:
    """`; joining pays for 4 of 5 silos`, to end a line with; empty where it was not measured."""
    return "" if part is None else f"; joining {_counted(part)}"


def _counted(part: Joining, home: bool = True) -> str:
    paid, cost = part.counts(home)
    return f"pays for {paid} of {len(part.silos)} silos" + (f" and costs {cost}" if cost else "")


JOINING = Section(
    "joining", row=Paired, made_of=OF_TESTS, part=Joining, summarise=_joining, lines=_joining_lines
)


class OwnModel(Part):
    """A kind of model: mean over silos, and the value that a tenth of them are worse than; over trials."""

    name: Literal["own", "one", "alone", "silo_alone"]
    mean: float
    mean_interval90: Interval
    worst_tenth: float


class OwnModels(Part):
    """The metric on silos' own test records of their own models, of one model, and of each silo alone (by the
    run's rounds at its noise; without privacy). Silos weigh the same. Simulation only, not private.
    """

    metric: str
    silos: int
    models: list[OwnModel]


_MODELS = {
    "own": "own models",
    "one": "one model",
    "alone": "each silo alone, as privately",
    "silo_alone": "each silo alone, without privacy",
}


def _own_models(outcome: Outcome) -> OwnModels | None:
    """The chosen metric, over the silos of a trial that have it of all models; None without own models."""
    metric, trials = outcome.resolved.scenario.report.metric, outcome.results.trials
    found: dict[str, dict[tuple[int, str], float]] = {name: {} for name in _MODELS}
    rows: list[tuple[str, SiloMeasurement | BaselineMeasurement]] = []
    rows += [(row.variant, row) for row in outcome.results.rows(SiloMeasurement)]
    rows += [(row.baseline, row) for row in outcome.results.rows(BaselineMeasurement)]
    for name, row in rows:
        number = value(row, metric)
        if name in found and row.trial in trials and row.silo is not None and number is not None:
            found[name][row.trial, row.silo] = number
    if not found["own"]:
        return None
    whole = {name: own for name, own in found.items() if {trial for trial, _ in own} == set(trials)}
    common = set.intersection(*map(set, whole.values())) if whole else set()
    silos = [sorted(silo for trial, silo in common if trial == each) for each in trials]
    if not all(silos):
        return None
    made = []
    for name, own in whole.items():
        errors = [np.array([own[t, s] for s in some]) for t, some in zip(trials, silos, strict=True)]
        means = np.array([each.mean() for each in errors])
        worst = [np.quantile(each, 0.1 if METRICS[metric].higher else 0.9) for each in errors]
        mean, tenth = float(means.mean()), float(np.mean(worst))
        made.append(OwnModel(name=name, mean=mean, mean_interval90=interval90(means), worst_tenth=tenth))
    return OwnModels(metric=metric, silos=min(map(len, silos)), models=made)


def _own_models_lines(part: OwnModels, _run: Summary) -> list[str]:
    """A line with the mean over silos of each kind of model, and what it is for the worst tenth of them."""
    texts = [f"{_MODELS[one.name]} {one.mean:.4g} ({one.worst_tenth:.4g})" for one in part.models]
    what = f"{METRICS[part.metric].title} on silos' own records, mean over {part.silos:,} silos"
    return [f"{what} (in brackets, where the worst tenth begins): {'; '.join(texts)}"]


OWN_MODELS = Section("own_models", part=OwnModels, summarise=_own_models, lines=_own_models_lines)


CostOf = Literal["noise", "clip", "rounds"]
_LEAST = 0.02
"""The share of a metric below which a cost is not worth a word."""


class CostStep(Part):
    """How much worse the metric is made by one of noise, clip and too few rounds, over trials."""

    of: CostOf
    mean: float
    mean_interval90: Interval


class Costs(Part):
    """What lies between the metric's `value` in this run and where its objective has `converged`.

    `most` costs most, beyond the trials' spread; None where nothing does. Simulation only, not private.
    """

    metric: str
    value: float
    converged: float
    steps: list[CostStep]
    most: CostOf | None


def _costs(outcome: Outcome) -> Costs | None:
    """What noise, clip and rounds cost, in the chosen metric if that tells, else in log loss or loss.

    Each is a difference between neighbours of a chain: this run; clipped, without noise; without noise and
    clipping; converged. None where one of them was not measured in every trial.
    """
    found = None
    for metric in dict.fromkeys((outcome.resolved.scenario.report.metric, "log_loss", "loss")):
        found = _in(outcome, metric) or found
        if found is not None and found.most is not None:
            break
    return found


def _in(outcome: Outcome, metric: str) -> Costs | None:
    trials = sorted(outcome.results.trials)
    chain = [[rows.get(trial) and value(rows[trial], metric) for trial in trials] for rows in _chain(outcome)]
    if not trials or any(number is None for column in chain for number in column):
        return None
    values = _sign(metric) * np.array(chain, dtype=float)
    steps = [
        CostStep(of=of, mean=float(step.mean()), mean_interval90=interval90(step))
        for of, step in zip(get_args(CostOf), values[:-1] - values[1:], strict=True)
    ]
    clear = [s for s in steps if s.mean_interval90[0] > 0 and s.mean > _LEAST * abs(values[-1].mean())]
    most = max(clear, key=lambda step: step.mean, default=None)
    return Costs(
        metric=metric,
        value=float(_sign(metric) * values[0].mean()),
        converged=float(_sign(metric) * values[-1].mean()),
        steps=steps,
        most=None if most is None else most.of,
    )


def _chain(outcome: Outcome) -> list[Mapping[int, HasMetrics]]:
    """The rows of each member of the chain, by trial."""
    found: dict[str, dict[int, HasMetrics]] = {}
    for row in outcome.results.rows(Measurement):  # the last one of a trial stays
        if (trial := outcome.results.trials.get(row.trial)) and row.variant in trial.models:
            found.setdefault(row.variant, {})[row.trial] = row
    for one in outcome.results.rows(BaselineMeasurement):
        if one.silo is None:
            found.setdefault(one.baseline, {})[one.trial] = one
    optimum = "converged" if "converged" in found else "pooled"
    return [found.get(name, {}) for name in ("private", "clipped", "nonprivate", optimum)]


def _costs_lines(part: Costs, run: Summary) -> list[str]:
    """A sentence that says which of noise, clip and rounds costs most, and what to try."""
    parts = ", ".join(f"{step.of} {step.mean:.2g}" for step in part.steps)
    what = f"{METRICS[part.metric].title} {part.value:.3g}, and {part.converged:.3g} converged without noise"
    if part.most is None:
        return [f"neither noise, clip nor rounds cost much beyond the trials' spread: {what} ({parts})"]
    return [f"{_MOST[part.most]} most: {what} (cost: {parts}); try {_tried(part.most, run)}"]


def _tried(of: CostOf, run: Summary) -> str:
    """What makes it cost less, by fields that the run's algorithm has."""
    if of == "noise":
        return "a larger epsilon, more records or more silos"
    whitened = run.algorithm == "whitened_newton"
    clip, step = ("clip_factor", "more steps") if whitened else ("clip_norm", "a larger step_size")
    hint = f"a larger {clip}" if of == "clip" else f"a larger num_rounds, with {step}"
    if run.parameters is None or "automatic" not in run.parameters.theorem:
        return f"{hint}, or algorithm: auto"
    return f"{hint}, with algorithm.name={run.algorithm}" if "name" in run.parameters.values else hint


_MOST = {"noise": "the noise costs", "clip": "the clip costs", "rounds": "too few rounds cost"}

COSTS = Section("costs", part=Costs, summarise=_costs, lines=_costs_lines)
