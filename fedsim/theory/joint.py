"""The numbers of theorems for noise that the accountant calibrates: noise and rounds solved together.

A theorem's rounds and steps are made for its own sigma, which is many times what `calibration:
accountant` adds. Here V, the root mean squared error of a round's mean gradient, is that of the plan that
will run, each silo's noise being calibrated to it (`fedsim.theory.calibrated`), and R solves the theorem's
own equation with it: where the error of optimisation is no more than that of noise. Constants that the
thesis leaves open are one. Every record is in every batch unless the theorem draws batches: that has the
least V, and what proofs by amplification ask of K has nothing to say here. Numbers that the scenario
gives (batch, clip, rounds) are part of the plan that V is computed for.

More budget never has a larger `excess` (or `squared gradient`): for every R a larger budget has a smaller V,
and the excess is twice the larger one of two errors at an R where that is least, or at the smallest one where
the first is below the second, which then does not grow with R.
"""

from __future__ import annotations

from collections.abc import Callable

from fedsim.scenario.derived import Derived
from fedsim.theory.case import Case
from fedsim.theory.joint_convex import (
    accelerated_minibatch_sgd,
    multi_stage_accelerated_minibatch_sgd,
    noisy_minibatch_sgd,
)
from fedsim.theory.joint_proximal import prox_pl_svrg, prox_sgd, prox_spider

JOINT: dict[str, Callable[[Case], Derived]] = {
    "noisy_minibatch_sgd": noisy_minibatch_sgd,
    "accelerated_minibatch_sgd": accelerated_minibatch_sgd,
    "multi_stage_accelerated_minibatch_sgd": multi_stage_accelerated_minibatch_sgd,
    "prox_sgd": prox_sgd,
    "prox_pl_svrg": prox_pl_svrg,
    "prox_spider": prox_spider,
}
"""{algorithm: its theorem's choice for the plan's own noise}: the algorithms of `parameters.TABLE`."""
