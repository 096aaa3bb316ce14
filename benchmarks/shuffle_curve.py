"""Excess risk against epsilon of silos that trust nobody, of sums over them, and of a trusted server.

`python benchmarks/shuffle_curve.py` writes docs/images/shuffle_curve.png and the tables of
docs/shuffle-curve.md, which says what is run. Nothing is tuned: the theorem chooses rounds and step for the
noise that is there. About ten minutes on two cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
import numpy as np
from document import table, where, write
from rich.console import Console

matplotlib.use("Agg")
from matplotlib.figure import Figure

from fedsim.common.process import one_thread
from fedsim.report.style import GREY, look
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.trial import trial_of

DOCS = Path(__file__).parents[1] / "docs"
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
SILOS, RECORDS, PARAMETERS = 1000, 50, 50
TRIALS, CLOSELY = 3, 40  # at epsilon 1 sums are compared with a trusted server's closely
TRUST: dict[str, tuple[int, dict[str, Any]]] = {
    "ISRL": (SILOS, {"mechanism": "gaussian"}),
    "SDP": (SILOS, {"mechanism": "summed_gaussian", "honest_fraction": 1.0}),
    "central": (1, {"mechanism": "gaussian"}),
}
"""Who is trusted, with nobody first: silos, and their noise. Central is all records in one silo."""


@dataclass(frozen=True)
class Point:
    """One curve at one epsilon: excess risks of the trials, and rounds."""

    excess: Sequence[float]
    rounds: int

    @property
    def error(self) -> float:
        """Standard error of the mean, relative to it."""
        return float(np.std(self.excess, ddof=1) / math.sqrt(len(self.excess)) / mean(self.excess))


def scenario(silos: int, privacy: Mapping[str, Any], algorithm: Mapping[str, Any]) -> dict[str, Any]:
    """Logistic regression with |x|^2 <= 50, the constant included: no gradient is longer than sqrt 50."""
    records = SILOS * RECORDS * 5 // 4
    return {
        "name": "curve",
        "data": {"name": "synthetic", "rows": records, "features": PARAMETERS - 1, "test_fraction": 0.2},
        "partition": {"name": "iid", "num_partitions": silos},
        "problem": "logistic_regression",
        "algorithm": {
            "name": "accelerated_minibatch_sgd",
            "clip_norm": math.sqrt(PARAMETERS),
            **algorithm,
        },
        "privacy": {"delta": 1e-6, **privacy},
        "assumptions": {"L": math.sqrt(PARAMETERS), "beta": PARAMETERS / 4, "D": 6.0},
        "runtime": "inprocess",
        "report": {"nonprivate_baseline": False, "evaluate_every": 100_000, "excess_risk": True},
    }


def measured(tree: dict[str, Any], trials: int) -> Point:
    """The excess risk of the training objective after the last round, trial by trial."""
    resolved = resolve(parse(tree))
    found = []
    for number in range(trials):
        trial = trial_of(resolved, number)
        measurements = []
        while not trial.finished:
            measurements += trial.advance(60)
        excess = measurements[-1].excess_risk
        assert excess is not None, "not measured"
        found.append(excess)
    return Point(found, resolved.algorithm.num_rounds)  # type: ignore[attr-defined]


def curves() -> dict[str, list[Point]]:
    """{trust: a point for each epsilon}, and without privacy, where all points are one."""
    found: dict[str, list[Point]] = {}
    for trust, (silos, privacy) in TRUST.items():
        for epsilon in EPSILONS:
            trials = CLOSELY if epsilon == 1 and trust != "ISRL" else TRIALS
            tree = scenario(silos, {"epsilon": epsilon, **privacy}, {"parameters": "theorem"})
            point = measured(tree, trials)
            Console(stderr=True).print(trust, epsilon, mean(point.excess), point.rounds, highlight=False)
            found.setdefault(trust, []).append(point)
    longest = max(point.rounds for point in found["SDP"])
    given = {"num_rounds": longest, "step_size": 2 / PARAMETERS}
    found["non-private"] = [measured(scenario(SILOS, {"mechanism": "none"}, given), TRIALS)] * len(EPSILONS)
    return found


def slope(points: Sequence[Point]) -> float:
    """Of log excess against log epsilon, by least squares."""
    return float(np.polyfit(np.log(EPSILONS), [math.log(mean(point.excess)) for point in points], 1)[0])


def tables(found: Mapping[str, Sequence[Point]]) -> str:
    """Means and rounds, slopes beside the theorems', and the comparisons at epsilon 1."""
    head = ("excess risk at epsilon", *(f"{epsilon:g}" for epsilon in EPSILONS), "slope", "theorem's")
    rows = [
        (
            name,
            *(f"{mean(point.excess):.2g} ({point.rounds})" for point in points),
            *((f"{slope(points):.2f}", "-1") if name in TRUST else ("", "0")),
        )
        for name, points in found.items()
    ]
    isrl, sdp, central = (found[name][EPSILONS.index(1.0)] for name in TRUST)
    ratio, spread = mean(sdp.excess) / mean(central.excess), math.hypot(sdp.error, central.error)
    gained = mean(isrl.excess) / mean(sdp.excess)
    said = (
        f"At epsilon 1 sums have {ratio:.3f} times the excess risk of a trusted server's noise (standard "
        f"error {ratio * spread:.3f}, {CLOSELY} trials each), and silos' own noise {gained:.0f} times that "
        f"of sums. {where()}"
    )
    return f"{table(head, rows)}\n\n{said}"


def draw(found: Mapping[str, Sequence[Point]], path: Path) -> None:
    """The curves, each with a line of its theorem's exponent through its point at epsilon 1."""
    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    for index, (name, points) in enumerate(found.items()):
        style, means = look(index), [mean(point.excess) for point in points]
        ends = np.array([np.quantile(point.excess, [0.05, 0.95]) for point in points]).T
        axes.fill_between(EPSILONS, *ends, color=style.colour, alpha=0.15, linewidth=0)
        axes.plot(EPSILONS, means, label=name, color=style.colour, linestyle=style.dash, marker=style.marker)
        if name in TRUST:
            guide = [means[EPSILONS.index(1.0)] / epsilon for epsilon in EPSILONS]
            label = "slope -1 (Theorems 37, 38)" if index == 0 else None
            axes.plot(EPSILONS, guide, color=GREY, linewidth=0.9, linestyle=":", label=label, zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="epsilon of every record", ylabel="excess risk F(w) - F(w*)")
    axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.minorticks_off()
    axes.grid(alpha=0.3, linewidth=0.6)
    figure.legend(loc="outside upper center", ncols=5, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    with one_thread():
        results = curves()
    draw(results, DOCS / "images" / "shuffle_curve.png")
    write("curve", tables(results), DOCS / "shuffle-curve.md")
