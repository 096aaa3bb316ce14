"""The algorithms under test: a new one is a row here, and every shared property runs through it."""

from dataclasses import dataclass, field

from fedsim.algorithms.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedsim.algorithms.fedadam import FedAdam
from fedsim.algorithms.fedprox import FedProx
from fedsim.algorithms.local_sgd import LocalSGD
from fedsim.algorithms.mean_regularised import MeanRegularised
from fedsim.algorithms.multi_stage_accelerated_minibatch_sgd import MultiStageAcceleratedMinibatchSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prox_pl_svrg import ProxPLSVRG
from fedsim.algorithms.prox_sgd import ProxSGD
from fedsim.algorithms.prox_spider import ProxSPIDER
from fedsim.algorithms.prox_svrg import ProxSVRG
from fedsim.algorithms.scaffold import Scaffold
from fedsim.algorithms.spider_alternate import SPIDERAlternate
from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.contract import Algorithm
from fedsim.testing import Example, before_the_last_round, final, last_of_averaged


@dataclass(frozen=True)
class Row(Example):
    """One algorithm.

    Args:
        name: its name in the registry.
        settled: enough rounds that only noise is left of the excess risk, on a least-squares problem whose
            Hessian is the identity and whose records have |x|^2 = d <= 16; nothing is clipped.
        averaged: whether the model returned is a mean of iterates, whose distance falls as 1 / R.
    """

    name: str
    settled: Algorithm = field(kw_only=True)
    averaged: bool = field(default=False, kw_only=True)
    anchors: frozenset[Batch] | None = field(default=frozenset(), kw_only=True)


