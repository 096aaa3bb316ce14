"""Which theorem speaks of an algorithm, with its numbers taken from the algorithm.

By the algorithm's name in scenarios: a theorem needs its public numbers, not its code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fedsim.common.errors import InputError
from fedsim.protocol.batch import Fresh
from fedsim.theory.local_sgd import LocalSGDNoise
from fedsim.theory.minibatch import AcceleratedERM, Experiments, NoisyMinibatch
from fedsim.theory.one_pass import AcceleratedOnePass, ProxSGDNoise
from fedsim.theory.prox_svrg import ProxSVRGNoise
from fedsim.theory.spider import AlternateSPIDERNoise, ProxSPIDERNoise
from fedsim.theory.theorem import Claim, Theorem

Choice = Literal["thesis", "experiments"]


def stated(name: str, algorithm: Any, claim: Claim, choice: Choice) -> Theorem:
    """Return the theorem of `algorithm`, called `name` in a scenario, for one silo's claim.

    Raises:
        InputError: no theorem, or no experiments' formula, speaks of it.
    """
    table = {"thesis": _THESIS, "experiments": _EXPERIMENTS}[choice]
    if name in table:
        return table[name](algorithm, claim)
    if name in _THESIS:
        expected = f"stated for {', '.join(_EXPERIMENTS)} only; use thesis"
        raise InputError("scenario.privacy.theorem", choice, expected)
    expected = f"no theorem speaks of {name}, only of {', '.join(_THESIS)}; use accountant or sigma"
    raise InputError("scenario.privacy.calibration", "theorem", expected)


def _minibatch(algorithm: Any, claim: Claim) -> Theorem:
    return NoisyMinibatch(claim, algorithm.clip_norm, algorithm.num_rounds, algorithm.batch)


def _experiments(algorithm: Any, claim: Claim) -> Theorem:
    return Experiments(claim, algorithm.clip_norm, algorithm.num_rounds, algorithm.batch)


def _accelerated(algorithm: Any, claim: Claim) -> Theorem:
    kind = AcceleratedOnePass if isinstance(algorithm.batch, Fresh) else AcceleratedERM
    return kind(claim, algorithm.clip_norm, algorithm.num_rounds, algorithm.batch)


def _prox_sgd(algorithm: Any, claim: Claim) -> Theorem:
    return ProxSGDNoise(claim, algorithm.clip_norm, algorithm.num_rounds, algorithm.batch)


def _svrg(algorithm: Any, claim: Claim) -> Theorem:
    return ProxSVRGNoise(
        claim,
        algorithm.clip_norm,
        algorithm.difference_clip,
        algorithm.epochs,
        algorithm.inner_steps,
        algorithm.batch,
        getattr(algorithm, "restarts", 1),
    )


def _spider(algorithm: Any, claim: Claim) -> Theorem:
    return ProxSPIDERNoise(
        claim,
        algorithm.clip_norm,
        algorithm.num_rounds,
        algorithm.period,
        algorithm.batch,
        getattr(algorithm, "difference_batch", algorithm.batch),
        algorithm.smoothness,
        algorithm.difference_clip,
    )


def _alternate(algorithm: Any, claim: Claim) -> Theorem:
    return AlternateSPIDERNoise(
        claim,
        algorithm.clip_norm,
        algorithm.num_rounds,
        algorithm.batch,
        algorithm.difference_batch,
        algorithm.difference_clip,
    )


def _local(algorithm: Any, claim: Claim) -> Theorem:
    return LocalSGDNoise(
        claim, algorithm.clip_norm, algorithm.num_rounds, algorithm.local_steps, algorithm.batch
    )


_Maker = Callable[[Any, Claim], Theorem]
_THESIS: dict[str, _Maker] = {
    "noisy_minibatch_sgd": _minibatch,
    "accelerated_minibatch_sgd": _accelerated,
    "multi_stage_accelerated_minibatch_sgd": _accelerated,
    "prox_sgd": _prox_sgd,
    "prox_svrg": _svrg,
    "prox_pl_svrg": _svrg,
    "prox_spider": _spider,
    "spider_alternate": _alternate,
    "local_sgd": _local,
}
_EXPERIMENTS: dict[str, _Maker] = {"noisy_minibatch_sgd": _experiments}
