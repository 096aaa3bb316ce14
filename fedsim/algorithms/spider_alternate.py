"""Alternate noisy SPIDER: A. Lowy, thesis (USC 2023), Algorithm 25 (the experiments of B.2.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedsim.algorithms.base import FULL, Batch, StepSize
from fedsim.algorithms.prox_spider import ProxSPIDER


@dataclass(frozen=True)
class SPIDERAlternate(ProxSPIDER):
    """Rounds alternate between a fresh gradient and the change of the gradient over the last step.

    Even rounds: v = sum_i p_i [gradient at w]; odd ones: v += sum_i p_i [gradient difference between w and
    the w before]; always w <- prox_{eta f1}(w - eta v). The public v is added by the server and not, as
    printed, by each silo, since coefficients of the silos of one round need not sum to 1. A difference and
    the gradient after it are asked of the same silos. Differences have another clip, hence another noise.
    A step follows the last gradient too, which the printed version pays for and leaves unused. Returns
    w_R, or with `random_iterate` a uniform one of w_1 .. w_R.
    """

    held: ClassVar[bool] = True
    period: ClassVar[int] = 2  # type: ignore[misc]  # no field here
    smoothness: ClassVar[None] = None  # type: ignore[misc]
    num_rounds: Annotated[int, Field(ge=1, description="R = 2 E - 1: communication rounds")]
    step_size: StepSize
    batch: Annotated[Batch, Field(description="K2: which records a gradient uses")] = FULL
    difference_batch: Annotated[Batch, Field(description="K1: which records a difference uses")] = FULL
