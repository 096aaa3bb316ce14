"""Noise of sums over silos beside the central Gaussian's: writes the table of docs/summed-noise.md."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

from document import table, write

from fedsim.privacy import gaussian
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.shuffled_binomial import ShuffledBinomial, advised_steps
from fedsim.privacy.summed_gaussian import SummedGaussian
from fedsim.protocol.batch import FULL
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Release

PAGE = Path(__file__).parents[1] / "docs" / "summed-noise.md"
SILOS, N, DELTA = 1000, 50, 1e-6
EPSILONS = (0.5, 1.0, 3.0, 8.0)


def summed(dimension: int, rounds: int, epsilon: float) -> float:
    """Standard deviation of a coordinate of the total's noise, in clips."""
    mechanism = SummedGaussian(dimension, SILOS, 1.0)
    (z,) = mechanism.noise_multipliers(*asked(rounds, epsilon))
    return z * mechanism.sensitivity() * mechanism.step(1.0)


def binomial(dimension: int, rounds: int, epsilon: float) -> float:
    """The same of fair bits and of rounding at random, which adds at most 1/4 a silo."""
    mechanism = ShuffledBinomial(dimension, SILOS, 1.0, advised_steps(dimension))
    (z,) = mechanism.noise_multipliers(*asked(rounds, epsilon))
    return sqrt(SILOS * (mechanism.bits(1.0, z) + 1) / 4) * mechanism.step(1.0)


def asked(rounds: int, epsilon: float) -> tuple[object, object, float]:
    """What a mechanism is asked to keep."""
    return ((Release(FULL, 1.0), rounds),), [Budget(N, epsilon, DELTA)], LIMITS.max_noise_multiplier


def main() -> None:
    """Compute and write the table."""
    rows = []
    for name, noise in (("`summed_gaussian`", summed), ("`shuffled_binomial`", binomial)):
        for dimension in (50, 1000, 100_000):
            for rounds in (1, 35):
                central = [2 * sqrt(rounds) / float(gaussian.mu(epsilon, DELTA)) for epsilon in EPSILONS]
                over = [
                    noise(dimension, rounds, e) / least for e, least in zip(EPSILONS, central, strict=True)
                ]
                rows.append([name, f"{dimension:,}", str(rounds), *(f"{ratio:.4f}" for ratio in over)])
    head = ("mechanism", "d", "rounds", *(f"eps = {epsilon:g}" for epsilon in EPSILONS))
    text = table(head, rows)
    write("shuffle noise", text, PAGE)
    print(text)


if __name__ == "__main__":
    main()
