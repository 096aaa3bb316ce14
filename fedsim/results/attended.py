"""Who took part: the M that theorems speak of, and what the run saw."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from fedsim.protocol.participants import Available, announced, attendance_law, pull
from fedsim.results.outcome import Outcome


def participation(outcome: Outcome) -> dict[str, Any]:
    """The `participation` part of the summary.

    `effective_m` is M with 1 / M = E[1 / M_r] (thesis Assumption 1.4): exact, or of a file its average over
    all its rounds. What was observed comes from the ledgers of all finished trials. `pull` is the least and
    the largest N E[1{i in S_r} / M_r] of a silo: 1 where the server's sum is unbiased.
    """
    resolved = outcome.resolved
    counts = pull(resolved.active, len(resolved.names))
    sizes = _observed(outcome)
    found = {
        "name": resolved.scenario.participation.name,
        "num_silos": len(resolved.names),
        "effective_m": resolved.effective_m,
        "expected_inverse_m": 1 / resolved.effective_m,
        "observed_mean_m": float(sizes.mean()) if len(sizes) else None,
        "observed_mean_inverse_m": float((1 / sizes).mean()) if len(sizes) else None,
        "pull": [float(counts.min()), float(counts.max())],
        "plan_covers": "own rounds" if announced(resolved.active) else "all rounds",
    }
    if isinstance(resolved.active, Available):
        # The server asks again after such a round; nobody has paid for it.
        found["empty_round_probability"] = float(attendance_law(resolved.active.probabilities)[0])
    return found


def _observed(outcome: Outcome) -> np.ndarray:
    """M_r of every round of every finished trial."""
    counts = Counter(
        (number, r)
        for number, trial in outcome.results.trials.items()
        for said in trial.statements
        for r in said.rounds
    )
    return np.array(list(counts.values()), dtype=float)