ROWS = (
    Row(
        "noisy_minibatch_sgd",
        short=lambda batch: NoisyMinibatchSGD(num_rounds=4, step_size=0.1, clip_norm=1.0, batch=batch),
        convergent=lambda step: NoisyMinibatchSGD(num_rounds=100, step_size=step, clip_norm=1.0),
        settled=NoisyMinibatchSGD(num_rounds=30, step_size=0.5, strong_convexity=1.0, clip_norm=6.0),
        estimate=last_of_averaged,
        tolerance=1e-6,
        averaged=True,
    ),
    Row(
        "local_sgd",
        short=lambda batch: LocalSGD(num_rounds=4, local_steps=3, step_size=0.1, clip_norm=1.0, batch=batch),
        convergent=lambda step: LocalSGD(num_rounds=300, local_steps=2, step_size=0.02 * step, clip_norm=1.0),
        settled=LocalSGD(num_rounds=10, local_steps=4, step_size=0.5, clip_norm=6.0),
        estimate=final,
        tolerance=1e-3,
    ),
    Row(
        "fedprox",
        short=lambda batch: FedProx(
            num_rounds=4, local_steps=3, step_size=0.1, proximal_weight=0.5, clip_norm=1.0, batch=batch
        ),
        convergent=lambda step: FedProx(
            num_rounds=300, local_steps=2, step_size=0.02 * step, proximal_weight=1 / step, clip_norm=1.0
        ),
        settled=FedProx(num_rounds=10, local_steps=4, step_size=0.5, proximal_weight=0.2, clip_norm=6.0),
        estimate=final,
        tolerance=1e-3,
    ),
    Row(
        "scaffold",
        short=lambda batch: Scaffold(num_rounds=4, local_steps=3, step_size=0.1, clip_norm=1.0, batch=batch),
        convergent=lambda step: Scaffold(num_rounds=100, local_steps=2, step_size=step / 2, clip_norm=1.0),
        settled=Scaffold(num_rounds=10, local_steps=4, step_size=0.5, clip_norm=6.0),
        estimate=final,
        tolerance=1e-6,
    ),
    Row(
        "mean_regularised",
        short=lambda batch: MeanRegularised(
            num_rounds=4, step_size=0.1, own_step_size=0.2, pull=0.5, clip_norm=1.0, batch=batch
        ),
        convergent=lambda step: MeanRegularised(
            num_rounds=100, step_size=step, own_step_size=step, pull=1e9, clip_norm=1.0
        ),
        settled=MeanRegularised(num_rounds=30, step_size=0.5, own_step_size=0.0, pull=0.0, clip_norm=6.0),
        estimate=final,
        tolerance=1e-6,
        left_out={"linear where it says so": "affine in answers, which sums do not give it to move by"},
    ),
    Row(
        "fedadam",
        short=lambda batch: FedAdam(num_rounds=4, step_size=0.1, clip_norm=1.0, batch=batch),
        convergent=lambda step: FedAdam(num_rounds=100, step_size=step, beta1=0.5, tau=1.0, clip_norm=1.0),
        settled=FedAdam(num_rounds=40, step_size=0.5, beta1=0.5, tau=1.0, clip_norm=6.0),
        estimate=final,
        tolerance=1e-6,
        left_out={"linear in a ball": "a Euclidean projection after a step scaled by coordinate leaves it"},
    ),
    Row(
        "accelerated_minibatch_sgd",
        short=lambda batch: AcceleratedMinibatchSGD(num_rounds=4, step_size=0.1, clip_norm=1.0, batch=batch),
        convergent=lambda step: AcceleratedMinibatchSGD(num_rounds=1_000, step_size=step / 2, clip_norm=1.0),
        settled=AcceleratedMinibatchSGD(num_rounds=60, step_size=0.5, strong_convexity=1.0, clip_norm=6.0),
        estimate=final,
        tolerance=1e-6,
    ),
    Row(
        "multi_stage_accelerated_minibatch_sgd",
        short=lambda batch: MultiStageAcceleratedMinibatchSGD(
            num_rounds=12,
            smoothness=1,
            strong_convexity=1,
            initial_excess=1,
            clip_norm=1.0,
            noise=0,
            batch=batch,
        ),
        convergent=lambda step: MultiStageAcceleratedMinibatchSGD(
            num_rounds=250,
            smoothness=1 / step,
            strong_convexity=0.05 / step,
            initial_excess=1,
            clip_norm=1.0,
            noise=0,
        ),
        settled=MultiStageAcceleratedMinibatchSGD(
            num_rounds=40, smoothness=1, strong_convexity=1, initial_excess=1, clip_norm=6.0, noise=0
        ),
        estimate=final,
        tolerance=1e-6,
    ),
    Row(
        "prox_sgd",
        short=lambda batch: ProxSGD(num_rounds=4, step_size=0.1, clip_norm=1.0, batch=batch),
        convergent=lambda step: ProxSGD(num_rounds=100, step_size=step, clip_norm=1.0),
        settled=ProxSGD(num_rounds=30, step_size=0.5, clip_norm=6.0),
        estimate=final,
        tolerance=1e-6,
    ),
    Row(
        "prox_svrg",
        short=lambda batch: ProxSVRG(
            epochs=2, inner_steps=1, step_size=0.1, clip_norm=1.0, difference_clip=2.0, batch=batch
        ),
        convergent=lambda step: ProxSVRG(
            epochs=12, inner_steps=9, step_size=step, clip_norm=1.0, difference_clip=2.0
        ),
        settled=ProxSVRG(epochs=6, inner_steps=4, step_size=0.5, clip_norm=6.0, difference_clip=6.0),
        estimate=before_the_last_round,
        tolerance=1e-6,
        anchors=frozenset({FULL}),
    ),
    Row(
        "prox_pl_svrg",
        short=lambda batch: ProxPLSVRG(
            restarts=2,
            epochs=1,
            inner_steps=2,
            step_size=0.1,
            clip_norm=1.0,
            difference_clip=2.0,
            batch=batch,
        ),
        convergent=lambda step: ProxPLSVRG(
            restarts=15, epochs=1, inner_steps=9, step_size=step, clip_norm=1.0, difference_clip=2.0
        ),
        settled=ProxPLSVRG(
            restarts=8, epochs=1, inner_steps=4, step_size=0.5, clip_norm=6.0, difference_clip=6.0
        ),
        estimate=final,
        tolerance=1e-6,
        anchors=frozenset({FULL}),
    ),
    Row(
        "prox_spider",
        short=lambda batch: ProxSPIDER(
            num_rounds=4, period=2, step_size=0.1, clip_norm=1.0, batch=batch, difference_batch=batch
        ),
        convergent=lambda step: ProxSPIDER(num_rounds=100, period=10, step_size=step, clip_norm=1.0),
        settled=ProxSPIDER(num_rounds=30, period=3, step_size=0.5, clip_norm=6.0, smoothness=16.0),
        estimate=final,
        tolerance=1e-6,
    ),
    Row(
        "spider_alternate",
        short=lambda batch: SPIDERAlternate(
            num_rounds=4, step_size=0.1, clip_norm=1.0, batch=batch, difference_batch=batch
        ),
        convergent=lambda step: SPIDERAlternate(num_rounds=101, step_size=step, clip_norm=1.0),
        settled=SPIDERAlternate(num_rounds=30, step_size=0.5, clip_norm=6.0),
        estimate=final,
        tolerance=1e-6,
    ),
)
