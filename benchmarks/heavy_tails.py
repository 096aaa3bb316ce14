"""Slopes of one-pass clipped AC-SA beside Theorem 59's: `python -m benchmarks.heavy_tails OUT [PROBLEM...]`.

Every number of a run is the theorem's: T and the step by its formulas, the clip by `clip_norm: theorem`. The
excess risk is the population's, which is known. The problems, in ten silos of n records:

- `hard`: the instance of Theorem 168 for privacy, d = 50, where the rate is tight. The loss is -<w, x> on a
  ball. With chance p = sqrt(2 d) / (mu n sqrt(N)), x is r p^(-1/k) v / sqrt(d), v a vector of signs, else 0.
  It is beta-smooth for every beta. For beta near 0 (`flat`) the second branch of the theorem's maximum is the
  larger, p^((k-1)/k); for beta = r / D (`smooth`) the first is, p^(4 (k-1) / (5k-1)).
- `regression`: least squares, d = 21 with an intercept, Pareto noise of tail 2.2: one law for every mu and n.

mu is the theorem's epsilon. A slope is that of the logarithm of the mean excess over trials; its interval has
90 % of 2,000 draws of as many trials. Points count where the theorem's clip is above r and its private term
above 1 / sqrt(n N), so that the clip is what rules: its formulas decide that, before anything runs. Of the
regression the slope is given also of those points where the private term is below what w_0 = 0 loses: above
it the theorem promises less than a run that does nothing.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedsim
from fedsim.data.arrays import Arrays
from fedsim.privacy import gaussian

TRIALS, SILOS, DELTA = 12, 10, 1e-6
MUS, RECORDS = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0), (500, 1000, 2000, 4000, 8000, 16_000, 32_000)
HARD = [(mu, 4000) for mu in MUS], [(0.25, n) for n in RECORDS]
FIXED = [(mu, 16_000) for mu in (*MUS, 4.0, 8.0)], [(2.0, n) for n in (*RECORDS, 64_000)]
TAIL = 2.2
RAW: dict[str, Any] = {"intercept": False, "scaling": "none"}
FAR = 1e9  # |x w - y| is y - x w, a linear loss, where y is far


@dataclass(frozen=True)
class Problem:
    """A family of problems with the constants that the theorem asks for."""

    name: str
    d: int
    k: float
    r: float
    D: float
    beta: float
    linear: bool
    start: float | None = None  # excess risk at w_0 = 0, where it is one for every mu and n

    def rounds(self, mu: float, n: int) -> int:
        """T of Theorem 59 for SILOS silos."""
        gain, reach = self.beta * self.D / self.r, mu * n * math.sqrt(SILOS / self.d)
        noisy = gain ** (2 * self.k / (5 * self.k - 1)) * reach ** ((2 * self.k - 2) / (5 * self.k - 1))
        return max(1, math.ceil(min(noisy, math.sqrt(gain) * (n * SILOS) ** 0.25)))

    def rate(self, mu: float, n: int) -> tuple[float, float, bool]:
        """The larger branch's exponent in 1 / (mu n), the private term, and whether the clip rules."""
        p, k = math.sqrt(self.d / SILOS) / (mu * n), self.k
        branches = {
            4 * (k - 1) / (5 * k - 1): ((self.beta * self.D / self.r) ** 0.25 * p)
            ** (4 * (k - 1) / (5 * k - 1)),
            (k - 1) / k: p ** ((k - 1) / k),
        }
        slope = max(branches, key=lambda each: branches[each])
        used = p * math.sqrt(self.rounds(mu, n)) < 1 and branches[slope] > 1 / math.sqrt(n * SILOS)
        return slope, self.r * self.D * branches[slope], used

    def records(
        self, mu: float, n: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features (rows, d), targets, and the vector that the population's risk rests on."""
        rows = SILOS * (n + 1)  # one of each silo tests
        if self.linear:
            p = min(1.0, math.sqrt(2 * self.d / SILOS) / (mu * n))
            v = rng.choice([-1.0, 1.0], self.d) / math.sqrt(self.d)
            seen = rng.random(rows) < p
            return (
                np.outer(seen, self.r * p ** (-1 / self.k) * v),
                np.full(rows, FAR),
                p ** (1 - 1 / self.k) * self.r * v,
            )
        w = rng.normal(size=self.d)
        w /= np.linalg.norm(w)
        x = np.hstack([rng.normal(size=(rows, self.d - 1)), np.ones((rows, 1))])
        return x, x @ w + rng.pareto(TAIL, rows) - 1 / (TAIL - 1), w

    def excess(self, w: np.ndarray, truth: np.ndarray) -> float:
        """Of the population's risk at w."""
        if self.linear:
            return float(self.D * np.linalg.norm(truth) - w @ truth)
        return float(((w - truth) ** 2).sum() / 2)  # E x x' = I

    def run(self, mu: float, n: int, trial: int, clip: float | str = "theorem") -> float:
        """The excess risk of one run."""
        x, y, truth = self.records(mu, n, np.random.default_rng([trial, n]))
        T = self.rounds(mu, n)
        tree: dict[str, Any] = {
            "name": self.name,
            "seed": trial,
            "data": Arrays(x, y, **RAW, test_fraction=1 / (n + 1)),
            "partition": {"name": "iid", "num_partitions": SILOS},
            "problem": {
                "name": "absolute_error" if self.linear else "linear_regression",
                "constraint": {"name": "l2_ball", "radius": self.D},
            },
            "algorithm": {
                "name": "accelerated_minibatch_sgd",
                "parameters": "theorem",
                "num_rounds": T,
                "clip_norm": clip,
                "batch": {"sampler": "fresh", "fraction": 1 / T},
            },
            "privacy": {"epsilon": float(gaussian.epsilon(mu, DELTA)), "delta": DELTA},
            "assumptions": {
                "moment": self.k, "moment_bound": self.r, "phi": self.r, "beta": self.beta, "D": self.D
            },
            "runtime": "inprocess",
            "report": {"clipping": False, "nonprivate_baseline": False, "baselines": False},
        }  # fmt: skip
        return self.excess(fedsim.simulate(tree).model[0], truth)


def regression() -> Problem:
    """w* on the unit sphere, the ball of radius 2 about 0: E|gradient|^2 <= (d + 2) (3^2 + variance)."""
    variance = TAIL / ((TAIL - 1) ** 2 * (TAIL - 2))
    return Problem("regression", 21, 2.0, math.sqrt(23 * (9 + variance)), 2.0, 1.0, linear=False, start=0.5)


def problems() -> list[Problem]:
    """All of them; the hard ones with two moments, and with either branch of the maximum the larger."""
    hard = [
        Problem(f"hard, {name}, k = {k:g}", 50, k, 10.0, 1.0, beta, linear=True)
        for k in (2.0, 4.0)
        for name, beta in (("flat", 1e-9), ("smooth", 10.0))
    ]
    return [*hard, regression()]


def slope(logs: np.ndarray, excess: np.ndarray) -> tuple[float, float, float]:
    """Least squares of log mean excess (trials, points) on `logs`, and 5 % and 95 % of resampled trials."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(excess), (2000, len(excess)))

    def fitted(means: np.ndarray) -> float:
        return float(np.polyfit(logs, np.log(means), 1)[0])

    drawn = [fitted(excess[pick].mean(0)) for pick in picks]
    return fitted(excess.mean(0)), float(np.quantile(drawn, 0.05)), float(np.quantile(drawn, 0.95))


def measured(problem: Problem, points: Sequence[tuple[float, int]], against: str) -> list[dict[str, Any]]:
    """Excess at the points of the range, with its slope and the theorem's; of all, and below `start`."""
    used = [point for point in points if problem.rate(*point)[2]]
    excess = np.array([[problem.run(mu, n, trial) for mu, n in used] for trial in range(TRIALS)])
    below = [i for i, point in enumerate(used) if problem.start and problem.rate(*point)[1] < problem.start]
    rows = []
    for name, chosen in ((problem.name, range(len(used))), (problem.name + " below w_0", below)):
        if len(chosen) < 2:
            continue
        logs = np.log([used[i][0] if against == "mu" else used[i][1] for i in chosen])
        found, low, high = slope(logs, excess[:, chosen])
        expected = -float(np.mean([problem.rate(*used[i])[0] for i in chosen]))
        row = {"problem": name, "against": against, "theorem": expected, "slope": found}
        means = [
            {"mu": mu, "n": n, "T": problem.rounds(mu, n), "excess": float(excess[:, i].mean())}
            for i, (mu, n) in ((i, used[i]) for i in chosen)
        ]
        rows.append(row | {"interval": [low, high], "points": means})
    return rows


def fixed(problem: Problem, mu: float, n: int) -> dict[str, Any]:
    """Mean excess by clip: given ones, and the theorem's, T and the rule for the step being the same."""
    means = {
        str(clip): float(np.mean([problem.run(mu, n, trial, clip) for trial in range(TRIALS)]))
        for clip in (3.0, 10.0, 30.0, 100.0, "theorem")
    }
    print(problem.name, mu, n, means, flush=True)
    return {"problem": problem.name, "mu": mu, "n": n, "excess by clip": means}


def main(out: Path, names: Sequence[str]) -> None:
    """Write every slope and the table of clips, or those of the problems named and of `clips`; print them."""
    found = []
    for problem in problems():
        if names and problem.name not in names:
            continue
        grids = HARD if problem.linear else FIXED
        for against, points in zip(("mu", "n"), grids, strict=True):
            for row in measured(problem, points, against):
                found.append(row)
                interval = "[{:.3f}, {:.3f}]".format(*row["interval"])
                print(
                    row["problem"], against, f"{row['theorem']:.3f} {row['slope']:.3f}", interval, flush=True
                )
                print(
                    "   ",
                    [(p["mu"], p["n"], p["T"], round(p["excess"], 4)) for p in row["points"]],
                    flush=True,
                )
    if not names or "clips" in names:
        found += [fixed(regression(), mu, n) for mu, n in ((0.25, 1000), (2.0, 4000))]
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
