"""The examples in use, in a process whose product has them all; prints what they did as JSON."""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from sklearn.metrics import cohen_kappa_score
from support.helpers import asking, open_gate, scripted, silos_of

import fedsim
from fedsim.cli.output import print_run
from fedsim.measure.metrics import Asked, values_of
from fedsim.problems.glm import LinearRegression, LogisticRegression
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Query
from fedsim.protocol.plan import Ask, Plan, QueryShape

TREE: dict[str, Any] = {
    "name": "example",
    "seed": 1,
    "trials": 1,
    "data": "breast_cancer",
    "partition": {"name": "iid", "num_partitions": 3},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 8, "step_size": 2.0, "clip_norm": 1.0},
    "privacy": {"epsilon": 8.0, "delta": 1e-5},
    "runtime": "inprocess",
    "report": {"baselines": False, "nonprivate_baseline": False, "clipping": False},
}
PROBLEM = LinearRegression(3)
RECORDS = silos_of(PROBLEM, (20, 30))


def asked(half: Any, epsilon: float, mechanism: str = "gaussian", plan: Any = None) -> torch.Tensor:
    """The sums that a gate's silos release in one round, (2, size)."""
    gate = open_gate(RECORDS, PROBLEM, scripted(half, 1), epsilon=epsilon, mechanism=mechanism, plan=plan)
    means = gate.answer(0, {"w": torch.ones(3, dtype=torch.float64)})["g"]
    return means * torch.tensor([[20.0], [30.0]], dtype=torch.float64)


def mechanism() -> dict[str, Any]:
    names = ("gaussian", "rounded_gaussian")
    runs = [fedsim.simulate(TREE, mechanism=name).summary.model_dump(mode="json") for name in names]
    return {"sums": [asked(asking(), 1.0, name).tolist() for name in names], "runs": runs}


def statistic() -> dict[str, Any]:
    def half(w: Any, ask: Any, memory: Any) -> dict[str, Any]:
        return {"g": ask(Query("far", (), 1.0, options=(1.5,)))}

    plan = Plan(((Ask(FULL, (QueryShape("far", 0, 1.0, (1.5,)),)),),))
    sums = {epsilon: asked(half, epsilon, plan=plan).flatten().tolist() for epsilon in (math.inf, 1.0)}
    true = [int((np.linalg.norm(x, axis=1) > 1.5).sum()) for x, _ in RECORDS]
    return {"sums": sums[math.inf], "noisy": sums[1.0], "true": true}


def metric() -> dict[str, Any]:
    tree = TREE | {"report": TREE["report"] | {"metric": "kappa"}}
    tune = {"grid": {"algorithm.num_rounds": [1, 8]}, "criterion": "final_metric", "repetitions": 1}
    swept = fedsim.sweep(tree | {"sweep": {"tune": tune}}, workers=0)
    rng = np.random.default_rng(0)
    scores, target = torch.from_numpy(rng.normal(size=90)), torch.from_numpy(rng.integers(0, 2, 90))
    found = values_of(["kappa"], LogisticRegression(3), scores, target.double(), Asked(2))["kappa"]
    of_sklearn = cohen_kappa_score(target.numpy(), scores.numpy() > 0)
    return {"tuned": swept.summary.model_dump(mode="json"), "values": [found, of_sklearn]}


def metric_with_a_table() -> dict[str, Any]:
    done, terminal = fedsim.simulate(TREE), io.StringIO()
    done.save("run")
    read, console = fedsim.load_run("run"), Console(file=terminal, width=150)
    print_run(console, read, Path("run"))
    return {
        "rows": [list(run.table("confusion")) for run in (done, read)],
        "summary": json.loads(Path("run/summary.json").read_text(encoding="utf-8"))["confusion"],
        "shown": [
            terminal.getvalue(),
            Path("run/report.html").read_text(encoding="utf-8"),
            read._repr_html_(),
        ],
        "error": read.summary.metrics.error,
        "figures": [Path("run/figures/confusion.svg").is_file(), len(read.plot("confusion").axes)],
    }


def data_set() -> dict[str, Any]:
    return fedsim.simulate(TREE | {"data": {"name": "rings"}}).summary.model_dump(mode="json")


if __name__ == "__main__":
    examples = (mechanism, statistic, metric, metric_with_a_table, data_set)
    print(json.dumps({"from": fedsim.__file__} | {each.__name__: each() for each in examples}))
