"""Group privacy, user-level and central DP that follow from a record-level guarantee.

Adjacency is replace-one; n is fixed and public. None stands for a guarantee whose delta would reach 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedsim.common.errors import InputError
from fedsim.privacy import gaussian


class Guarantee(NamedTuple):
    """(epsilon, delta)-DP, epsilon >= 0 and finite, delta in [0, 1)."""

    epsilon: float
    delta: float


def group(epsilon: float, delta: float, k: int) -> Guarantee | None:
    """Replace k >= 1 records: (epsilon, delta)-DP gives (k epsilon, k e^((k-1) epsilon) delta)-DP.

    Here epsilon >= 0, infinity giving None, and delta is in [0, 1). All n records of a silo, a user, are one:
    its user-level DP (appendix B.1), useful for small epsilon only.

    Source: Lowy 2023 (thesis), Proposition 12.

    >>> epsilon, delta = group(0.5, 1e-9, k=2)
    >>> f"({epsilon}, {delta:.4g})"
    '(1.0, 3.297e-09)'
    >>> group(5.0, 1e-5, k=10) is None  # its delta would be above 1
    True
    """
    _check(k)
    exponent = math.log(k) + (k - 1) * epsilon + (math.log(delta) if delta > 0 else -math.inf)
    if epsilon == math.inf or exponent >= 0:
        return None
    return Guarantee(k * epsilon, delta if k == 1 else math.exp(exponent))


def group_gaussian(mu: float, delta: float, k: int) -> Guarantee | None:
    """Replace k >= 1 records where all releases are one Gaussian of mu >= 0: exactly that of k mu.

    Each record moves a release by its sensitivity at most, k of them by k times as much, attained where all
    move alike. For Fresh batches too: whatever batches the k records are in, sum (k_b mu_b)^2 is at most
    (k max mu_b)^2. Infinite mu, sensitivity over noise of all releases together, gives None; delta, in
    (0, 1), is kept as it is.

    Source: Dong, Roth and Su 2022, Theorem 2.14 (group privacy of Gaussian DP).

    >>> group_gaussian(0.25, 1e-6, k=2) == group_gaussian(0.5, 1e-6, k=1)
    True
    """
    _check(k)
    epsilon = float(gaussian.epsilon(k * mu, delta))
    return None if epsilon == math.inf else Guarantee(epsilon, delta)


def hybrid(epsilon: float, delta: float, n: int) -> Guarantee:
    """Return the record-level (epsilon / n, delta / (4 n)) that also gives user-level (epsilon, delta).

    n e^((n-1) epsilon / n) delta / (4 n) < e^epsilon delta / 4 <= e delta / 4 < delta.

    The target has delta in (0, 1) and epsilon in (0, 1], else InputError: above 1 the last step fails. The
    silo has n >= 1 records.

    Source: Lowy 2023 (thesis), appendix B.1.5.5.

    >>> record = hybrid(1.0, 1e-4, n=100)
    >>> record
    Guarantee(epsilon=0.01, delta=2.5e-07)
    >>> group(*record, k=100).delta < 1e-4
    True
    """
    _check(n)
    if not 0 < epsilon <= 1:
        raise InputError("epsilon", epsilon, "a user-level target in (0, 1]")
    if not 0 < delta < 1:
        raise InputError("delta", delta, "in (0, 1)")
    return Guarantee(epsilon / n, delta / (4 * n))


def central(silos: Sequence[tuple[float, float]]) -> Guarantee | None:
    """Central DP of all silos' transcripts, hence of the model: (max epsilon_i, max delta_i), one record.

    A record lies in one silo, of at least one; the other silos' messages are functions of their data and of
    what they received, which is post-processing of this silo's transcript. So nothing adds up over silos.

    Source: Lowy 2023 (thesis), appendix B.1 (inter-silo record-level DP implies central DP, same parameters).

    >>> central([(1.0, 1e-5), (2.0, 1e-6)])
    Guarantee(epsilon=2.0, delta=1e-05)
    """
    epsilon, delta = max(e for e, _ in silos), max(d for _, d in silos)
    return None if epsilon == math.inf or delta >= 1 else Guarantee(epsilon, delta)


def _check(k: int) -> None:
    if k < 1:
        raise ValueError(f"k: {k} is not a positive number of records")
