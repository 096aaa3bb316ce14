"""Which theorem speaks of an algorithm, with its numbers taken from the algorithm."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, Literal

from fedsim.algorithms.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedsim.algorithms.local_sgd import LocalSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prox_sgd import ProxSGD
from fedsim.algorithms.prox_spider import ProxSPIDER
from fedsim.algorithms.prox_svrg import ProxSVRG
from fedsim.protocol.batch import Fresh
from fedsim.protocol.errors import InputError
from fedsim.theory.local_sgd import LocalSGDNoise
from fedsim.theory.minibatch import AcceleratedERM, Experiments, NoisyMinibatch
from fedsim.theory.one_pass import AcceleratedOnePass, ProxSGDNoise
from fedsim.theory.prox_svrg import ProxSVRGNoise
from fedsim.theory.spider import ProxSPIDERNoise
from fedsim.theory.statement import Claim, Theorem

Choice = Literal["thesis", "experiments"]


def stated(algorithm: Any, claim: Claim, choice: Choice) -> Theorem:
    """Return the theorem of `algorithm` for one silo's claim.

    Raises:
        InputError: no theorem, or no experiments' formula, speaks of it.
    """
    if choice == "thesis":
        return _thesis(algorithm, claim)
    if not isinstance(algorithm, NoisyMinibatchSGD):
        expected = "the experiments' formula is stated for noisy_minibatch_sgd only; use thesis"
        raise InputError("scenario.privacy.theorem", choice, expected)
    return Experiments(claim, algorithm.clip_norm, algorithm.num_rounds, algorithm.batch)


@singledispatch
def _thesis(algorithm: Any, claim: Claim) -> Theorem:
    expected = f"no theorem speaks of {type(algorithm).__name__}; use accountant or sigma"
    raise InputError("scenario.privacy.calibration", "theorem", expected)


@_thesis.register
def _(algorithm: NoisyMinibatchSGD, claim: Claim) -> Theorem:
    return NoisyMinibatch(claim, algorithm.clip_norm, algorithm.num_rounds, algorithm.batch)


@_thesis.register
def _(algorithm: AcceleratedMinibatchSGD, claim: Claim) -> Theorem:
    kind = AcceleratedOnePass if isinstance(algorithm.batch, Fresh) else AcceleratedERM
    return kind(claim, algorithm.clip_norm, algorithm.num_rounds, algorithm.batch)


@_thesis.register
def _(algorithm: ProxSGD, claim: Claim) -> Theorem:
    return ProxSGDNoise(claim, algorithm.clip_norm, algorithm.num_rounds, algorithm.batch)


@_thesis.register
def _(algorithm: ProxSVRG, claim: Claim) -> Theorem:
    return ProxSVRGNoise(
        claim,
        algorithm.clip_norm,
        algorithm.difference_clip,
        algorithm.epochs,
        algorithm.inner_steps,
        algorithm.batch,
        getattr(algorithm, "restarts", 1),
    )


@_thesis.register
def _(algorithm: ProxSPIDER, claim: Claim) -> Theorem:
    return ProxSPIDERNoise(
        claim,
        algorithm.clip_norm,
        algorithm.num_rounds,
        algorithm.period,
        algorithm.batch,
        algorithm.smoothness,
        algorithm.difference_clip,
    )


@_thesis.register
def _(algorithm: LocalSGD, claim: Claim) -> Theorem:
    return LocalSGDNoise(
        claim, algorithm.clip_norm, algorithm.num_rounds, algorithm.local_steps, algorithm.batch
    )
