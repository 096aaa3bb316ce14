"""The weighted Gaussian mechanism of private and public records, and weights by precision.

Lowy, thesis (USC 2023), Equation 2.4 and Proposition 18 (83). n_priv private and n_pub public vectors of norm
<= B have one mean and E|x - E x|^2 = V^2. With r in [0, 1 / n_priv],

    A_r = r sum of the private + (1 - n_priv r) mean of the public + N(0, 2 B^2 r^2 / rho I_d)

is rho-zCDP for replacing one private vector, since the sum of the private moves by 2 B, and unbiased. Its
mean squared error (Equation A.19) is least where the two means are weighed by the inverse of their
variances, V^2 / n_priv + 2 d B^2 / (rho n_priv^2) and V^2 / n_pub. This holds for any number of unbiased
means, whose least mean squared error is 1 / (sum of the inverse variances).
"""

from __future__ import annotations

from collections.abc import Sequence


def error(r: float, n_priv: int, n_pub: int, d: int, B: float, V: float, rho: float) -> float:
    """J(r), the mean squared error of A_r (Equation A.19)."""
    return 2 * d * B**2 * r**2 / rho + n_priv * r**2 * V**2 + (1 - n_priv * r) ** 2 * V**2 / n_pub


def best(n_priv: int, n_pub: int, d: int, B: float, V: float, rho: float) -> float:
    """r*, at which J is least: r* n_priv is the share of the private mean (Proposition 18)."""
    of_public = n_priv * V**2 / n_pub
    return of_public / (2 * d * B**2 / rho + n_priv * V**2 + n_priv * of_public)


def shares(variances: Sequence[float]) -> tuple[float, ...]:
    """The weights of the best mean of unbiased means with these mean squared errors; they sum to 1.

    >>> shares([1.0, 3.0])
    (0.75, 0.25)
    """
    total = sum(1 / each for each in variances)
    return tuple(1 / each / total for each in variances)
