"""The silos' own models beside one model and each silo alone, on each silo's own test records."""

from __future__ import annotations

import numpy as np

from fedsim.report.outcome import Outcome, interval90, value
from fedsim.report.record import BaselineMeasurement, SiloMeasurement
from fedsim.report.summary import OwnModel, OwnModels
from fedsim.scenario.metric import METRICS

_NAMES = {
    "own": "own models",
    "one": "one model",
    "alone": "each silo alone, as privately",
    "silo_alone": "each silo alone, without privacy",
}


def own_models(outcome: Outcome) -> OwnModels | None:
    """The chosen metric, over the silos of a trial that have it of all models; None without own models."""
    metric, trials = outcome.resolved.scenario.report.metric, outcome.results.trials
    found: dict[str, dict[tuple[int, str], float]] = {name: {} for name in _NAMES}
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
        spread = interval90(means)
        assert spread is not None
        mean, tenth = float(means.mean()), float(np.mean(worst))
        made.append(OwnModel(name=name, mean=mean, mean_interval90=spread, worst_tenth=tenth))
    return OwnModels(metric=metric, silos=min(map(len, silos)), models=made)


def own_models_lines(part: OwnModels | None) -> list[str]:
    """A line with the mean over silos of each kind of model, and what it is for the worst tenth of them."""
    if part is None:
        return []
    texts = [f"{_NAMES[one.name]} {one.mean:.4g} ({one.worst_tenth:.4g})" for one in part.models]
    what = f"{METRICS[part.metric].title} on silos' own records, mean over {part.silos:,} silos"
    return [f"{what} (in brackets, where the worst tenth begins): {'; '.join(texts)}"]
