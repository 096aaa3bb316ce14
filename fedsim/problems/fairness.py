"""Fair training by public costs: FERMI's exponential Renyi mutual information, with a public reference.

Let p(j, r) be the mean over records of F_j(w, x) where the group is r, p_j its sum over groups, pi > 0 any
public numbers that sum to 1. The penalty is

    D_pi = sum_{j,r} p(j, r)^2 / (p_j pi_r) = max_W  sum_j (-|W_j|^2 p_j + 2 sum_r W_rj p(j, r) / sqrt(pi_r)),

up to a constant (A. Lowy 2023, Definition 64, Proposition 65 and Corollary 66, there with pi the groups' own
shares p_r). It is least exactly where predictions and groups are independent, for every pi: by Cauchy-Schwarz
(sum_j p(j, r))^2 <= sum_j p(j, r)^2 / p_j, since the p_j sum to 1, with equality where p(j, r) / p_j is the
same for all j; divide by pi_r and add. So no silo's shares of groups are needed.

At a fixed W the penalty's gradient is that of sum_j c[r, j] F_j with the public costs

    c[r, j] = -|W_j|^2 + 2 W_rj / sqrt(pi_r),

and W itself is a function of the joint p, so post-processing of what silos answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsim.problems.regularisers import Notion
from fedsim.protocol.groups import Cells

if TYPE_CHECKING:
    from torch import Tensor

_LEAST = 1e-3  # of a class's share of the noisy joint


@dataclass(frozen=True)
class Fairness:
    """The penalty weight x D_pi; by label, the sum over labels y of p(y) D_pi of the records of label y.

    `equal_opportunity` counts records of class 1 alone, or of every class but 0.
    """

    notion: Notion
    weight: float  # lambda
    reference: tuple[float, ...]  # pi, one a group
    classes: int

    @property
    def cells(self) -> Cells:
        """The shape of its joints and tables of costs."""
        return Cells(len(self.reference), self.classes, self.notion != "demographic_parity")

    @property
    def radius(self) -> float:
        """B = sqrt(classes / min pi): the best W of a label is in this ball, since W_rj <= 1 / sqrt(pi_r)."""
        return math.sqrt(self.classes / min(self.reference))

    @property
    def reach(self) -> float:
        """A bound on `Cells.reach` of every table, no group being one too: for two groups the W_rj differ by
        at most 2 B sqrt(1 / pi_r + 1 / pi_s) sqrt 2 in the costs; against none by B^2 + 2 B sqrt(2 / pi_r).
        """
        least, *others = sorted(self.reference)
        between = 2 * math.sqrt(2 / least + 2 / others[0])
        return self.weight * self.radius * max(between, self.radius + 2 * math.sqrt(2 / least))

    def start(self, like: Tensor) -> Tensor:
        """W = 0, (groups, labels, classes)."""
        return like.new_zeros(self.cells.shape)

    def shares(self, joint: Tensor) -> Tensor:
        """The joint of each label's records, (groups, labels, classes), each summing to about 1, from a noisy
        answer (cells,), whose sum is also that of what silos took part.
        """
        table = joint.nan_to_num(0.0, 0.0, 0.0).view(*joint.shape[:-1], *self.cells.shape)
        return table / table.sum((-3, -1), keepdim=True).clamp_min(_LEAST)

    def ascended(self, w: Tensor, joint: Tensor, step: float | None) -> Tensor:
        """W after a step along the gradient -2 W_j p_j + 2 p(j, r) / sqrt(pi_r), or, without a step, the best
        W; each label's in its ball.
        """
        share = self.shares(joint)
        by_class, scaled = share.sum(-3, keepdim=True), share * self._root(share)
        w = scaled / by_class.clamp_min(_LEAST) if step is None else w + 2 * step * (scaled - w * by_class)
        return w * (self.radius / w.square().sum((-3, -1), keepdim=True).sqrt().clamp_min(self.radius))

    def table(self, w: Tensor) -> Tensor:
        """The costs lambda c[r, j] at W, (.., cells)."""
        costs = self.weight * (2 * w * self._root(w) - w.square().sum(-3, keepdim=True))
        if self.notion == "equal_opportunity":
            costs[..., 0, :] = 0.0
        return costs.flatten(-3)

    def _root(self, like: Tensor) -> Tensor:
        return like.new_tensor(self.reference).rsqrt()[:, None, None]
