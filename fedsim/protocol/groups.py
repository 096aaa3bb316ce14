"""Tables of numbers by group: where an answer `joint` lies, and what `costed_gradient` adds to a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

MOST_CELLS = 4096  # of a table


class Cells(NamedTuple):
    """The shape of a table: [group, class], or [group, label, class] if it is by label; flat, row-major."""

    groups: int
    classes: int
    by_label: bool

    @classmethod
    def of(cls, options: Sequence[float]) -> Cells:
        """Of a query's first three options."""
        return cls(int(options[0]), int(options[1]), bool(options[2]))

    @property
    def options(self) -> tuple[float, float, float]:
        """The inverse of `of`."""
        return float(self.groups), float(self.classes), float(self.by_label)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(groups, labels, classes), with one label where the table is not by label."""
        return self.groups, self.classes if self.by_label else 1, self.classes

    @property
    def size(self) -> int:
        """Numbers of a table."""
        groups, labels, classes = self.shape
        return groups * labels * classes

    def rows(self, table: Tensor) -> Tensor:
        """What a record pays by class, (.., (groups + 1) x classes, classes): its row is
        label + classes x (group + 1), and a record without a group, in the first ones, pays nothing.
        """
        import torch  # which a refused scenario does without

        *leading, _ = table.shape
        costs = table.reshape(*leading, *self.shape).expand(*leading, self.groups, self.classes, self.classes)
        return torch.cat([table.new_zeros(*leading, self.classes, self.classes), costs.flatten(-3, -2)], -2)

    def reach(self, table: Tensor) -> float:
        """R, the largest difference over classes of what a change of the group alone adds to the costs.

        A record's gradient of sum_j c_j F_j in its scores is J c, J = diag(F) - F F^T. For costs that differ
        by D, |J D| has entries F_j (D_j - mean D) whose sum is 0 and whose absolute values sum to at most
        R / 2, the largest mean absolute deviation within a range R: so |J D|_2 <= sqrt(2) R / 4, and R / 4
        for a loss of one score.
        """
        rows = self.rows(table)
        costs = rows.view(*rows.shape[:-2], self.groups + 1, self.classes, self.classes)
        apart = costs.unsqueeze(-4) - costs.unsqueeze(-3)  # [.., group, other, label, class]
        return float((apart.amax(-1) - apart.amin(-1)).max())
