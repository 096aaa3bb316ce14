"""Records that are far apart for one statistic or another, and what each statistic is asked with."""

import numpy as np
import torch

from fedsim.problems.glm import LinearRegression, LogisticRegression
from fedsim.protocol.plan import QueryShape
from fedsim.protocol.statistics import statistic

FEATURES = 3
OPTIONS = {
    "second_moment": (1.0,),
    "sum": (0.0, -2.0, 3.0),
    "capped_sum": (0.0, 0.0, 9.0, 5.0),
    "presence": (0.0, -2.0, 2.0),
    "histogram": (1.0, 1.0, -1.0, 0.0, 1.0, 2.0),
    "contributions": (1.0, 2.0, 4.0),
    "score_histogram": (10.0,),
    "log_loss": (0.01,),
    "quantile": (0.0, 0.25, -1.0, 0.0, 1.0, 1.5, 2.0),
    "minimiser": (0.5, 60.0, 2.0),
    "costed_gradient": (2.0, 2.0, 1.0, 100.0),
    "joint": (2.0, 2.0, 1.0, 0.0),
}
COUNTS = ("score_histogram", "mistakes", "longer", "joint")
TWO_CLASSES = (*COUNTS, "log_loss", "brier", "choice", "costed_gradient")
COSTS = torch.tensor([3.0, -3.0, 0.5, 0.0, 1.0, 1.0, -20.0, 20.0], dtype=torch.float64)


def problem_of(name):
    return (LogisticRegression if name in TWO_CLASSES else LinearRegression)(FEATURES)


def points_of(name):
    """Where each is evaluated, and with which costs."""
    models = [torch.eye(FEATURES, dtype=torch.float64)[0] / 2**k for k in range(statistic(name).points)]
    second = {"costed_gradient": COSTS, "longer": torch.tensor([2.0], dtype=torch.float64)}.get(name)
    return models if second is None else [models[0], second]


def groups_of(rows):
    """Every record's group, with some of none."""
    return np.arange(len(rows)) % 3 - 1


def shape_of(name):
    return QueryShape(name, statistic(name).points, 1.0, OPTIONS.get(name, ()))


def hostile(name):
    """Records in many directions and lengths, and some that are far apart for one statistic or another."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((60, 1, FEATURES)) * np.geomspace(0.1, 1e4, 60)[:, None, None]
    worst = np.array([[[1.0, 1e4, 0]], [[1.0, -1e4, 0]], [[1e3, 0, 0]], [[-1e3, 0, 0]], [[0, 0, 1e3]]])
    rows = np.concatenate([rows, rows, worst, worst])
    if name in TWO_CLASSES:
        half = np.arange(len(rows)) < len(rows) / 2
        return rows, half[:, None].astype(float)
    targets = np.where(np.arange(len(rows)) % 2, 1e6, -1e6)[:, None]
    if statistic(name).unit == "label":
        rows = np.broadcast_to(rows[3], rows.shape)  # features are the same in both worlds
    if name == "second_moment":
        targets[::3] = 0.0
    return rows, targets
