"""Everything in this process, one trial after another: for debugging, and for one cell of a sweep."""

from __future__ import annotations

import torch

from fedsim.results.outcome import Observer, Results
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.trial import in_one_process

_SLICE = 0.2  # seconds between two looks at the progress


def execute(resolved: Resolved, results: Results, observe: Observer) -> None:
    """Run every trial, adding to `results` as it goes.

    Raises:
        Refused: a silo does not accept the plan, or a request within it.
        InputError: the data cannot be read or divided as asked.
    """
    torch.set_num_threads(1)  # sums depend on the number of threads
    for number in range(resolved.scenario.trials):
        trial = in_one_process(resolved, number)
        while not trial.finished:
            for measurement in trial.advance(_SLICE):
                results.measurements.append(measurement)
                observe(measurement)
        results.trials[number] = trial.result()
