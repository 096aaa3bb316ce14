"""Crossings of the values in `features.yaml`, the scenarios that they stand for, and their records."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import fedsim

Crossing = dict[str, str]  # dimension to the name of its value; what is left out has its first value
DIMENSIONS: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text()
)
BASE = {
    "name": "crossing",
    "partition": "natural_id",
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 0.5, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0},
    "runtime": "inprocess",
    "report": dict.fromkeys(("baselines", "nonprivate_baseline", "clipping"), False),
    "seed": 1,
}
_PROBLEMS = {2: "logistic_regression", 0: "linear_regression", 3: "softmax_regression"}  # by classes


@cache
def table(classes: int) -> fedsim.Arrays:
    """Records of three silos, whose persons have from one to five."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(240), rng.integers(1, 6, 240))
    x, group = np.round(rng.uniform(-1, 1, (len(who), 3)), 2), np.where(rng.random(len(who)) < 0.5, "a", "b")
    score = x[:, 0] - 0.5 * x[:, 1] + 0.3 * rng.normal(size=len(who))
    ends = {2: [0.0], 3: [-0.4, 0.4]}.get(classes)
    target = np.clip(score, -2, 2) if ends is None else np.digitize(score, ends)
    silo = np.array(["A", "B", "C"])[who % 3]
    return fedsim.Arrays(x, target, silo, ranges=(-1.0, 1.0), person=who, group=group, test_fraction=0.25)


def overrides(crossing: Crossing) -> dict[str, Any] | None:
    """What its scenario says beyond `BASE`, by dotted names; None where its values ask for two targets."""
    values = [DIMENSIONS[name][value] for name, value in crossing.items()]
    needed = {name: own for value in values for name, own in value.get("needs", {}).items()}
    chosen = {name: DIMENSIONS[name][value] for name, value in (needed | crossing).items()}
    classes = {value["classes"] for value in chosen.values() if "classes" in value}
    if len(classes) > 1:
        return None
    made = {"problem.name": _PROBLEMS[next(iter(classes), 2)], "classes": 2}
    for dimension in DIMENSIONS:
        made |= chosen.get(dimension, {})
    return copy.deepcopy({name: value for name, value in made.items() if name not in ("needs", "slow")})


def scenario(over: Mapping[str, Any], **more: Any) -> tuple[dict[str, Any], fedsim.Arrays]:
    """The scenario of `overrides`, as a tree, and its records."""
    over = dict(over) | more
    data, public = table(over.pop("classes")), over.pop("public", False)
    tree: dict[str, Any] = copy.deepcopy(BASE)
    for dotted, value in over.items():
        *path, last = dotted.split(".")
        branch = tree
        for key in path:
            own = branch.get(key, {})
            branch[key] = own if isinstance(own, dict) else {"name": own}
            branch = branch[key]
        branch[last] = value
    if public:
        rows = np.arange(60)
        tree["public"] = fedsim.Arrays(data.features[rows], data.target[rows], ranges=(-1.0, 1.0))
    return tree, data


def names(dimension: str, gate: bool = True) -> list[str]:
    """Of a dimension's values: those of the gate, or all."""
    return [name for name, value in DIMENSIONS[dimension].items() if not (gate and value.get("slow"))]


def every(dimensions: Mapping[str, list[str]]) -> list[Crossing]:
    """The whole product."""
    return [dict(zip(dimensions, own, strict=True)) for own in product(*dimensions.values())]


def covering(dimensions: Mapping[str, list[str]], together: Callable[[Crossing], bool]) -> list[Crossing]:
    """Crossings in which every two values meet that go together: greedily few. A dimension is left out where
    none of its values goes with the others.
    """
    values = [(name, value) for name, own in dimensions.items() for value in own]
    place = {value: i for i, value in enumerate(values)}
    goes = {two: two[0][0] != two[1][0] and together(dict(two)) for two in combinations(values, 2)}
    left, made = {two for two in goes if goes[two]}, []

    def two(*pair: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(pair, key=place.__getitem__))

    for first in goes:
        row = list(first) if first in left else []
        while row:
            rest = [each for each in values if each[0] not in dict(row)]
            fit = [each for each in rest if all(goes[two(own, each)] for own in row)]
            if not fit:
                left -= set(combinations(sorted(row, key=place.__getitem__), 2))
                made.append(dict(sorted(row, key=place.__getitem__)))
                break
            row.append(max(fit, key=lambda each: sum(two(own, each) in left for own in row)))
    return made
