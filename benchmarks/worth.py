"""What the default algorithm is worth: its excess loss over pooled, as a share of a yardstick's, by table.

The yardstick is accelerated_minibatch_sgd with its three numbers `auto`. Plans, noise multipliers and numbers
are fedsim's own, and so are both halves of the algorithms. Only the silos are not run: with weights by size
and full batches the mean of their clipped means is that of all records, and its noise is drawn at once, with
the deviation that `Public.noise` gives it, so that thousands of runs take minutes.

    python benchmarks/worth.py OUT [--tables NAME ..] [--splits 12] [--settings own5 own20 sum5 sum20]
    python benchmarks/worth.py OUT --show
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor

from benchmarks.worth_tables import FETCHED, MADE, SHIPPED, with_silos
from fedsim import Frame
from fedsim.data.federation import load
from fedsim.measure.baselines import fit
from fedsim.problems.glm import GeneralisedLinear, LinearRegression
from fedsim.protocol.contract import Combined, Public, Query
from fedsim.protocol.moments import svec
from fedsim.protocol.statistics import histogram_edges
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import preview

EPSILONS = 0.5, 1.0, 3.0, 8.0
_NOISE = {"own": "gaussian", "sum": "summed_gaussian"}
SETTINGS = {f"{kind}{n}": (n, mechanism) for kind, mechanism in _NOISE.items() for n in (5, 20)}
YARDSTICK = {
    "name": "accelerated_minibatch_sgd",
    "num_rounds": "auto",
    "step_size": "auto",
    "clip_norm": "auto",
}
TABLES = {**MADE, **SHIPPED, **FETCHED}
PROBLEMS = {0: "linear_regression", 2: "logistic_regression"}


class Pooled:
    """Answers queries about all silos' records: the clipped mean, and the noise of the silos together."""

    def __init__(self, x: Tensor, y: Tensor, public: Public, rng: np.random.Generator) -> None:
        self.x, self.y, self.public, self.rng = x, y, public, rng

    def bound(self, problem: GeneralisedLinear) -> Any:
        """The `ask` of a silo method."""

        def ask(*queries: Query) -> Any:
            answers = tuple(self._noisy(problem, query)[None] for query in queries)
            return answers[0] if len(answers) == 1 else answers

        return ask

    def _noisy(self, problem: GeneralisedLinear, query: Query) -> Tensor:
        mean = self._mean(problem, query)
        return mean + self.public.noise(query) * torch.as_tensor(self.rng.standard_normal(mean.shape))

    def _mean(self, problem: GeneralisedLinear, query: Query) -> Tensor:
        x, y = self.x if query.transform is None else self.x @ query.transform.double().T, self.y
        if query.statistic == "second_moment":
            weight = (float(query.clip) / x.square().sum(1)).clamp_max(1.0)
            return svec((x * weight[:, None]).T @ x / len(x))
        if query.statistic == "histogram":
            inner = torch.tensor(histogram_edges(query.options)[1:-1])
            return torch.bincount(torch.bucketize(y, inner), minlength=len(inner) + 1) / len(y)
        point = query.points[0].double()
        if query.statistic == "score_histogram":
            bins = int(query.options[0])
            place = (torch.sigmoid(x @ point) * bins).long().clamp(0, bins - 1) + bins * (y > 0.5).long()
            return torch.bincount(place, minlength=2 * bins) / len(y)
        assert query.statistic == "gradient"
        W = point.view(x.shape[1], -1)
        slope = problem.coefficient((x @ W).squeeze(-1), y, y).view(len(y), -1)
        weight = (float(query.clip) / (x.norm(dim=1) * slope.norm(dim=1)).clamp_min(1e-300)).clamp_max(1.0)
        return (x.T @ (slope * weight[:, None])).reshape(-1) / len(y)


def run(resolved: Resolved, pooled: Pooled) -> Tensor:
    """The model of a run, (d,)."""
    algorithm, problem = resolved.gate_algorithm, resolved.problem
    going = algorithm.server(problem.start(0).double(), problem, pooled.public, np.random.default_rng(0))
    memory: Any = _Zeros(problem.dimension)
    step = next(going)
    try:
        while True:
            sent = {name: value.double() for name, value in step.broadcast.items()}
            message = algorithm.silo(problem, sent, pooled.bound(problem), memory)
            step = going.send(Combined({name: value.sum(0) for name, value in message.items()}, 1.0))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


class _Zeros(dict[str, Tensor]):
    def __init__(self, d: int) -> None:
        self._d = d

    def __missing__(self, name: str) -> Tensor:
        return torch.zeros(1, self._d, dtype=torch.float64)


