"""What a run allows and hardly anybody means: plain lines, once in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.results.outcome import Measurement, Outcome
from fedsim.scenario.resolve import Resolved


def warnings(outcome: Outcome) -> list[str]:
    """Of the scenario, then of the records as the trials found them; each once."""
    trials = [trial for _, trial in sorted(outcome.results.trials.items())]
    found = [*of_scenario(outcome.resolved), *(line for trial in trials for line in trial.warnings)]
    found += _undefined(outcome.results.measurements)
    return list(dict.fromkeys(found))


def of_scenario(resolved: Resolved) -> list[str]:
    """Those that need no record: they hold before the run."""
    return [*_delta(resolved), *_ignored(resolved), *_left_out(resolved)]


def _undefined(measurements: Sequence[Measurement]) -> list[str]:
    """Numbers that came to nothing: infinite, or not one at all."""
    lines = []
    for name in ("error", "loss"):
        missing = [row for row in measurements if getattr(row, name) is None]
        if missing:
            first = f"first in trial {missing[0].trial}, round {missing[0].round}"
            share = f"{len(missing):,} of {len(measurements):,} evaluations"
            lines.append(f"the test {name} is not a number in {share} ({first}): it is kept as null")
    return lines


def _delta(resolved: Resolved) -> list[str]:
    """Publishing one record at random in full is (0, 1/n)-DP: above that, delta allows it."""
    silos = list(zip(resolved.names, resolved.sizes, resolved.deltas, strict=True))
    above = [(name, n, delta) for name, n, delta in silos if delta * n > 1]
    if not above or not resolved.mechanism.private:
        return []
    name, n, delta = max(above, key=lambda silo: silo[1] * silo[2])
    where = f"{len(above):,} of {len(silos):,} silos (silo {name}: delta {delta:g}, n = {n:,})"
    return [f"delta is above 1/n in {where}: it allows that a record is published in full; 1/n^2 is usual"]


def _ignored(resolved: Resolved) -> list[str]:
    """A budget that nothing keeps to."""
    epsilon = resolved.scenario.privacy.epsilon
    if resolved.mechanism.private or epsilon is None:
        return []
    return ["privacy.epsilon is ignored: mechanism none neither clips nor adds noise"]


def _left_out(resolved: Resolved) -> list[str]:
    """Records that no silo has."""
    shape = resolved.outline
    if not shape.unused:
        return []
    share = f"{shape.unused:,} of {shape.num_records:,} records ({shape.unused / shape.num_records:.0%})"
    return [f"partition {resolved.scenario.partition.name} leaves out {share}: no silo has them"]
