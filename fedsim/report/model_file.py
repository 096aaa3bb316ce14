"""`model.json`: the problem and recipe of a run's parameters, so that they predict without the data set.

Its numbers are public constants. What a simulation fitted on pooled training records, for each trial, is in a
file of its own that says so: it is simulation only, not private.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import torch as tensors
from safetensors.numpy import load_file, save_file
from torch import Tensor

from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError
from fedsim.common.plugins import file_of, short, source
from fedsim.common.section import Section
from fedsim.data.fitted import Components, Standard
from fedsim.data.recipe import Fitted, Recipe
from fedsim.problems.kinds import Problem
from fedsim.problems.registry import dtype_of
from fedsim.problems.section import ProblemSection, problem_of
from fedsim.report.summary import AGAIN, opened, read_json, validated

FILE, FITTED = "model.json", "nonprivate_preparation.safetensors"
_PREPARED = "prepared."  # before the names of arrays that are no models

_PUBLIC_PART = set(ProblemSection.model_fields) - {"name", "model"}
"""What shaped the training and does not matter to predictions."""


class ModelFile(Section):
    """The problem and recipe of a run's parameters, the same in every trial."""

    format: Literal[1] = 1
    problem: ProblemSection
    num_features: int
    num_classes: int
    dtype: Literal["float64", "float32"]
    recipe: Recipe | None = None

    def made(self) -> Problem:
        """The problem, without its public part; InputError if it is of a package that is not installed."""
        return problem_of(self.problem, self.num_features, self.num_classes, dtype_of(self.dtype))


Trained = tuple[ModelFile, dict[int, Fitted]]  # of all trials, and how each prepares records, where known


def write_trained(trained: Trained, folder: Path) -> None:
    """Write the files into a folder."""
    kept, fitted = trained
    text = kept.model_dump_json(indent=2, exclude_none=True, exclude={"problem": _PUBLIC_PART})
    name = kept.problem.name
    if file := file_of(name):  # goes with the run
        (folder / Path(file).name).write_bytes(source(file, "scenario.problem.name"))
        text = text.replace(json.dumps(name), json.dumps(short(name)))
    (folder / FILE).write_text(text + "\n", encoding="utf-8")
    arrays: dict[str, np.ndarray] = {}
    for trial, each in fitted.items():
        arrays |= {f"trial-{trial}.{name}": value for name, value in _arrays(each).items()}
    if arrays:
        save_file(arrays, folder / FITTED)


def read_trained(directory: Path, trials: Collection[int]) -> Trained:
    """Read them back. InputError if a file is missing, damaged or of another version."""
    path = directory / FILE
    tree = read_json(path, AGAIN)
    problem = tree.get("problem") if isinstance(tree, dict) else None
    if isinstance(problem, dict) and file_of(problem.get("name")):
        problem["name"] = str(directory.resolve() / problem["name"])
    kept = validated(ModelFile, tree, path, AGAIN)
    if kept.recipe is None:
        return kept, {}
    if (made := kept.recipe.num_features) != kept.num_features:
        hint = f"its models take {kept.num_features} features, and by this version's rule for categories its "
        raise InputError("RUN", str(path), f"{hint}columns are {made}; {AGAIN}")
    file = directory / FITTED
    arrays = opened(file, lambda: load_file(file)) if file.exists() else {}
    try:
        return kept, {trial: _fitted(kept.recipe, arrays, f"trial-{trial}.") for trial in sorted(trials)}
    except KeyError as error:
        raise InputError("RUN", str(file), f"has no {error}; {AGAIN}") from None


def _arrays(fitted: Fitted) -> dict[str, np.ndarray]:
    """The arrays that were fitted on training records, by name."""
    return {
        name: np.ascontiguousarray(value)
        for part in (fitted.standard, fitted.components)
        if part is not None
        for name, value in part._asdict().items()
    }


def _fitted(recipe: Recipe, arrays: Mapping[str, Any], prefix: str) -> Fitted:
    def part(kind: Any) -> Any:
        return kind(*(arrays[prefix + name] for name in kind._fields))

    standard = part(Standard) if recipe.scaling == "training_statistics" else None
    return Fitted(recipe, standard, part(Components) if recipe.pca is not None else None)


def write_models(models: Mapping[Any, Tensor], fitted: Fitted | None, file: Path) -> str:
    """Write a trial's models and what prepares its records, atomically; returns the SHA-256, or OSError."""
    named = {variant: model.contiguous() for variant, model in models.items()}
    if fitted is not None:
        named |= {_PREPARED + name: torch.from_numpy(value) for name, value in _arrays(fitted).items()}
    content = tensors.save(named)  # its own `save_file` raises no OSError
    with atomic_file(file) as draft:
        draft.write_bytes(content)
    return sha256(content).hexdigest()


def read_models(file: Path, digest: str, recipe: str | None) -> tuple[dict[Any, Tensor], Fitted | None]:
    """Read them back. ValueError if the file is not the one that was written, OSError if it is unreadable."""
    content = file.read_bytes()
    if sha256(content).hexdigest() != digest:
        raise ValueError(f"{file} was changed")
    named = tensors.load(content)
    models = {name: value for name, value in named.items() if not name.startswith(_PREPARED)}
    if recipe is None:
        return models, None
    arrays = {name: value.numpy() for name, value in named.items()}
    return models, _fitted(Recipe.model_validate_json(recipe), arrays, _PREPARED)