def records(resolved: Resolved, trial: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features and targets of all training and all test records."""
    scenario = resolved.scenario
    silos = load(scenario.data, scenario.partition, scenario.seed, trial).silos
    parts = [(s.train.features, s.train.target, s.test.features, s.test.target) for s in silos]
    return tuple(torch.as_tensor(np.concatenate(each)).double() for each in zip(*parts, strict=True))  # type: ignore[return-value]


def scenario_of(table: Any, classes: int, setting: str, epsilon: float, algorithm: Any, hats: int = 0) -> Any:
    """The scenario of a cell; numbers enter as so many hats."""
    silos, mechanism = SETTINGS[setting]
    data = Frame(with_silos(table, silos), "target", "silo_", None, test_fraction=0.2)
    if hats:
        drafted = {name: entry.model_dump(exclude_unset=True) for name, entry in data.columns.items()}
        for name, entry in drafted.items():
            if entry["kind"] == "number" and name != "target" and table[name].nunique() > hats:
                entry["encode"] = {"hats": hats}
        data = Frame(with_silos(table, silos), "target", "silo_", drafted, test_fraction=0.2)
    problem = PROBLEMS.get(classes, "softmax_regression")
    tree = {
        "name": "worth",
        "seed": 1,
        "partition": "natural_id",
        "problem": {"name": problem, "silo_weights": "size"},
        "algorithm": algorithm,
        "privacy": {"epsilon": epsilon, "mechanism": mechanism}
        | ({"honest_fraction": 0.8} if "summed" in mechanism else {}),
        "runtime": "inprocess",
    }
    return parse({**tree, "data": data})


def measured(problem: GeneralisedLinear, x: Tensor, y: Tensor, w: Tensor) -> dict[str, float]:
    """Log loss, or RMSE over that of the mean; of two classes AUC and sensitivity too."""
    scores = problem.scores(x, w.double())
    if isinstance(problem, LinearRegression):
        return {"loss": float(problem.error(scores, y))}
    found = {"loss": float(problem.losses(scores, y).mean())}
    if problem.num_outputs == 1:
        from sklearn.metrics import roc_auc_score

        found["auc"] = float(roc_auc_score(y, scores)) if 0 < y.mean() < 1 else float("nan")
        found["sensitivity"] = float((scores[y > 0.5] > 0).double().mean())
        found["mean"], found["observed"] = float(torch.sigmoid(scores).mean()), float(y.mean())
    return found


def cells(
    name: str, settings: list[str], splits: int, algorithms: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Every cell of a table, all splits."""
    table = TABLES[name.removesuffix("+hats")]()
    classes = 0 if table.target.dtype.kind in "fiu" else table.target.nunique()
    if classes == 2 or table.target.dtype == bool:
        table, classes = table.assign(target=table.target.astype(str)), 2
    pooled: dict[Any, Any] = {}
    hats = 8 * name.endswith("+hats")
    for setting in settings:
        for epsilon in EPSILONS:
            for label, algorithm in algorithms.items():
                resolved = resolve(scenario_of(table, classes, setting, epsilon, algorithm, hats))
                public = resolved.public([each.noise_multiplier for each in preview(resolved)])
                for split in range(splits):
                    if (setting, split) not in pooled:
                        pooled[setting, split] = records(resolved, split)
                    x, y, test_x, test_y = pooled[setting, split]
                    at = setting, split, "pooled"
                    if at not in pooled:
                        w = fit(resolved.problem, [(x, y)], [1.0], True).w
                        pooled[at] = measured(resolved.problem, test_x, test_y, w)
                    seed = [split, int(10 * epsilon), list(SETTINGS).index(setting)]
                    w = run(resolved, Pooled(x, y, public, np.random.default_rng(seed)))
                    yield {
                        "table": name,
                        "n": len(y),
                        "p": x.shape[1],
                        "classes": classes,
                        "setting": setting,
                        "epsilon": epsilon,
                        "algorithm": label,
                        "chosen": resolved.scenario.algorithm.name,
                        "diagonal": bool(getattr(resolved.algorithm, "diagonal", False)),
                        "split": split,
                        **measured(resolved.problem, test_x, test_y, w),
                        "pooled": pooled[at]["loss"],
                    }


def _one(job: tuple[Any, ...]) -> str:
    torch.set_num_threads(1)
    out, name, *rest = job
    lines = [json.dumps(cell) for cell in cells(name, *rest)]
    (Path(out) / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return str(name)


def show(out: Path) -> None:
    """Geometric means over tables of the excess over the yardstick's, and the largest loss over its loss."""
    import pandas as pd

    rows = pd.concat([pd.read_json(file, lines=True) for file in sorted(out.glob("*.jsonl"))])
    mean = rows.groupby(["table", "setting", "epsilon", "algorithm"])[["loss", "pooled"]].mean().reset_index()
    for label in sorted(set(rows.algorithm) - {"yardstick"}):
        wide = mean.pivot_table(
            index=["setting", "epsilon", "table"], columns="algorithm", values=["loss", "pooled"]
        )
        then, now = wide["loss"][label], wide["loss"]["yardstick"]
        least = wide["pooled"]["yardstick"]
        share = (then - least).clip(lower=1e-3 * least) / (now - least).clip(lower=1e-3 * least)
        print(label)
        grouped = np.log(share).groupby(["setting", "epsilon"])
        told = pd.DataFrame(
            {
                "share": np.exp(grouped.mean()),
                "largest loss over": (then / now).groupby(["setting", "epsilon"]).max(),
            }
        )
        print(told.round(3).to_string())
        print((then / now).sort_values().tail(6).round(4).to_string())


def main() -> None:
    """Measure, or show what was measured."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("out", type=Path)
    asked.add_argument("--tables", nargs="*", default=[*TABLES])
    asked.add_argument("--splits", type=int, default=12)
    asked.add_argument("--settings", nargs="*", default=list(SETTINGS))
    asked.add_argument("--processes", type=int, default=2)
    asked.add_argument("--show", action="store_true")
    given = asked.parse_args()
    if not given.show:
        given.out.mkdir(parents=True, exist_ok=True)
        algorithms = {"yardstick": YARDSTICK, "auto": {"name": "auto"}}
        jobs = [(given.out, name, given.settings, given.splits, algorithms) for name in given.tables]
        with get_context("spawn").Pool(given.processes, maxtasksperchild=1) as pool:
            for name in pool.imap_unordered(_one, jobs):
                print(name, flush=True)
    show(given.out)


if __name__ == "__main__":
    main()
