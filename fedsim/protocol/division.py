"""What a silo releases of several parts of its records: those that train, are held out, or are put aside.

**Guarantee.** No record is in two parts. For every silo i, the joint view of all that it releases, of every
part, is (eps, delta_i)-DP for replacing one of its records, with the sizes of its parts fixed and public, for
any behaviour of the server and the other silos, and

    eps = max over the parts of the epsilon of what is released of the part.

Why:

* *The division* is drawn independently of the records' values. Fix it: the record that differs between
  neighbouring data sets is in one part, the same in both.
* *Parallel composition.* Releases of the other parts are then the same functions of equal records, noise that
  is independent of everything, and earlier releases: they are post-processing of what the first part
  released, in whatever order and however adaptively the parts take turns. So the view costs what the
  differing part releases, at most the largest. Averaging over divisions keeps the bound, since the
  hockey-stick divergence is jointly convex. All parts are priced at one delta_i, without which a maximum of
  epsilons would mean nothing.

It does not hold for groups: of two records one may be in each part, and their costs then add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedsim.protocol.plan import Admitted


def together(costs: Iterable[float]) -> float:
    """What parts cost together of which each has this epsilon, at one delta (module docstring)."""
    return max(costs)


@dataclass(frozen=True)
class Division:
    """What a silo has admitted, for each part of its records by the part's name."""

    parts: Mapping[str, Admitted]

    def __getitem__(self, part: str) -> Admitted:
        return self.parts[part]

    @property
    def epsilon(self) -> float:
        """Epsilon of all parts together: the largest of a part's, since a unit is in one part."""
        return together(part.epsilon_guaranteed for part in self.parts.values())
